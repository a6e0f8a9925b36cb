"""What the file does not know yet: messages, values, removals and counts."""

from collections import deque
from collections.abc import Iterable

from edge_agent.queue.leases import Lease
from edge_agent.queue.store import Row, Store
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
        self.gone: dict[int, Lease] = {}
        self.changes = Changes()
        self._free: dict[int, deque[int]] = {p: deque() for p in priorities}

    def __bool__(self) -> bool:
        """Whether there is something to write; counts alone can wait for it."""
        return bool(self.rows or self.state or self.gone)

    def add(self, row: Row) -> None:
        """A message was put."""
        message = row.message
        self.rows[message.seq] = row
        self._free[message.priority].append(message.seq)
        self.changes.put(message.priority, row.cost)

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

    def deliver(self, seq: int, lease: Lease) -> None:
        """A message was acknowledged."""
        self.changes.acked(lease.priority, lease.cost)
        self._remove(seq, lease)

    def drop(self, seq: int, lease: Lease, reason: str) -> None:
        """A message is given up."""
        self.changes.dropped(lease.priority, lease.cost, reason)
        self._remove(seq, lease)

    def _remove(self, seq: int, lease: Lease) -> None:
        if self.rows.pop(seq, None) is None:
            self.gone[seq] = lease

    def write(self, store: Store, changes: Changes) -> None:
        """Write everything but the counts, in the caller's transaction."""
        for row in self.rows.values():
            store.insert(row)
        for seq, lease in self.gone.items():
            if store.delete(lease.priority, seq) is None:
                # Another process made room with it, and has counted that.
                changes.held(lease.priority, 1, lease.cost)

    def settle(self) -> list[tuple[int, int]]:
        """Everything is in the file: forget it here.

        Returns:
            Priority and number of the free messages that are stored now.
        """
        stored = [(p, seq) for p, free in self._free.items() for seq in free]
        for free in self._free.values():
            free.clear()
        self.rows.clear()
        self.state.clear()
        self.gone.clear()
        self.changes = Changes()
        return stored
