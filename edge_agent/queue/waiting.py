"""What the file does not know yet: messages, values, removals and counts."""

from collections import deque
from collections.abc import Iterable

from edge_agent.queue.row import Row, by_priority, cost_of
from edge_agent.queue.store import Store
from edge_agent.queue.tally import Changes


class Waiting:
    """Changes in memory, all of which the next commit takes.

    Attributes:
        rows: Messages by number, some of them out on lease.
        state: Values to remember.
        gone: Stored messages to remove.
        changes: Of the tally, for all of these.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self.rows: dict[int, Row] = {}
        self.state: dict[str, str] = {}
        self.gone: list[Row] = []
        self.changes = Changes()
        self._free: dict[int, deque[int]] = {p: deque() for p in priorities}

    def __bool__(self) -> bool:
        """Whether there is something to write; counts alone can wait for it."""
        return bool(self.rows or self.state or self.gone)

    def add(self, row: Row) -> None:
        """A message was put."""
        self.rows[row.seq] = row
        self._free[row.priority].append(row.seq)
        self.changes.put(row.priority, row.cost)

    def end(self, priority: int, newest: bool) -> Row | None:
        """The oldest or newest message of a priority that was never leased."""
        free = self._free[priority]
        return self.rows[free[-1 if newest else 0]] if free else None

    def take(self, priority: int, seq: int) -> None:
        """A message is leased from one end."""
        free = self._free[priority]
        if free and free[0] == seq:
            free.popleft()
        elif free and free[-1] == seq:
            free.pop()

    def deliver(self, rows: Iterable[Row]) -> None:
        """Messages were acknowledged."""
        for priority, group in by_priority(rows).items():
            self.changes.acked(priority, cost_of(group), len(group))
            self._remove(group)

    def drop(self, row: Row, reason: str) -> None:
        """A message is given up."""
        self.changes.dropped(row.priority, row.cost, reason)
        self._remove([row])

    def _remove(self, rows: Iterable[Row]) -> None:
        stored = [row for row in rows if self.rows.pop(row.seq, None) is None]
        self.gone += stored

    def write(self, store: Store, changes: Changes) -> None:
        """Write everything but the counts, in the caller's transaction."""
        rows = self.rows.values()
        store.insert(rows, cost_of(rows))
        for row in store.discard(self.gone):
            # Another process made room with it, and has counted that.
            changes.held(row.priority, 1, row.cost)

    def settle(self) -> dict[int, list[Row]]:
        """Everything is in the file: forget it here.

        Returns:
            The messages of each priority that are stored now and free, in order.
        """
        stored = {
            priority: [self.rows[seq] for seq in free]
            for priority, free in self._free.items()
            if free
        }
        for priority in stored:
            self._free[priority].clear()
        self.rows.clear()
        self.state.clear()
        self.gone.clear()
        self.changes = Changes()
        return stored
