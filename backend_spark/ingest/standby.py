"""Two ingesters of one name: one works, the other waits to take over.

The lock says who works. The kernel lets go of it when that process dies, however it
dies. One that lives but hangs is found out because it no longer touches the lock
file, and is killed before anybody takes its place: so there are never two.

Times of the file are only compared for being equal, so no clock matters but ours.
"""

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service_runtime.errors import AlreadyRunningError
from service_runtime.locks import Holder, hold

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
MEANWHILE_S: Final = 2.0


@dataclass
class Turn:
    """Takes the lock, now or when it is free.

    Attributes:
        path: The lock file.
        takeover_s: Silence after which the holder is taken to hang; None does not
            wait for it at all.
        monotonic_s: Clock.
        rest: Waits for so many seconds; whether we are told to stop.
    """

    path: Path
    takeover_s: float | None
    monotonic_s: Callable[[], float]
    rest: Callable[[float], bool]
    is_ours: bool = False
    _descriptor: int = -1
    _shown_s: float = 0.0
    _touched_ns: int = -1
    _since_s: float = 0.0

    def take(self, meanwhile: Callable[[], None]) -> bool:
        """Take the lock; when another has it, wait for our turn.

        Args:
            meanwhile: Done every `MEANWHILE_S` while we wait.

        Returns:
            Whether it is ours: False when we were told to stop.

        Raises:
            AlreadyRunningError: Another has it, and we do not wait.
        """
        next_s = self.monotonic_s()
        while not self._is_free():
            self._look_at_holder()
            if self.monotonic_s() >= next_s:
                meanwhile()
                next_s = self.monotonic_s() + MEANWHILE_S
            if self.rest(POLL_S):
                return False
        self.is_ours = True
        return True

    def show(self) -> None:
        """Tell who waits that we live."""
        now_s = self.monotonic_s()
        if now_s - self._shown_s >= POLL_S:
            self._shown_s = now_s
            os.utime(self._descriptor)

    def give_up(self) -> None:
        """Let another have it."""
        self.is_ours = False
        os.close(self._descriptor)

    def _is_free(self) -> bool:
        try:
            self._descriptor = hold(self.path)
        except AlreadyRunningError:
            if self.takeover_s is None:
                raise
            return False
        return True

    def _look_at_holder(self) -> None:
        now_s, touched_ns = self.monotonic_s(), self.path.stat().st_mtime_ns
        if touched_ns != self._touched_ns:
            self._touched_ns, self._since_s = touched_ns, now_s
        elif self.takeover_s is not None and now_s - self._since_s > self.takeover_s:
            self._end_holder(now_s - self._since_s)
            self._since_s = now_s

    def _end_holder(self, silence_s: float) -> None:
        holder = Holder.of(self.path)
        if holder is None:
            log.warning("%s is held by nobody we can see, %.0f s", self.path, silence_s)
            return
        log.error("%s hangs, silent for %.0f s: killing it", holder, silence_s)
        try:
            holder.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended by itself
        except PermissionError:
            log.error("%s is another user's: it must be ended by hand", holder)  # noqa: TRY400 - no bug
