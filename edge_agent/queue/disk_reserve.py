"""Disk space beside a queue file for a full disk: for alarms, and for removals."""

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from edge_agent.queue.base import QueueDiskFullError
from edge_agent.queue.leasing import PendingChanges
from edge_agent.queue.store import PAGE_BYTES, RESERVE_BYTES, Store
from service_runtime.files import file_size

log = logging.getLogger(__name__)

REMOVAL_BYTES = RESERVE_BYTES // 2
"""Size of the file that is deleted so that removals can be written."""

_REMOVALS, _FEW_REMOVALS = 256, 16
"""Removals in one transaction on a full disk: at first, and after space is released."""


class SpaceReserve:
    """Two files beside a queue file, deleted on a full disk.

    The space of one is for alarms. That of the other is for the removal of messages and
    the checkpoint that it needs: otherwise alarms could fill the log and the disk, and
    the queue could not be emptied.

    Args:
        queue: The queue file.

    Attributes:
        is_allocated: Whether the file for alarms is allocated, as far as this process
            knows.
    """

    def __init__(self, queue: Path) -> None:
        self._queue = queue
        self._path = Path(f"{queue}.reserve")
        self._removal_path = Path(f"{queue}.removals")
        self._lock = threading.Lock()
        self.is_allocated = self._is_removal_allocated = False
        self.allocate()

    def release(self) -> bool:
        """Delete the file for alarms; False when there was none."""
        with self._lock:
            self.is_allocated = False
            return _delete(self._path)

    def allocate(self) -> bool:
        """Allocate the files if the disk has space.

        Returns:
            Whether the one for alarms is allocated.
        """
        with self._lock:
            self.is_allocated = self.is_allocated or _create(self._path, RESERVE_BYTES)
            if self.is_allocated and not self._is_removal_allocated:
                self._is_removal_allocated = _create(self._removal_path, REMOVAL_BYTES)
            return self.is_allocated

    def release_for_removals(self) -> bool:
        """Delete the file for removals; False when there was none."""
        with self._lock:
            self._is_removal_allocated = False
            return _delete(self._removal_path)

    def release_any(self) -> bool:
        """Delete the file for alarms, or else the other; False when there was none."""
        return self.release() or self.release_for_removals()

    def has_nearly_full_disk(self) -> bool:
        """Whether the disk has less space than the reserve, or no file more."""
        is_short = _free_bytes(self._path) < RESERVE_BYTES
        return is_short or os.statvfs(self._path.parent).f_favail == 0

    def keep_rest(self) -> None:
        """Allocate the file for removals again, with what is left of its space."""
        with self._lock:
            if self._removal_path.exists():
                return
            size = min(REMOVAL_BYTES, _free_bytes(self._path))
            size -= size % PAGE_BYTES
            while size >= PAGE_BYTES and not _allocate(self._removal_path, size):
                size //= 2

    def check_growth(self, store: Store) -> None:
        """Check that the log can be checkpointed after a commit without the reserve.

        A log that cannot be checkpointed cannot be reused, and then nothing can be
        removed either. Half of the space is for the log. Call it in a transaction.

        Raises:
            QueueDiskFullError: The checkpoint may not fit.
        """
        if self.is_allocated:
            return
        growth = store.growth_bytes()
        with self._lock:
            free = _free_bytes(self._path) + file_size(self._removal_path) // 2
        if growth > 0 and 2 * growth > free:
            raise QueueDiskFullError(str(self._queue))

    def limit_log(self, store: Store) -> None:
        """Checkpoint after a commit where necessary."""
        if self.is_allocated:
            store.limit_growth()
        else:  # the space of the reserve is for messages, not for the log
            store.restart_wal()


def commit_removals(
    store: Store, reserve: SpaceReserve, pending: PendingChanges
) -> None:
    """Commit the pending removals alone, on a full disk.

    Each of the transactions reuses the log from its start and therefore needs hardly
    any space. A failed one may have grown the log: they must not become larger again.

    Raises:
        QueueDiskFullError: Not even one removal fits.
    """
    count = _REMOVALS
    try:
        while pending.removed:
            count = _commit_some(store, reserve, pending, count)
    finally:
        _restart_log(store, reserve)
        reserve.keep_rest()


def _commit_some(
    store: Store, reserve: SpaceReserve, pending: PendingChanges, count: int
) -> int:
    """Commit at most `count` removals; return the count to go on with."""
    _restart_log(store, reserve)
    try:
        pending.commit_removals(store, count, reserve.check_growth)
    except QueueDiskFullError:
        if count // 4:
            return count // 4
        if not (reserve.release_for_removals() or reserve.release()):
            raise
        return _FEW_REMOVALS
    return count


def _restart_log(store: Store, reserve: SpaceReserve) -> None:
    """Checkpoint the log; only the growth of the file may use released space."""
    store.restart_wal()
    if store.growth_bytes() > 0 and reserve.release_for_removals():
        store.restart_wal()
        reserve.keep_rest()


def _create(path: Path, size: int) -> bool:
    """Allocate a file, unless that would fill the disk; whether it is allocated."""
    try:
        if path.exists() and path.stat().st_size == size:
            return True
        if _free_bytes(path) < 2 * size:
            return False
        path.unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):  # the disk is read-only
            path.unlink()
        return False
    return _allocate(path, size)


def _allocate(path: Path, size: int) -> bool:
    try:
        with path.open("xb") as file:  # never through a link
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        with suppress(OSError):  # the disk is read-only
            path.unlink()
        return False
    return True


def _delete(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:  # there is none, or the disk is read-only
        return False
    log.error("%s is removed: its disk is full", path)
    return True


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize
