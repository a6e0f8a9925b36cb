"""Updates: signed, on trial, and taken back when the agent does not stay up."""

import subprocess
from pathlib import Path

import pytest
from conftest import wait_until
from image.conftest import Slope
from image.forms import only_long
from image.vm import built

from image.bundle import BundleError, about, apply, make

BOOT_S = 900.0
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


@only_long
@pytest.mark.image
@pytest.mark.system
@pytest.mark.broker
def test_broken_version_is_taken_back(slope: Slope) -> None:
    """Its agent does not stay up: the version from before runs again, queue and all."""
    image = built("node")
    _bundle(image, slope.folder / "broken.update", "exit 1")
    slope.card.put(slope.folder / "broken.update", "broken.update")
    slope.pi.on()
    wait_until(lambda: slope.pi.said("yamamori: slot b (trial)"), BOOT_S)
    highest = max(slope.office.archived(), default=0)
    wait_until(lambda: slope.pi.said("yamamori: slot a (good)") == 2, BOOT_S)
    wait_until(lambda: max(slope.office.archived()) > highest, BOOT_S)
    slope.pi.tip(1)
    wait_until(lambda: slope.office.count() >= 1, BOOT_S)
    slope.pi.pull_the_plug()

    assert "given up: edge-agent did not stay up" in slope.card.read(
        "update-report.txt"
    )
    assert "RESULT: TRIED BEFORE" in slope.card.read("update-report.txt")
    assert slope.office.duplicates() == 0, "the numbers went on"


@only_long
@pytest.mark.image
@pytest.mark.system
@pytest.mark.broker
def test_working_version_is_kept(slope: Slope) -> None:
    """The same root as a newer version lives for a minute, and is good from then on."""
    image = built("node")
    slope.card.put(image / "yamamori-node.update", "same.update")
    slope.pi.on()
    wait_until(lambda: slope.pi.said("yamamori: slot b (trial)"), BOOT_S)
    wait_until(lambda: slope.pi.said("slot b is good"), BOOT_S)
    slope.pi.pull_the_plug()
    slope.pi.on()

    wait_until(lambda: slope.pi.said("yamamori: slot b (good)"), BOOT_S)


def _bundle(image: Path, out: Path, agent: str) -> None:
    """A bundle of the image's root with another agent."""
    root = out.parent / "root"
    script = f"#!/bin/sh\n{agent}\n"
    subprocess.run(
        ["unsquashfs", "-q", "-n", "-d", root, image / "root.squashfs"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (root / "usr/bin/edge-agent").write_text(script)
    packed = out.with_suffix(".squashfs")
    quick = "-noappend -quiet -no-progress -comp zstd -Xcompression-level 3"
    subprocess.run(["mksquashfs", root, packed, *quick.split()], check=True)
    facts = about(root / "etc/yamamori-image")
    make(packed, facts, image.parent / "keys/update.key", out)
