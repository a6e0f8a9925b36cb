"""Files that are whole or not there, whenever the power goes.

fsync: what is on disk when this returns survives a loss of power.

What a gateway remembers in small files, for a start without the others.
"""

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Put a file in place so that a power cut leaves the old one or the new one.

    Args:
        path: Where; its folder is there.
        data: Its content.
        mode: Who may read it; None leaves that to the folder's file system, as FAT
            wants it.

    Raises:
        OSError: It cannot be written; the old one is as it was.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else 0o600
    )
    with os.fdopen(handle, "wb") as file:
        if mode is not None:
            os.fchmod(handle, mode)
        file.write(data)
        file.flush()
        os.fsync(handle)
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Make the bytes of a finished file survive a loss of power."""
    _fsync(path, os.O_RDONLY)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, to survive a loss of power.

    One that is there may have been made by somebody who died before its name was
    durable, so all names on the way are made so.
    """
    path.mkdir(parents=True, exist_ok=True)
    for above in path.absolute().parents:
        with suppress(PermissionError):  # not ours, so not made by us
            fsync_folder(above)


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room, and nothing worse."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


log = logging.getLogger(__name__)


def remember(path: Path, content: bytes) -> None:
    """Replace a file, or keep the old one when the disk refuses.

    A gateway goes on without: what it holds in memory is right, and a full disk must
    not end what still carries alarms.
    """
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    except OSError as error:
        log.error("%s is not remembered: %s", path.name, error)  # noqa: TRY400
