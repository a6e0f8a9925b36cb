"""Files that are whole or not there, whenever the power goes."""

import os
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
