"""Resource usage of programs: memory, CPU time and bytes written to a card."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

SECTOR_BYTES = 512
_SECTORS_WRITTEN = 6
_UTIME, _STIME = 11, 12
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

INTERVAL_S: Final = 1.0
MIB: Final = 2**20


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


def memory_bytes(pid: int) -> int:
    """Return the proportional set size of a process and its descendants, in bytes."""
    total = 0
    for each in (pid, *descendants(pid)):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(t.split()[1]) * 1024 for t in lines if t.startswith("Pss:"))
    return total


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants, ended ones included (s)."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        try:
            stat = Path(f"/proc/{each}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS_PER_S


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of all descendants of a process."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            ids = path.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, ids):
            yield child
            yield from descendants(child)


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        at_s: Monotonic time.
        mib: Memory of each program, MiB.
        cpu_s: CPU time of each program so far.
        more: Additional values from the caller's function.
    """

    at_s: float
    mib: Mapping[str, float]
    cpu_s: Mapping[str, float]
    more: Mapping[str, float]


@dataclass
class Sampler:
    """Takes a sample every second; a context manager.

    Attributes:
        pids: Process ids by the name of the program.
        read_more: Returns additional values for a sample.
        samples: All samples, in order of time.
    """

    pids: Mapping[str, int]
    read_more: Callable[[], Mapping[str, float]] = dict
    samples: list[Sample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start sampling."""
        self.sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling, with a last sample."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.sample()

    def sample(self) -> None:
        """Take one sample."""
        mib = {name: memory_bytes(pid) / MIB for name, pid in self.pids.items()}
        used_s = {name: cpu_s(pid) for name, pid in self.pids.items()}
        self.samples.append(Sample(time.monotonic(), mib, used_s, self.read_more()))

    def used_s(self, name: str, from_s: float, to_s: float) -> float:
        """Return the CPU time (s) of a program between the samples around two times."""
        samples = self.samples
        before = [s for s in samples if s.at_s <= from_s] or samples[:1]
        after = [s for s in samples if s.at_s >= to_s] or samples[-1:]
        return after[0].cpu_s[name] - before[-1].cpu_s[name]

    def growth_mib(self, name: str, from_s: float, to_s: float) -> float:
        """Return mean memory of the last quarter minus the second quarter, in MiB."""
        quarter_s = (to_s - from_s) / 4

        def mean(first_s: float) -> float:
            last_s = first_s + quarter_s
            values = [s.mib[name] for s in self.samples if first_s <= s.at_s <= last_s]
            return sum(values) / len(values) if values else 0.0

        return mean(to_s - quarter_s) - mean(from_s + quarter_s)

    def max_mib(self, name: str) -> float:
        """Return the maximum memory of a program, in MiB."""
        return max(sample.mib[name] for sample in self.samples)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.sample()
