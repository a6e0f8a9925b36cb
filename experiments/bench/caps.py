"""Slow machines: groups of processes that may use no more than a part of a core.

By the kernel's bandwidth control, of control groups version 1 or 2. Linux and root.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Self

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
PERIOD_US = 10_000
"""Short, so that a machine is slow and not asleep."""

LEAST_US = 1000
"""Of a period: what the kernel allows; a slower machine has longer periods."""

GONE_WITHIN_S = 5.0


class Cap:
    """A group of processes; a context manager that removes it when they have ended.

    Args:
        name: Of the group.
        cores: What they may use together; None is no bound.
    """

    def __init__(self, name: str, cores: float | None) -> None:
        self._cores = cores
        root = next(root for root in ROOTS if (root / "cgroup.procs").exists())
        self._folder = root / f"yamamori-{os.getpid()}-{name}"

    def __enter__(self) -> Self:
        """Make the group."""
        if self._cores is None:
            return self
        period_us = max(PERIOD_US, round(LEAST_US / self._cores))
        quota_us = round(self._cores * period_us)
        root = self._folder.parent
        if (root / "cgroup.subtree_control").exists():
            (root / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
            (self._folder / "cpu.max").write_text(f"{quota_us} {period_us}")
        else:
            self._folder.mkdir()
            (self._folder / "cpu.cfs_period_us").write_text(str(period_us))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        until_s = time.monotonic() + GONE_WITHIN_S
        while self._folder.exists() and time.monotonic() < until_s:
            with contextlib.suppress(OSError):  # a process is still ending
                self._folder.rmdir()
            time.sleep(0.02)

    def add(self, pid: int) -> None:
        """Let a process, and those it starts, run within it."""
        if self._cores is not None:
            (self._folder / "cgroup.procs").write_text(str(pid))
