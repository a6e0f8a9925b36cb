"""Lock files: one process per name and data folder."""

import fcntl
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from service_runtime.errors import AlreadyRunningError

log = logging.getLogger(__name__)

_START_TIME_FIELD = 19
"""Index in ``/proc/<pid>/stat``, counted after the name of the program."""


def acquire_lock(path: Path) -> int:
    """Lock a file for the life of this process, and write the process into it.

    The kernel releases the lock when the process ends. Keep the returned descriptor
    open. On a full disk the file may name no process, or one that has ended.

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
    holder = f"{os.getpid()} {_start_time(os.getpid())}".encode()
    try:
        # Over the text of the last process: that takes no space, as an empty file does.
        os.pwrite(descriptor, holder, 0)
        os.ftruncate(descriptor, len(holder))
    except OSError as error:
        log.warning("%s does not name this process: %s", path, error)
    return descriptor


@dataclass(frozen=True)
class LockHolder:
    """The process named in a lock file.

    Attributes:
        pid: Process id, which may be reused after its end.
        started: Start time in clock ticks since the boot of the machine.
    """

    pid: int
    started: str

    @classmethod
    def read(cls, path: Path) -> "LockHolder | None":
        """Read the holder of a lock file; None when there is none, or it has ended."""
        pid, _, started = path.read_text(encoding="ascii").partition(" ")
        if not pid.isdecimal() or _start_time(int(pid)) != started:
            return None
        return cls(int(pid), started)

    def __str__(self) -> str:
        """Text for the log."""
        return f"process {self.pid}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process, never to a later one with its id.

        Raises:
            ProcessLookupError: The process has ended.
            PermissionError: The process belongs to another user.
        """
        descriptor = os.pidfd_open(self.pid)
        try:
            if _start_time(self.pid) == self.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _start_time(pid: int) -> str:
    """Start time of a process; empty when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[_START_TIME_FIELD]
