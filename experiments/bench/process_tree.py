"""Memory and CPU time of a process with all its descendants."""

import os
from collections.abc import Iterator
from pathlib import Path


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
    return ticks / os.sysconf("SC_CLK_TCK")


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
