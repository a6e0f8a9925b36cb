"""Updates: signed, on trial, and taken back when the agent does not stay up."""

import subprocess
from pathlib import Path

import pytest

from image.bundle import BundleError, apply, make

FACTS = {"role": "node", "version": "2", "kernel": "6.1", "epoch": "20"}
OURS = {"role": "node", "version": "1", "kernel": "6.1", "epoch": "10"}


class Shop:
    """A builder's folder: a key, a root, a bundle, and a slot to write to."""

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
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_bundle_is_written_to_the_slot(shop: Shop) -> None:
    """What was built is what is there."""
    shop.make()

    assert "Version 2" in shop.apply()
    assert shop.slot.read_bytes().startswith(shop.root.read_bytes())


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"role": "gateway"}, "role must be node, got gateway"),
        ({"kernel": "6.2"}, "kernel must be 6.1, got 6.2; flash the card anew"),
        ({"epoch": "9", "version": "0"}, "version must not be older than 1, got 0"),
    ],
)
def test_bundle_for_another_machine_is_refused(
    shop: Shop, facts: dict[str, str], words: str
) -> None:
    """The slot is not touched, and the words say what to do."""
    shop.make(**facts)
    with pytest.raises(BundleError, match=words):
        shop.apply()
    assert shop.slot.read_bytes() == bytes(4 << 20)


def test_bundle_of_another_key_is_refused(shop: Shop, tmp_path: Path) -> None:
    """A stranger's bundle changes nothing."""
    (tmp_path / "other").mkdir()
    Shop(tmp_path / "other")
    shop.make()
    shop.public = tmp_path / "other/key.pub"
    with pytest.raises(BundleError, match="signature must be of the key"):
        shop.apply()
    assert shop.slot.read_bytes() == bytes(4 << 20)


@pytest.mark.parametrize("cut", [100, 3000, 500_000])
def test_bundle_that_was_cut_is_refused(shop: Shop, cut: int) -> None:
    """A copy that ended early, wherever."""
    shop.make()
    shop.bundle.write_bytes(shop.bundle.read_bytes()[:cut])
    with pytest.raises(BundleError, match="must"):
        shop.apply()


def test_bundle_with_one_wrong_byte_is_refused(shop: Shop) -> None:
    """A bad card is noticed before the slot is tried."""
    shop.make()
    raw = bytearray(shop.bundle.read_bytes())
    raw[1_000_000] ^= 1
    shop.bundle.write_bytes(raw)
    with pytest.raises(BundleError, match="must have SHA-256"):
        shop.apply()
