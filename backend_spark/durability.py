"""fsync: what is on disk when this returns survives a loss of power."""

import errno
import os
from contextlib import suppress
from pathlib import Path


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
