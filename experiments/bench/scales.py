"""What a process weighs: memory, processor and what it writes on its card."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SECTOR_BYTES = 512
_SECTORS_WRITTEN = 6
_UTIME, _STIME = 11, 12
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Card:
    """An ext4 file system on a block device of its own, such as a node's SD card.

    What the file system writes on its own account, its journal above all, is counted
    too; a process's own count does not know of it.

    Attributes:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self._stat = Path("/sys/block", Path(device).name, "stat")

    def written_bytes(self) -> int:
        """Bytes written on the device so far, all that is in memory included."""
        _run("sync", "--file-system", str(self.folder))
        return int(self._stat.read_text().split()[_SECTORS_WRITTEN]) * SECTOR_BYTES


@contextmanager
def card(image: Path, size_bytes: int) -> Iterator[Card]:
    """Make a card in a sparse file; root only."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    folder = image.with_suffix("")
    folder.mkdir()
    # Or the kernel writes the tables in the background, while we measure.
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    # A small one would have blocks of 1 KiB, and no card of a Pi is small.
    _run("mkfs.ext4", "-q", "-b", "4096", "-E", lazy, str(image))
    device = _run("losetup", "--find", "--show", str(image)).strip()
    try:
        _run("mount", "-o", "noatime", device, str(folder))
        try:
            yield Card(folder, device)
        finally:
            _run("umount", "--lazy", str(folder))
    finally:
        _run("losetup", "--detach", device)


@dataclass(frozen=True)
class Reading:
    """What the kernel says of a process.

    Attributes:
        rss_bytes: In memory now, shared libraries included.
        peak_bytes: The most there ever was.
        cpu_s: Processor time so far, by the names of its threads.
        write_bytes: What it had the kernel write so far, in pages.
    """

    rss_bytes: int
    peak_bytes: int
    cpu_s: dict[str, float]
    write_bytes: int


def weigh(pid: int) -> Reading:
    """Look at a process.

    Raises:
        FileNotFoundError: It has ended.
    """
    process = Path("/proc", str(pid))
    status = _pairs(process / "status")
    return Reading(
        int(status["VmRSS"].split()[0]) * 1024,
        int(status["VmHWM"].split()[0]) * 1024,
        _threads(process),
        int(_pairs(process / "io")["write_bytes"]),
    )


def _threads(process: Path) -> dict[str, float]:
    """Time of each thread, and of those that ended as one that has no name."""
    spent: dict[str, float] = {}
    for thread in (process / "task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = (thread / "comm").read_text().strip()
            spent[name] = spent.get(name, 0.0) + _cpu_s(thread / "stat")
    spent["ended"] = max(0.0, _cpu_s(process / "stat") - sum(spent.values()))
    return spent


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S


def _pairs(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
