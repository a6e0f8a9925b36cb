"""Durable files: atomic replacement and fsync; and lock files of processes.

What was replaced here survives a power cut as soon as the function has returned.
"""

import errno
import fcntl
import logging
import os
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import AlreadyRunningError

T = TypeVar("T")
D = TypeVar("D")

log = logging.getLogger(__name__)

WIPE_SUFFIX = ".wipe"
"""Ending of the name of a file that is to be wiped."""


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file, so that a power cut leaves the old content or the new one.

    Args:
        path: The file; its folder exists.
        data: Its new content.
        mode: Permission bits; None keeps the default of the file system, as FAT needs.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    write_beside(path, data, mode)
    put_in_place(path)


def write_beside(
    path: Path,
    data: bytes,
    mode: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Write the new content of a file beside it, for `put_in_place`.

    Where something else must be stored before the file is replaced: that needs no more
    space on the disk.

    Args:
        path: As of `write_atomic`.
        data: As of `write_atomic`.
        mode: As of `write_atomic`.
        owner: User and group id of the new file; None is this process's.

    Raises:
        OSError: It cannot be written.
    """
    new_path = _beside(path)
    new_path.unlink(missing_ok=True)
    handle = os.open(
        new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else 0o600
    )
    with os.fdopen(handle, "wb") as file:
        # By descriptor: another user of the folder can put a link in place of the name.
        if owner is not None:
            os.fchown(handle, *owner)
        if mode is not None:
            os.fchmod(handle, mode)
        file.write(data)
        file.flush()
        os.fsync(handle)


def write_beside_if_new(path: Path, data: bytes) -> bool:
    """As `write_beside`, unless the file has this content; whether it was written.

    A content that stays is not written anew, which a full disk would prevent.
    """
    if path.exists() and path.read_bytes() == data:
        return False
    write_beside(path, data)
    return True


def put_in_place(path: Path) -> None:
    """Replace a file by what `write_beside` has written."""
    _beside(path).replace(path)
    fsync_folder(path.parent)


def write_for_service(path: Path, data: bytes, mode: int) -> None:
    """Replace a file of a service, in a command that root may run.

    What root replaces keeps its owner, group and mode, and a new file belongs to the
    owner of its folder: else the service could not read it.

    Args:
        path: The file; its folder exists.
        data: Its new content.
        mode: Permission bits of a new file, and of each that another user writes.

    Raises:
        OSError: The file cannot be written, or root finds a symbolic link in its
            place; the old one is unchanged.
    """
    owner = None
    if os.geteuid() == 0:
        model = path.parent.stat()
        with suppress(FileNotFoundError):
            model = path.lstat()
            mode = stat.S_IMODE(model.st_mode)
        if stat.S_ISLNK(model.st_mode):
            rule = "must be a file, not a symbolic link; give the path it leads to"
            raise OSError(errno.ELOOP, rule, str(path))
        owner = model.st_uid, model.st_gid
    write_beside(path, data, mode, owner)
    put_in_place(path)


def write_best_effort(path: Path, data: bytes) -> bool:
    """Replace a file atomically, or log the error and keep the old one.

    For state that a daemon also holds in memory: a full disk must not end a daemon
    that still carries alarms.

    Returns:
        Whether the file was written.
    """
    try:
        write_atomic(path, data)
    except OSError as error:
        log.error("cannot write %s: %s", path, error)  # noqa: TRY400
        return False
    return True


def read_json_or(path: Path, form: type[T], default: D) -> T | D:
    """Decode a JSON file into a type.

    Returns:
        The default if there is no file; also if it cannot be read or is damaged, which
        is logged.
    """
    try:
        return decode_json(path.read_bytes(), form)
    except FileNotFoundError:
        return default
    except (OSError, *DECODE_ERRORS) as error:
        log.warning("%s cannot be read: %s", path, error)
        return default


def file_size(path: Path) -> int:
    """Size of a file in bytes; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def fsync_file(path: Path) -> None:
    """Make the content of a finished file survive a power cut."""
    _fsync(path, os.O_RDONLY)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents, so that they survive a power cut.

    A folder that exists may have been made by a process that ended before its name
    was durable, so every name on the way is synced.

    Args:
        path: The folder.
        mode: Permission bits of a new folder, less those of the umask; not of parents.
    """
    path.mkdir(mode, parents=True, exist_ok=True)
    for above in path.absolute().parents:
        with suppress(PermissionError):  # of another user, so not made here
            fsync_folder(above)


def mark_for_wipe(path: Path) -> None:
    """Rename a file that `wipe_marked` shall wipe.

    A power cut then leaves no half wiped file under a name that programs read.

    Raises:
        OSError: The folder cannot be written.
    """
    path.rename(path.with_name(path.name + WIPE_SUFFIX))
    fsync_folder(path.parent)


def wipe_marked(folder: Path) -> None:
    """Overwrite and remove the marked files of a folder, also those of earlier runs.

    Raises:
        OSError: A file cannot be written or removed.
    """
    for path in folder.glob(f"*{WIPE_SUFFIX}"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
        fsync_folder(folder)


def is_disk_full(error: OSError) -> bool:
    """Whether an error means that the disk or the quota is full."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
