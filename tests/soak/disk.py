"""A small disk, and a function that fills it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path | None]:
    """Mount a tmpfs at a new folder; yields None without root rights."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk with a foreign file; returns the file."""
    filler = disk / "foreign.log"
    free = os.statvfs(disk)
    with filler.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):  # another process writes at the same time
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            file.seek(0, os.SEEK_END)
        with contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                continue
    return filler
