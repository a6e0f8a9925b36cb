"""Resource usage of a process: memory, CPU time and bytes written to its card."""

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
    """An ext4 file system on its own block device, in place of a node's SD card.

    The device's counter includes the writes of the file system itself, mainly its
    journal, which a process's own counter does not.

    Attributes:
        folder: Mount point.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self._stat = Path("/sys/block", Path(device).name, "stat")

    def written_bytes(self) -> int:
        """Return the bytes written to the device so far, after a sync."""
        _run("sync", "--file-system", str(self.folder))
        return int(self._stat.read_text().split()[_SECTORS_WRITTEN]) * SECTOR_BYTES


@contextmanager
def mount_card(image: Path, size_bytes: int) -> Iterator[Card]:
    """Create and mount a card in a sparse file; root only."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    folder = image.with_suffix("")
    folder.mkdir()
    # Otherwise the kernel writes the tables in the background during the measurement.
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    # mkfs would choose 1 KiB blocks for such a small device, unlike on a Pi's card.
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
class ProcessUsage:
    """Resource usage of a process, from /proc.

    Attributes:
        rss_bytes: Resident memory, shared libraries included.
        peak_bytes: Maximum resident memory so far.
        cpu_s: CPU time so far, by thread name.
        write_bytes: Bytes written so far, in whole pages.
    """

    rss_bytes: int
    peak_bytes: int
    cpu_s: dict[str, float]
    write_bytes: int


def read_usage(pid: int) -> ProcessUsage:
    """Read the resource usage of a process.

    Raises:
        FileNotFoundError: The process has ended.
    """
    process = Path("/proc", str(pid))
    status = _pairs(process / "status")
    return ProcessUsage(
        int(status["VmRSS"].split()[0]) * 1024,
        int(status["VmHWM"].split()[0]) * 1024,
        _threads(process),
        int(_pairs(process / "io")["write_bytes"]),
    )


def _threads(process: Path) -> dict[str, float]:
    """Return the CPU time of each thread; ``ended`` sums those that have ended."""
    cpu_s: dict[str, float] = {}
    for thread in (process / "task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = (thread / "comm").read_text().strip()
            cpu_s[name] = cpu_s.get(name, 0.0) + _cpu_s(thread / "stat")
    cpu_s["ended"] = max(0.0, _cpu_s(process / "stat") - sum(cpu_s.values()))
    return cpu_s


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S


def _pairs(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
