"""Counts of a queue: what a transaction or a moment in memory changed."""

from collections import Counter

FULL = "full"
THINNED = "thinned"
EXPIRED = "expired"
DAMAGED = "damaged"


class Changes:
    """Changes of the tally that are not on the disk yet.

    Attributes:
        tally: By priority and column of the table ``tally``.
        reasons: Drops by priority and reason.
    """

    def __init__(self) -> None:
        self.tally: Counter[tuple[int, str]] = Counter()
        self.reasons: Counter[tuple[int, str]] = Counter()

    def copy(self) -> "Changes":
        """The same changes, to be added to."""
        other = Changes()
        other.tally.update(self.tally)
        other.reasons.update(self.reasons)
        return other

    def put(self, priority: int, cost: int) -> None:
        """A message came in."""
        self.held(priority, 1, cost)
        self.tally[priority, "put"] += 1

    def acked(self, priority: int, cost: int) -> None:
        """A message is delivered."""
        self.held(priority, -1, -cost)
        self.tally[priority, "acked"] += 1

    def dropped(self, priority: int, cost: int, reason: str) -> None:
        """A message is given up."""
        self.held(priority, -1, -cost)
        self.tally[priority, "dropped"] += 1
        self.reasons[priority, reason] += 1

    def duplicate(self, priority: int) -> None:
        """A message came again."""
        self.tally[priority, "duplicates"] += 1

    def held(self, priority: int, rows: int, cost: int) -> None:
        """The queue holds so much more."""
        self.tally[priority, "rows"] += rows
        self.tally[priority, "bytes"] += cost

    def of(self, priority: int, column: str) -> int:
        """Change of one number."""
        return self.tally[priority, column]
