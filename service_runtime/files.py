"""Durable files: atomic replacement and fsync.

When a function of this module returns, what it wrote survives a power cut.
"""

import errno
import logging
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)


def write_atomic(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file, so that a power cut leaves the old content or the new one.

    Args:
        path: The file; its folder exists.
        data: Its new content.
        mode: Permission bits; None keeps the default of the file system, as FAT needs.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    new_path = path.with_name(path.name + ".new")
    new_path.unlink(missing_ok=True)
    handle = os.open(
        new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else 0o600
    )
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.fchmod(handle, mode)
        file.write(data)
        file.flush()
        os.fsync(handle)
    new_path.replace(path)
    fsync_folder(path.parent)


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


def fsync_file(path: Path) -> None:
    """Make the content of a finished file survive a power cut."""
    _fsync(path, os.O_RDONLY)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, so that they survive a power cut.

    A folder that exists may have been made by a process that ended before its name
    was durable, so every name on the way is synced.
    """
    path.mkdir(parents=True, exist_ok=True)
    for above in path.absolute().parents:
        with suppress(PermissionError):  # of another user, so not made here
            fsync_folder(above)


def is_disk_full(error: OSError) -> bool:
    """Whether an error means that the disk or the quota is full."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def explain_denied(error: BaseException | None) -> str | None:
    """What to do about a file that rights or a mount forbid; None for other errors."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return None
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _explain_rights(_find_denied(Path(error.filename)), error)
    if error.errno == errno.EROFS:
        return (
            f"{error.filename} must be writable, got: {error.strerror}; in a unit, "
            "name its folder in ReadWritePaths=; else check the disk by dmesg, and "
            "mount it read-write"
        )
    return None


def _find_denied(path: Path) -> Path:
    """The first folder on the way that cannot be used, else the path or its folder."""
    path = path.absolute()
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return folder
    return path if path.exists() else path.parent


def _explain_rights(path: Path, error: OSError) -> str:
    user, status = _user_name(os.geteuid()), path.stat()
    owner, mode = _user_name(status.st_uid), stat.filemode(status.st_mode)
    return (
        f"{path} must be accessible for the user {user}, got: {error.strerror} "
        f"({mode}, owner {owner}); run this as {owner}, or give the folder to {user}: "
        f"chown -R {user} {path}"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
