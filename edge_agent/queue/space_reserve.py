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
    """

    def __init__(self, queue: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = Path(f"{queue}.reserve")
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._is_allocated = False
        self.allocate()

    @property
    def is_allocated(self) -> bool:
        """Whether the file is allocated, as far as this process knows."""
        return self._is_allocated

    def release(self) -> bool:
        """Delete the file; False when there was none."""
        with self._lock:
            self._is_allocated = False
            try:
                self._path.unlink()
            except FileNotFoundError:
                return False
            log.error("%s is removed: its disk is full", self._path)
            return True

    def allocate(self) -> bool:
        """Allocate the file if the disk has space; return whether it is allocated."""
        with self._lock:
            self._is_allocated = self._is_allocated or self._create()
            return self._is_allocated

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
