"""Update bundles: signature, role, version and integrity are checked."""

import subprocess
from pathlib import Path

import pytest

from image.bundle import BundleError, apply, make

FACTS = {"role": "node", "version": "2", "kernel": "6.1", "epoch": "20"}
OURS = {"role": "node", "version": "1", "kernel": "6.1", "epoch": "10"}


class Builder:
    """A build folder: a key, a root image, a bundle, and a slot to write to."""

    def __init__(self, folder: Path) -> None:
        self.key, self.public = folder / "key.pem", folder / "key.pub"
        self.slot, self.bundle = folder / "slot", folder / "b.update"
        self.root = folder / "root.squashfs"
        for command in (
            f"openssl genpkey -algorithm ed25519 -out {self.key}",
            f"openssl pkey -in {self.key} -pubout -out {self.public}",
        ):
            subprocess.run(command.split(), check=True)
        self.root.write_bytes(bytes(range(256)) * 8192)
        self.slot.write_bytes(bytes(4 << 20))

    def make(self, **facts: str) -> None:
        make(self.root, {**FACTS, **facts}, self.key, self.bundle)

    def apply(self) -> str:
        return apply(self.bundle, self.slot, OURS, self.public)


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_bundle_is_written_to_the_slot(builder: Builder) -> None:
    """The slot starts with the bytes of the root image."""
    builder.make()

    assert "Version 2" in builder.apply()
    assert builder.slot.read_bytes().startswith(builder.root.read_bytes())


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"role": "gateway"}, "role must be node, got gateway"),
        ({"kernel": "6.2"}, "kernel must be 6.1, got 6.2; flash the card anew"),
        ({"epoch": "9", "version": "0"}, "version must not be older than 1, got 0"),
    ],
)
def test_bundle_for_another_machine_is_refused(
    builder: Builder, facts: dict[str, str], words: str
) -> None:
    """The slot is unchanged, and the error names the mismatch."""
    builder.make(**facts)
    with pytest.raises(BundleError, match=words):
        builder.apply()
    assert builder.slot.read_bytes() == bytes(4 << 20)


def test_bundle_of_another_key_is_refused(builder: Builder, tmp_path: Path) -> None:
    """The slot is unchanged."""
    (tmp_path / "other").mkdir()
    Builder(tmp_path / "other")
    builder.make()
    builder.public = tmp_path / "other/key.pub"
    with pytest.raises(BundleError, match="signature must be of the key"):
        builder.apply()
    assert builder.slot.read_bytes() == bytes(4 << 20)


@pytest.mark.parametrize("cut", [100, 3000, 500_000])
def test_truncated_bundle_is_refused(builder: Builder, cut: int) -> None:
    """Truncated in the manifest, the signature or the image."""
    builder.make()
    builder.bundle.write_bytes(builder.bundle.read_bytes()[:cut])
    with pytest.raises(BundleError, match="must"):
        builder.apply()


def test_bundle_with_one_wrong_byte_is_refused(builder: Builder) -> None:
    """A defective card is detected before the slot is booted."""
    builder.make()
    raw = bytearray(builder.bundle.read_bytes())
    raw[1_000_000] ^= 1
    builder.bundle.write_bytes(raw)
    with pytest.raises(BundleError, match="must have SHA-256"):
        builder.apply()
