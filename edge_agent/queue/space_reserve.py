"""A file that only keeps space, so that a full disk still takes an alarm."""

import logging
import os
import threading
from pathlib import Path

log = logging.getLogger(__name__)

RESERVE_BYTES = 256 * 1024


class Reserve:
    """Space beside a queue file: removed when the disk is full, made again later.

    Args:
        queue: The queue's file.
        size_bytes: How much to keep.
    """

    def __init__(self, queue: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = Path(f"{queue}.reserve")
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._is_there = False
        self.restore()

    @property
    def is_kept(self) -> bool:
        """Whether the space is there, as far as we know."""
        return self._is_there

    def spend(self) -> bool:
        """Give the space to the queue; False when that was done before."""
        with self._lock:
            self._is_there = False
            try:
                self._path.unlink()
            except FileNotFoundError:
                return False
            log.error("%s is removed: its disk is full", self._path)
            return True

    def restore(self) -> bool:
        """Whether the space is kept, making it when the disk has room again."""
        with self._lock:
            self._is_there = self._is_there or self._make()
            return self._is_there

    def _make(self) -> bool:
        if self._path.exists() and self._path.stat().st_size == self._size_bytes:
            return True
        disk = os.statvfs(self._path.parent)
        # Twice: making the reserve must not fill the disk itself.
        if disk.f_bavail * disk.f_frsize < 2 * self._size_bytes:
            return False
        try:
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._size_bytes)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        return True
