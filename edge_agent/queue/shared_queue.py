"""Shared queue: fair shares of its nodes, and the ids of their messages that it had.

What a node stores is bounded by a multiple of what is left: a lone node may take three
quarters of the queue, and k nodes that send without end 3/(3k + 1) each. So there is
always space for the next node. While the queue is less than three quarters full no
bound applies, and nothing is counted by node.

A node may invent boots and leave gaps in its sequence numbers, so the ranges of ids of
one node are bounded. Above the bound its other boots are forgotten, then its lowest
numbers: only messages of that node may then be stored twice, and the next store
removes duplicates again.

Source: A. K. Choudhury, E. L. Hahne, "Dynamic queue length thresholds for shared-memory
packet switches", IEEE/ACM Transactions on Networking 6(2), 1998.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MAX_SEQ, MessageId

MULTIPLE: Final = 3.0
"""Bytes of a node, as a multiple of the bytes that are left."""

URGENT_FLOOR: Final = 0.01
"""Share of the budget that each node has for urgent messages in any case."""

ROUTINE_FLOOR: Final = 0.5
"""The same for all its messages together. A queue that several nodes fill is thinned;
one that a single node fills refuses that node, which keeps its messages."""


class NodeBytes:
    """Stored bytes by node and priority.

    A refused message rolls its transaction back; reading all rows again then would let
    a flood of them stop the queue.

    Args:
        rows: Node, priority and bytes of what is stored.
    """

    def __init__(self, rows: Iterable[tuple[str, int, int]]) -> None:
        self._bytes: Counter[tuple[str, int]] = Counter()
        for node, priority, cost_bytes in rows:
            self._bytes[node, priority] += cost_bytes
        self._changes: list[tuple[str, int, int]] = []
        self._has_begun = False

    def begin(self) -> None:
        """Begin a transaction."""
        self._changes.clear()
        self._has_begun = True

    def undo(self) -> bool:
        """Undo the changes since `begin`; False without it, inside a transaction."""
        for node, priority, cost_bytes in self._changes:
            self._change(node, priority, -cost_bytes)
        self._changes.clear()
        return self._has_begun

    def add(self, node: str, priority: int, cost_bytes: int) -> None:
        """Count a message that is stored; with a negative size, one that is removed."""
        self._changes.append((node, priority, cost_bytes))
        self._change(node, priority, cost_bytes)

    def _change(self, node: str, priority: int, cost_bytes: int) -> None:
        key = node, priority
        self._bytes[key] += cost_bytes
        if not self._bytes[key]:
            del self._bytes[key]

    def held_bytes(self, node: str, lowest_priority: int) -> int:
        """Bytes of a node from a priority upwards."""
        return sum(
            self._bytes[node, priority]
            for priority in LADDER.descending
            if priority >= lowest_priority
        )


class FairShare(NamedTuple):
    """What one node may hold when a message is to be stored.

    Attributes:
        lowest: Lowest priority that shares the space with the message. Urgent messages
            evict the others, so only urgent ones count for them.
        used_bytes: What all nodes hold from there upwards, the message included.
        node_bytes: What one node may hold of it.
    """

    lowest: int
    used_bytes: int
    node_bytes: float


def fair_share(held: Mapping[int, int], limit_bytes: int, priority: int) -> FairShare:
    """Share of a node for a message.

    Args:
        held: Stored bytes by priority, the message included.
        limit_bytes: Limit for messages of this priority.
        priority: Of the message.
    """
    is_urgent = LADDER.is_urgent(priority)
    lowest = LADDER.urgent_from if is_urgent else 1
    used_bytes = sum(size for level, size in held.items() if level >= lowest)
    floor = URGENT_FLOOR if is_urgent else ROUTINE_FLOOR
    node_bytes = max(MULTIPLE * (limit_bytes - used_bytes), floor * limit_bytes)
    return FairShare(lowest, used_bytes, node_bytes)


MAX_RANGES_OF_NODE: Final = 20_000
CHECK_EVERY: Final = 500
"""New ranges between two checks of the node that is storing."""


class KnownIds:
    """Foreign ids in the table `taken`, as ranges; called in transactions.

    Args:
        db: Connection of the queue file.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._unchecked = 0

    def record(self, message_id: MessageId) -> bool:
        """Record an id; False when it was recorded before."""
        node, boot, seq = message_id.node, message_id.boot, message_id.seq
        below = self._range_from_below(message_id)
        if below and seq <= below[1]:
            return False
        after = min(seq + 1, MAX_SEQ)  # SQLite stores no larger number
        above = self._db.execute(
            "SELECT low, high FROM taken WHERE node = ? AND boot = ? AND low = ? "
            "AND typeof(high) = 'integer'",
            (node, boot, after),
        ).fetchone()
        low = below[0] if below and below[1] == seq - 1 else seq
        high = above[1] if above else seq
        if above:
            self._db.execute(
                "DELETE FROM taken WHERE node = ? AND boot = ? AND low = ?",
                (node, boot, after),
            )
        self.record_range(node, boot, low, high)
        if low == high:
            self._count_new(node, boot)
        return True

    def forget(self, message_id: MessageId) -> None:
        """Remove an id, if it was recorded."""
        node, boot, seq = message_id.node, message_id.boot, message_id.seq
        low, high = self._range_from_below(message_id) or (0, -1)
        if seq > high:
            return
        self._db.execute(
            "DELETE FROM taken WHERE node = ? AND boot = ? AND low = ?",
            (node, boot, low),
        )
        for first, last in ((low, seq - 1), (seq + 1, high)):
            if first <= last:
                self.record_range(node, boot, first, last)

    def record_range(self, node: str, boot: str, low: int, high: int) -> None:
        """Record a range of ids."""
        self._db.execute(
            "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)", (node, boot, low, high)
        )

    def _range_from_below(self, message_id: MessageId) -> tuple[int, int] | None:
        """The last range that begins at or below an id; not one with a bit error."""
        found: tuple[int, int] | None = self._db.execute(
            "SELECT low, high FROM taken WHERE node = ? AND boot = ? AND low <= ? "
            "AND typeof(high) = 'integer' ORDER BY low DESC LIMIT 1",
            (message_id.node, message_id.boot, message_id.seq),
        ).fetchone()
        return found

    def _count_new(self, node: str, boot: str) -> None:
        self._unchecked += 1
        if self._unchecked < CHECK_EVERY:
            return
        self._unchecked = 0
        if self._count(node) > MAX_RANGES_OF_NODE:
            self._db.execute(
                "DELETE FROM taken WHERE node = ? AND boot <> ?", (node, boot)
            )
        if self._count(node) > MAX_RANGES_OF_NODE:
            self._db.execute(
                "DELETE FROM taken WHERE node = ?1 AND boot = ?2 AND low < "
                "(SELECT low FROM taken WHERE node = ?1 AND boot = ?2 "
                "ORDER BY low DESC LIMIT 1 OFFSET ?3)",
                (node, boot, MAX_RANGES_OF_NODE // 2),
            )

    def _count(self, node: str) -> int:
        query = "SELECT count(*) FROM taken WHERE node = ?"
        return int(self._db.execute(query, (node,)).fetchone()[0])
