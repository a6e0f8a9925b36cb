"""A lock file: one process per name and data folder."""

import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from service_runtime.errors import AlreadyRunningError

_STARTED_AT = 19
"""Field of ``/proc/<pid>/stat`` behind the name of the program."""


def hold(path: Path) -> int:
    """Take a lock that lasts as long as this process, and sign it.

    The kernel lets go when the process dies, however it dies. Keep the returned
    descriptor open.

    Raises:
        AlreadyRunningError: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AlreadyRunningError(path) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {_started(os.getpid())}".encode(), 0)
    return descriptor


@dataclass(frozen=True)
class Holder:
    """The process that signed a lock file.

    Attributes:
        pid: Its number, which another may have when it is gone.
        started: When it started, in clock ticks since the machine did.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, path: Path) -> "Holder | None":
        """Who signed a file; None when nobody did, or it lives no more."""
        pid, _, started = path.read_text(encoding="ascii").partition(" ")
        if not pid.isdecimal() or _started(int(pid)) != started:
            return None
        return cls(int(pid), started)

    def __str__(self) -> str:
        """For the log."""
        return f"process {self.pid}"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, and nobody who has its number now.

        Raises:
            ProcessLookupError: It lives no more.
            PermissionError: It is another user's.
        """
        descriptor = os.pidfd_open(self.pid)
        try:
            if _started(self.pid) == self.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _started(pid: int) -> str:
    """When a process started; empty when it is gone."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return told.rpartition(")")[2].split()[_STARTED_AT]
