"""Runs one of our programs with a wrong wall clock that can jump while it runs.

Run as a program: ``shifted.py OFFSET_FILE -m MODULE ARGUMENTS...`` or
``shifted.py OFFSET_FILE SCRIPT ARGUMENTS...``. The file holds seconds and is read each
time the clock is read. Monotonic clocks are unchanged, as on a real machine.
"""

import runpy
import sys
import time
from datetime import datetime, tzinfo
from pathlib import Path

from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers


class _Shifted(datetime):
    """`datetime` whose `now` is shifted."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.fromtimestamp(time.time(), tz)


def shift(offset_file: Path) -> None:
    """Replace Python's wall clock by the shifted one."""
    real_ns, real_localtime, real_gmtime = time.time_ns, time.localtime, time.gmtime
    last_ns = 0

    def now_ns() -> int:
        nonlocal last_ns
        text = offset_file.read_text(encoding="ascii")
        last_ns = int(float(text) * 1e9) if text else last_ns
        return real_ns() + last_ns

    def now_s() -> float:
        return now_ns() / 1e9

    time.time_ns, time.time = now_ns, now_s
    time.localtime = lambda at=None: real_localtime(now_s() if at is None else at)
    time.gmtime = lambda at=None: real_gmtime(now_s() if at is None else at)
    # `datetime` is implemented in C; in Python only these modules call `now`.
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
