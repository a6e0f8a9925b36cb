"""Space reserve: a file to delete when the disk is full, so that alarms still fit."""

import logging
import os
import threading
from pathlib import Path

log = logging.getLogger(__name__)

RESERVE_BYTES = 256 * 1024


class SpaceReserve:
    """Allocated file beside a queue file.

    Args:
        queue: The queue file.
        size_bytes: Its size.

    Attributes:
        is_allocated: Whether the file is allocated, as far as this process knows.
    """

    def __init__(self, queue: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = Path(f"{queue}.reserve")
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self.is_allocated = False
        self.allocate()

    def release(self) -> bool:
        """Delete the file; False when there was none."""
        with self._lock:
            self.is_allocated = False
            try:
                self._path.unlink()
            except FileNotFoundError:
                return False
            log.error("%s is removed: its disk is full", self._path)
            return True

    def allocate(self) -> bool:
        """Allocate the file if the disk has space; return whether it is allocated."""
        with self._lock:
            self.is_allocated = self.is_allocated or self._create()
            return self.is_allocated

    def _create(self) -> bool:
        if self._path.exists() and self._path.stat().st_size == self._size_bytes:
            return True
        disk = os.statvfs(self._path.parent)
        # Twice the size: the reserve must not fill the disk itself.
        if disk.f_bavail * disk.f_frsize < 2 * self._size_bytes:
            return False
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._size_bytes)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        return True
