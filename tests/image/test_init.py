"""The initrd's choice of data partition and slot, on a real ext4 file system."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

INIT = Path(__file__).parents[2] / "image/initrd/init"
STUBS = """
say() {{ echo "$*"; }}
sleep() {{ :; }}
reboot() {{ echo reboot; exit; }}
mount() {{ case "$*" in *squashfs*) ;; *) command mount "$@" ;; esac; }}
part() {{ :; }}
data={device} disk=vda
"""
"""Before the initrd's own lines; only its data partition is mounted."""


def choose(device: str, folder: Path) -> str:
    """Run the lines from the check of the data partition to the choice of the slot."""
    found = re.search(r"(?ms)^# A card that .*?^say \"slot [^\n]*", INIT.read_text())
    assert found is not None
    text = found[0]
    for name in ("/fsck", "/newroot", "/data"):
        text = text.replace(name, f"{folder}{name}")
    environ = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    done = subprocess.run(
        ["sh", "-c", STUBS.format(device=device) + text],
        capture_output=True, text=True, check=True, env=environ,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Attach the partition of a card that lost power during a trial of slot b."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a card")
    image, cut, folder = (tmp_path / name for name in ("whole", "cut", "data"))
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", image], check=False).returncode == 0
    if not made or subprocess.run(["mount", image, folder], check=False).returncode:
        pytest.skip("no loop device or no ext4 on this machine")
    for name in ("slot", "var", "etc"):
        (folder / name).mkdir()
    (folder / "slot/good").write_text("a\n")
    (folder / "slot/trial").write_text("b\n")
    subprocess.run(["sync", "-f", folder], check=True)
    shutil.copy(image, cut)
    subprocess.run(["umount", folder], check=True)
    devices = []

    def attach(*options: str) -> str:
        command = ["losetup", "--find", "--show", *options, cut]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        devices.append(done.stdout.strip())
        return devices[-1]

    yield attach
    subprocess.run(["umount", "-q", folder], check=False)
    for device in devices:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_trial_is_struck_off_before_it_is_booted(
    attach: Callable[..., str], tmp_path: Path
) -> None:
    """The journal is replayed first."""
    assert choose(attach(), tmp_path).endswith("slot b (trial)\n")
    assert not (tmp_path / "data/slot/trial").exists()


def test_card_that_can_only_be_read_is_started(
    attach: Callable[..., str], tmp_path: Path
) -> None:
    """The good slot is started: a trial could not be struck off."""
    lines = choose(attach("--read-only"), tmp_path).splitlines()

    assert lines.count("the data partition cannot be mounted for writing") == 2
    assert lines[-1] == "slot a (readonly)"
    assert (tmp_path / "data/slot/trial").exists()


def test_card_that_cannot_be_read_restarts_the_machine(
    attach: Callable[..., str], tmp_path: Path
) -> None:
    """Nothing is repaired by guessing."""
    device = attach()
    Path(device).write_bytes(bytes(1 << 20))

    assert choose(device, tmp_path).splitlines()[-1] == "reboot"
    assert not list((tmp_path / "data").iterdir())
