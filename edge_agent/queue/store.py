"""The queue's rows: every statement that the durable queue sends to SQLite."""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edge_agent.queue.base import ROW_OVERHEAD_BYTES, Message, cost_bytes
from edge_agent.queue.errors import QueueDiskFullError, QueueFileError
from edge_agent.queue.reserve import RESERVE_BYTES
from edge_agent.queue.tally import Changes
from spatial_mqtt.envelope import MessageId
from spatial_mqtt.priority import LADDER

_COLUMNS = "priority, seq, node, boot, origin_seq, topic, crc, payload, born_ms"
_PLACES = f"message ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE = "message WHERE priority = ? AND seq = ?"
_COST = f"length(CAST(topic AS BLOB)) + length(payload) + {ROW_OVERHEAD_BYTES}"

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Row:
    """A message and what the queue keeps beside it.

    Attributes:
        message: The message.
        crc: Checksum of the payload, from when it was put.
        born_ms: When it was put, on the queue's clock; None when it had none.
    """

    message: Message
    crc: int
    born_ms: int | None = None

    @property
    def is_sound(self) -> bool:
        """Whether the payload still matches its checksum."""
        return zlib.crc32(self.message.payload) == self.crc

    @property
    def cost(self) -> int:
        """Bytes of the budget."""
        return cost_bytes(self.message.topic, self.message.payload)


