"""Update bundles: signature, role, version and integrity are checked."""

import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from image.bundle import BundleError, apply, key_id, make

FACTS = {"role": "node", "version": "2", "kernel": "6.1", "epoch": "20"}
OURS = {"role": "node", "version": "1", "kernel": "6.1", "epoch": "10"}


class Builder:
    """A build folder: two keys, a root image, a bundle, and a slot to write to."""

    def __init__(self, folder: Path) -> None:
        self.key, self.offline_key = folder / "key.pem", folder / "offline.pem"
        self.public, self.trust = folder / "update.pub", folder / "trust.json"
        self.slot, self.bundle = folder / "slot", folder / "b.update"
        self.root = folder / "root.squashfs"
        halves = [make_key(key) for key in (self.offline_key, self.key)]
        self.public.write_bytes(b"".join(halves))
        self.root.write_bytes(bytes(range(256)) * 8192)
        self.slot.write_bytes(bytes(4 << 20))

    def make(self, **facts: str) -> None:
        make(self.root, {**FACTS, **facts}, self.key, self.bundle)

    def take_back(
        self, key: Path, revoked: Sequence[str] = (), from_epoch: int | None = None
    ) -> str:
        """Apply a bundle without a root that is signed with a key."""
        make(None, FACTS, key, self.bundle, revoked=revoked, from_epoch=from_epoch)
        return self.apply()

    def apply(self, **ours: str) -> str:
        return apply(self.bundle, self.slot, {**OURS, **ours}, self.public, self.trust)[
            0
        ]


def make_key(path: Path) -> bytes:
    """Make a key; returns its public half as PEM."""
    command = f"openssl genpkey -algorithm ed25519 -out {path}"
    subprocess.run(command.split(), check=True)
    command = f"openssl pkey -in {path} -pubout"
    return subprocess.run(command.split(), check=True, capture_output=True).stdout


def id_of(key: Path) -> str:
    private = load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, Ed25519PrivateKey)
    return key_id(private.public_key())


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
        ({"epoch": "10", "version": "0"}, "version must not be older than 1, got 0"),
    ],
)
@pytest.mark.attack("an older bundle of the same epoch", "installed")
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
    builder.public = tmp_path / "other/update.pub"
    with pytest.raises(BundleError, match="signature must be of a key"):
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


def test_running_version_may_be_written_to_the_other_slot(builder: Builder) -> None:
    """After a card's fault both slots should hold it."""
    builder.make(epoch="10", version="1")

    assert "Version 1 is written" in builder.apply()


@pytest.mark.attack("a bundle with an unsigned header of 64 MiB", "129 MiB read")
def test_extended_header_is_not_read_into_memory(
    builder: Builder, report: Callable[..., None]
) -> None:
    """The standard reader reads it before any check: 129 MiB for one of 64 MiB."""
    builder.make()
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = b"x", 64 << 20
    whole = builder.bundle.read_bytes()
    with builder.bundle.open("wb") as out:
        out.write(header.tobuf(tarfile.USTAR_FORMAT))
        out.seek(64 << 20, 1)
        out.write(whole)
    tracemalloc.start()
    with pytest.raises(BundleError, match=r"must hold manifest\.json of at most 65536"):
        builder.apply()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report(memory_mib=[peak_bytes / 2**20])
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("member", ["manifest.json", "manifest.sig"])
def test_size_of_an_unverified_member_is_bounded(builder: Builder, member: str) -> None:
    """Its header may claim any size."""
    builder.make()
    raw = builder.bundle.read_bytes()
    with tarfile.open(builder.bundle) as tar:
        info = tar.getmember(member)
    info.size = 30 << 20
    start = info.offset
    forged = raw[:start] + info.tobuf(tarfile.USTAR_FORMAT) + raw[start + 512 :]
    builder.bundle.write_bytes(forged)
    with pytest.raises(BundleError, match=f"must hold {member} of at most"):
        builder.apply()


def test_every_key_of_the_list_may_sign(builder: Builder) -> None:
    """A key is rotated by an image that lists the old and the new one."""
    for key in (builder.key, builder.offline_key):
        make(builder.root, FACTS, key, builder.bundle)
        assert "Version 2" in builder.apply()


@pytest.mark.attack("a stolen update key signs a bundle", "accepted for ever")
def test_revoked_key_is_refused_by_both_slots(builder: Builder) -> None:
    """The offline key revokes a stolen one without an image."""
    result = builder.take_back(builder.offline_key, revoked=[id_of(builder.key)])
    builder.make()

    assert "taken back" in result
    for version in ("1", "0"):
        with pytest.raises(BundleError, match="not revoked"):
            builder.apply(version=version)
    assert builder.slot.read_bytes() == bytes(4 << 20)


def test_version_that_was_taken_back_is_refused(builder: Builder) -> None:
    """A genuine release newer than the running one may have a known defect."""
    builder.take_back(builder.offline_key, from_epoch=21)
    builder.make()
    with pytest.raises(BundleError, match="epoch must be at least 21"):
        builder.apply()
    builder.make(epoch="21")

    assert "Version 2" in builder.apply()
    builder.take_back(builder.offline_key, from_epoch=5)
    assert '"from_epoch": 21' in builder.trust.read_text()


@pytest.mark.attack("a stolen update key revokes the owner's", "no revocation")
def test_stolen_daily_key_takes_nothing_back(builder: Builder) -> None:
    """It would lock the owner out."""
    stolen, offline = builder.key, builder.offline_key
    with pytest.raises(BundleError, match="revoked must be signed by the first key"):
        builder.take_back(stolen, revoked=[id_of(offline)])
    with pytest.raises(BundleError, match="from_epoch must be signed by the first"):
        builder.take_back(stolen, from_epoch=1 << 40)
    with pytest.raises(BundleError, match="must not contain the key that signs"):
        builder.take_back(offline, revoked=[id_of(offline)])
    assert not builder.trust.exists()


def test_damaged_file_of_revocations_trusts_nothing(builder: Builder) -> None:
    """It may have contained the key that signs."""
    builder.make()
    builder.trust.write_text("{")
    with pytest.raises(BundleError, match=r"trust\.json is damaged"):
        builder.apply()
