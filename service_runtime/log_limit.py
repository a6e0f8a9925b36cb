"""Limit of log lines by cause: what a sender can repeat must not fill the journal."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

LOG_EVERY_S: Final = 60.0
MAX_CAUSES: Final = 1000
"""The cause that was not seen for the longest time is forgotten first."""

MAX_LINES: Final = 60
"""Lines of all causes together in `LOG_EVERY_S`; a sender may invent causes."""


@dataclass
class _Cause:
    logged_s: float
    unlogged: int = 0


class LogLimit:
    """Decides which repetitions of a cause are logged: one a minute.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._causes: OrderedDict[Hashable, _Cause] = OrderedDict()
        self._lines = 0
        self._since_s = clock()

    def count(self, cause: Hashable, times: int = 1) -> int | None:
        """Count a cause.

        Args:
            cause: What the repetitions have in common, such as sender and kind.
            times: How often it happened now.

        Returns:
            How often it happened since its last line, for the line to write now; None:
            write none.
        """
        now_s = self._clock()
        if now_s - self._since_s >= LOG_EVERY_S:
            self._since_s, self._lines = now_s, 0
        known = self._causes.get(cause)
        is_due = known is None or now_s - known.logged_s >= LOG_EVERY_S
        if known is None:
            known = self._causes[cause] = _Cause(now_s)
            if len(self._causes) > MAX_CAUSES:
                self._causes.popitem(last=False)
        self._causes.move_to_end(cause)
        known.unlogged += times
        if not is_due or self._lines >= MAX_LINES:
            return None
        self._lines += 1
        total, known.unlogged, known.logged_s = known.unlogged, 0, now_s
        return total
