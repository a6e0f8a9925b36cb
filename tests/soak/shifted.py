"""Runs a program of ours whose wall clock is wrong, and can jump while it runs.

Run as a program: ``shifted.py OFFSET_FILE -m MODULE ARGUMENTS...`` or
``shifted.py OFFSET_FILE SCRIPT ARGUMENTS...``. The file holds seconds; it is read at
each look at the clock. Monotonic clocks stay as they are, as on a real machine.
"""

import runpy
import sys
import time
from datetime import datetime, tzinfo
from pathlib import Path

from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers


class _Shifted(datetime):
    """`datetime` whose present is ours."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.fromtimestamp(time.time(), tz)


def shift(offset_file: Path) -> None:
    """Put our wall clock in the place of Python's."""
    real_ns, real_localtime, real_gmtime = time.time_ns, time.localtime, time.gmtime
    last_ns = 0

    def now_ns() -> int:
        nonlocal last_ns
        told = offset_file.read_text(encoding="ascii")
        last_ns = int(float(told) * 1e9) if told else last_ns
        return real_ns() + last_ns

    def now_s() -> float:
        return now_ns() / 1e9

    time.time_ns, time.time = now_ns, now_s
    time.localtime = lambda at=None: real_localtime(now_s() if at is None else at)
    time.gmtime = lambda at=None: real_gmtime(now_s() if at is None else at)
    # C code cannot be given another `datetime`; of Python's only these ask for now.
    schedulers.datetime = executors.datetime = _Shifted


def main(offset_file: str, *command: str) -> None:
    """Run a module or a script under the shifted clock."""
    shift(Path(offset_file))
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
