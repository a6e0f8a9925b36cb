"""Standby of an ingester: waits for the lock of the active process of the same id.

The kernel releases the lock when the active process dies. A process that hangs stops
touching the lock file; the standby then kills it before it takes over, so that two are
never active.

Modification times are only compared for equality, so only the local clock matters.
"""

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service_runtime.errors import AlreadyRunningError
from service_runtime.files import LockHolder, acquire_lock

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
CATCH_UP_S: Final = 2.0


@dataclass
class IngesterLock:
    """Acquires the lock of an ingester, now or when it becomes free.

    Attributes:
        path: Lock file.
        takeover_s: Silence after which the holder counts as hung; None does not wait.
        monotonic_s: Clock.
        wait: Waits for the given seconds; returns whether to stop.
        is_held: Whether the lock is held.
    """

    path: Path
    takeover_s: float | None
    monotonic_s: Callable[[], float]
    wait: Callable[[float], bool]
    is_held: bool = False
    _descriptor: int = -1
    _touched_s: float = 0.0
    _holder_touched_ns: int = -1
    _silent_since_s: float = 0.0

    def acquire(self, while_waiting: Callable[[], None]) -> bool:
        """Acquire the lock; wait while another process holds it.

        Args:
            while_waiting: Called every `CATCH_UP_S` while waiting.

        Returns:
            True with the lock; False if stopped while waiting.

        Raises:
            AlreadyRunningError: Another process holds it, and `takeover_s` is None.
        """
        next_s = self.monotonic_s()
        while not self._try_lock():
            self._check_holder()
            if self.monotonic_s() >= next_s:
                while_waiting()
                next_s = self.monotonic_s() + CATCH_UP_S
            if self.wait(POLL_S):
                return False
        self.is_held = True
        return True

    def touch(self) -> None:
        """Touch the lock file, which shows a standby that this process is alive."""
        now_s = self.monotonic_s()
        if now_s - self._touched_s >= POLL_S:
            self._touched_s = now_s
            os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock."""
        self.is_held = False
        os.close(self._descriptor)

    def _try_lock(self) -> bool:
        try:
            self._descriptor = acquire_lock(self.path)
        except AlreadyRunningError:
            if self.takeover_s is None:
                raise
            return False
        return True

    def _check_holder(self) -> None:
        now_s, touched_ns = self.monotonic_s(), self.path.stat().st_mtime_ns
        silence_s = now_s - self._silent_since_s
        if touched_ns != self._holder_touched_ns:
            self._holder_touched_ns, self._silent_since_s = touched_ns, now_s
        elif self.takeover_s is not None and silence_s > self.takeover_s:
            self._kill_holder(silence_s)
            self._silent_since_s = now_s

    def _kill_holder(self, silence_s: float) -> None:
        holder = LockHolder.read(self.path)
        if holder is None:
            log.warning("%s: holder not found, silent for %.0f s", self.path, silence_s)
            return
        log.error("%s hangs, silent for %.0f s: killing it", holder, silence_s)
        try:
            holder.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            log.error("%s belongs to another user: kill it manually", holder)  # noqa: TRY400 - no bug
