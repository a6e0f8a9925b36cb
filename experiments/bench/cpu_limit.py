"""CPU limits: groups of processes that may use no more than a share of a core.

Uses the kernel's CPU bandwidth control (cgroups version 1 or 2). Linux and root only.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Self

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
PERIOD_US = 10_000
"""Short, so that a machine is evenly slow instead of stopped for long intervals."""

MIN_QUOTA_US = 1000
"""The kernel's minimum quota per period; lower limits get longer periods."""

REMOVE_TIMEOUT_S = 5.0


class CpuLimit:
    """Control group with a CPU quota; a context manager that removes it at the end.

    Args:
        name: Name of the group.
        cores: Limit for all processes together, in cores; None for no limit.
    """

    def __init__(self, name: str, cores: float | None) -> None:
        self._cores = cores
        root = next(root for root in ROOTS if (root / "cgroup.procs").exists())
        self._folder = root / f"yamamori-{os.getpid()}-{name}"

    def __enter__(self) -> Self:
        """Create the group."""
        if self._cores is None:
            return self
        period_us = max(PERIOD_US, round(MIN_QUOTA_US / self._cores))
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
        """Remove the group once its processes have ended."""
        deadline_s = time.monotonic() + REMOVE_TIMEOUT_S
        while self._folder.exists() and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):  # a process is still ending
                self._folder.rmdir()
            time.sleep(0.02)

    def add(self, pid: int) -> None:
        """Add a process to the group; processes that it starts belong to it too."""
        if self._cores is not None:
            (self._folder / "cgroup.procs").write_text(str(pid))