class Store:
    """A queue file for one process.

    Args:
        path: The file, for error messages.
        db: Its connection.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on the disk when it ends.

        Raises:
            QueueDiskFullError: The disk is full.
            QueueFileError: The file cannot be used.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise self._translated(error) from error
            raise

    def insert(self, row: Row) -> None:
        """Store a message."""
        self._db.execute(
            f"INSERT INTO {_PLACES}",
            _values(row),
        )

    def restore(self, row: Row) -> bool:
        """Store a salvaged message; False when its place is taken."""
        cursor = self._db.execute(
            f"INSERT OR IGNORE INTO {_PLACES}",
            _values(row),
        )
        return cursor.rowcount == 1

    def delete(self, priority: int, seq: int) -> int | None:
        """Remove a message; what it cost, or None when it was not there."""
        row = self._db.execute(
            f"DELETE FROM {_ONE} RETURNING {_COST}",  # noqa: S608 - our words
            (priority, seq),
        ).fetchone()
        return None if row is None else int(row[0])

    def row(self, priority: int, seq: int) -> Row | None:
        """One message."""
        with self._reading():
            row = self._db.execute(
                f"SELECT {_COLUMNS} FROM {_ONE}",  # noqa: S608 - our words
                (priority, seq),
            ).fetchone()
        return None if row is None else _row(row)

    def between(
        self, priority: int, after: int, before: int | None, limit: int, newest: bool
    ) -> list[Row]:
        """Messages of a priority between two numbers, from one end."""
        order = "DESC" if newest else "ASC"
        with self._reading():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM message "  # noqa: S608 - our words
                "WHERE priority = ? AND seq > ? AND seq < ? "
                f"ORDER BY seq {order} LIMIT ?",
                (priority, after, before or 2**63 - 1, limit),
            ).fetchall()
        return [_row(row) for row in rows]

    def version(self) -> int:
        """Changes whenever another process has written to the file."""
        with self._reading():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def page(self, priority: int, after: int, limit: int) -> list[Row]:
        """The oldest messages of a priority above a number: one short read."""
        with self._reading():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM message "  # noqa: S608 - our words
                "WHERE priority = ? AND seq > ? ORDER BY seq LIMIT ?",
                (priority, after, limit),
            ).fetchall()
        return [_row(row) for row in rows]

    def seqs(self, priority: int, after: int, to: int, limit: int) -> list[int]:
        """The lowest numbers of a priority in a range."""
        rows = self._db.execute(
            "SELECT seq FROM message WHERE priority = ? AND seq > ? AND seq <= ? "
            "ORDER BY seq LIMIT ?",
            (priority, after, to, limit),
        ).fetchall()
        return [int(row[0]) for row in rows]

    def oldest(self, priority: int, limit: int) -> list[tuple[int, int | None]]:
        """Number and birth of the oldest messages of a priority."""
        return self._db.execute(
            "SELECT seq, born_ms FROM message WHERE priority = ? ORDER BY seq LIMIT ?",
            (priority, limit),
        ).fetchall()

    def ends(self, priority: int) -> tuple[int, int]:
        """Lowest and highest number of a priority; zeros when it is empty."""
        low = self.seqs(priority, -1, 2**63 - 1, 1)
        high = self._db.execute(
            "SELECT seq FROM message WHERE priority = ? ORDER BY seq DESC LIMIT 1",
            (priority,),
        ).fetchone()
        return (low[0], int(high[0])) if low else (0, 0)

    def holds(self, message_id: MessageId) -> bool:
        """Whether a message that this queue gave its id is still here."""
        return any(
            row is not None and row.message.id == message_id
            for row in (self.row(p, message_id.seq) for p in LADDER.descending())
        )

    def take(self, message_id: MessageId) -> bool:
        """Note a foreign id; False when it had been taken before."""
        node, boot, seq = message_id.node, message_id.boot, message_id.seq
        below = self._db.execute(
            "SELECT low, high FROM taken WHERE node = ? AND boot = ? AND low <= ? "
            "ORDER BY low DESC LIMIT 1",
            (node, boot, seq),
        ).fetchone()
        if below and seq <= below[1]:
            return False
        above = self._db.execute(
            "SELECT low, high FROM taken WHERE node = ? AND boot = ? AND low = ?",
            (node, boot, seq + 1),
        ).fetchone()
        low = below[0] if below and below[1] == seq - 1 else seq
        high = above[1] if above else seq
        if above:
            self._db.execute(
                "DELETE FROM taken WHERE node = ? AND boot = ? AND low = ?",
                (node, boot, seq + 1),
            )
        self.take_range(node, boot, low, high)
        return True

    def take_range(self, node: str, boot: str, low: int, high: int) -> None:
        """Note a range of foreign ids."""
        self._db.execute(
            "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)", (node, boot, low, high)
        )

    def recall(self, name: str) -> str | None:
        """A remembered value."""
        with self._reading():
            row = self._db.execute(
                "SELECT value FROM state WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else str(row[0])

    def remember(self, values: Mapping[str, str]) -> None:
        """Remember values."""
        self._db.executemany(
            "INSERT OR REPLACE INTO state VALUES (?, ?)", values.items()
        )

    def tally(self) -> dict[int, dict[str, int]]:
        """The tally's rows by priority, most urgent first."""
        names = ("rows", "bytes", "put", "acked", "dropped", "duplicates")
        with self._reading():
            rows = self._db.execute(
                f"SELECT priority, {', '.join(names)} FROM tally "  # noqa: S608 - our words
                "ORDER BY priority DESC"
            ).fetchall()
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}

    def reasons(self) -> dict[tuple[int, str], int]:
        """Drops by priority and reason."""
        with self._reading():
            rows = self._db.execute("SELECT priority, reason, count FROM dropped")
            return {(row[0], row[1]): row[2] for row in rows.fetchall()}

    def apply(self, changes: Changes) -> None:
        """Write changes of the tally, with one statement a priority."""
        for priority in {key[0] for key, by in changes.tally.items() if by}:
            columns = {c: by for (p, c), by in changes.tally.items() if p == priority}
            words = ", ".join(f"{column} = {column} + ?" for column in columns)
            self._db.execute(
                f"UPDATE tally SET {words} WHERE priority = ?",  # noqa: S608 - our words
                (*columns.values(), priority),
            )
        for (priority, reason), by in changes.reasons.items():
            self._db.execute(
                "INSERT INTO dropped VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                (priority, reason, by),
            )

    def bound_growth(self) -> None:
        """Move the log into the file before it holds more growth than the reserve.

        On a full disk the log can then always be moved, and be used again.
        """
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        growth = pages * PAGE_BYTES - self._path.stat().st_size
        if growth > RESERVE_BYTES // 2:
            self._checkpoint("PASSIVE")

    def start_wal_again(self) -> None:
        """Let the next commit reuse the log's space instead of growing it."""
        self._checkpoint("RESTART")

    def _checkpoint(self, mode: str) -> None:
        # The log stays valid when it cannot be moved: the commit itself decides.
        with suppress(QueueDiskFullError), self._reading():
            self._db.execute(f"PRAGMA wal_checkpoint({mode})")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Inside a transaction its own handler translates, and rolls back.
            if self._db.in_transaction:
                raise
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.DatabaseError) -> Exception:
        if isinstance(error, sqlite3.IntegrityError):
            return error
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return QueueDiskFullError(str(self._path))
        return QueueFileError(str(self._path), str(error))


def _values(row: Row) -> tuple[object, ...]:
    message = row.message
    return (
        message.priority,
        message.seq,
        message.id.node,
        message.id.boot,
        message.id.seq,
        message.topic,
        row.crc,
        message.payload,
        row.born_ms,
    )


def _row(values: tuple[int, int, str, str, int, str, int, bytes, int | None]) -> Row:
    priority, seq, node, boot, origin_seq, topic, crc, payload, born_ms = values
    message_id = MessageId(node, boot, origin_seq)
    message = Message(seq, message_id, priority, topic, payload, seconds_of(born_ms))
    return Row(message, crc, born_ms)


def seconds_of(born_ms: int | None) -> float | None:
    """A birth as a message tells it."""
    return None if born_ms is None else born_ms / 1000
