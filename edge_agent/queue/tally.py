"""Counts of a queue: what a transaction or a moment in memory changed."""

from collections import Counter
from collections.abc import Iterator

FULL = "full"
THINNED = "thinned"
EXPIRED = "expired"
DAMAGED = "damaged"

COLUMNS = ("rows", "bytes", "put", "acked", "dropped", "duplicates")
_ROWS, _BYTES, _PUT, _ACKED, _DROPPED, _DUPLICATES = range(len(COLUMNS))


class Changes:
    """Changes of the tally that are not on the disk yet.

    Attributes:
        reasons: Drops by priority and reason.
    """

    def __init__(self) -> None:
        self.reasons: Counter[tuple[int, str]] = Counter()
        self._by: dict[int, list[int]] = {}

    def copy(self) -> "Changes":
        """The same changes, to be added to."""
        other = Changes()
        other.reasons.update(self.reasons)
        other._by = {priority: list(by) for priority, by in self._by.items()}
        return other

    def rows(self) -> Iterator[tuple[int, list[int]]]:
        """Priorities that changed, each with its changes in the tally's order."""
        return ((priority, by) for priority, by in self._by.items() if any(by))

    def put(self, priority: int, cost: int, count: int = 1) -> None:
        """Messages came in, and what they cost together."""
        by = self._of(priority)
        by[_ROWS] += count
        by[_BYTES] += cost
        by[_PUT] += count

    def acked(self, priority: int, cost: int, count: int = 1) -> None:
        """Messages are delivered, and what they cost together."""
        by = self._of(priority)
        by[_ROWS] -= count
        by[_BYTES] -= cost
        by[_ACKED] += count

    def dropped(self, priority: int, cost: int, reason: str) -> None:
        """A message is given up."""
        self.held(priority, -1, -cost)
        self._of(priority)[_DROPPED] += 1
        self.reasons[priority, reason] += 1

    def duplicate(self, priority: int) -> None:
        """A message came again."""
        self._of(priority)[_DUPLICATES] += 1

    def held(self, priority: int, rows: int, cost: int) -> None:
        """The queue holds so much more."""
        by = self._of(priority)
        by[_ROWS] += rows
        by[_BYTES] += cost

    def of(self, priority: int, column: str) -> int:
        """Change of one number."""
        by = self._by.get(priority)
        return 0 if by is None else by[COLUMNS.index(column)]

    def _of(self, priority: int) -> list[int]:
        by = self._by.get(priority)
        if by is None:
            by = self._by[priority] = [0] * len(COLUMNS)
        return by
