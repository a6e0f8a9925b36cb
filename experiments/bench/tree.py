"""What a process and all that it started cost."""

import os
from collections.abc import Iterator
from pathlib import Path


def held_bytes(pid: int) -> int:
    """Proportional set size of a process and all it started."""
    held = 0
    for each in (pid, *children(pid)):
        try:
            told = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        held += sum(int(t.split()[1]) * 1024 for t in told if t.startswith("Pss:"))
    return held


def cpu_s(pid: int) -> float:
    """Processor time of a process and all it started, ended children included."""
    ticks = 0
    for each in (pid, *children(pid)):
        try:
            told = Path(f"/proc/{each}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, told.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> Iterator[int]:
    """Ids of all that a process started, and of what that started."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            told = path.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, told):
            yield child
            yield from children(child)
