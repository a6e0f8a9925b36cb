"""Foreign message ids that a queue has stored, as ranges in its file.

A node may invent boots and leave gaps in its sequence numbers, so the ranges of one
node are bounded. Above the bound its other boots are forgotten, then its lowest
numbers: only messages of that node may then be stored twice, and the next store
removes duplicates again.
"""

import sqlite3
from typing import Final

from spatial_mqtt.senml import MAX_SEQ, MessageId

MAX_RANGES_OF_NODE: Final = 20_000
CHECK_EVERY: Final = 500
"""New ranges between two checks of the node that is storing."""


class KnownIds:
    """Ids in the table `taken`; called in transactions.

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
            "SELECT low, high FROM taken WHERE node = ? AND boot = ? AND low = ?",
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
        """The last range that begins at or below an id."""
        found: tuple[int, int] | None = self._db.execute(
            "SELECT low, high FROM taken WHERE node = ? AND boot = ? AND low <= ? "
            "ORDER BY low DESC LIMIT 1",
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
