"""The queue's rows: every statement that the durable queue sends to SQLite.

A message as the queue's table holds it.

Whether a stored message is what was put: all of it, not its payload alone.

Counts of a queue: what a transaction or a moment in memory changed.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from edge_agent.queue.base import (
    ROW_OVERHEAD_BYTES,
    Message,
    QueueDiskFullError,
    QueueFileError,
    cost_bytes,
)
from edge_agent.queue.schema import tolerant_text
from edge_agent.queue.space_reserve import RESERVE_BYTES
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

NEVER = -1
"""No checksum is negative."""

_TYPES = (int, int, str, str, int, str, int, bytes)


Head = tuple[int, int, str, str, int, str]
"""Priority, number, id and topic, in the file's order of columns."""


def checksum(head: Head, payload: bytes) -> int:
    """Checksum of everything in a message that is sent or that says how."""
    priority, seq, node, boot, origin_seq, topic = head
    words = f"{priority} {seq} {node} {boot} {origin_seq} {topic}"
    return crc32(words.encode("utf-8", "surrogateescape"), crc32(payload))


def matches(crc: int, head: Head, payload: bytes) -> bool:
    """Whether a message matches its checksum."""
    # Files of earlier versions have one of the payload alone.
    return crc == checksum(head, payload) or crc == crc32(payload)


def is_typed(values: Sequence[Any]) -> bool:
    """Whether a row's values are of the types that were stored."""
    return tuple(map(type, values[: len(_TYPES)])) == _TYPES


def emptied(values: Sequence[Any]) -> Sequence[Any]:
    """A row that is not, so that nothing breaks on it and its checksum fails.

    Damage can turn a text into bytes. The checksum stays, to remove the row by.
    """
    crc = values[6] if type(values[6]) is int and values[6] else NEVER
    return (*values[:2], "", "", 0, "", crc, b"", None)


LARGE_BYTES = 4096
"""A payload above it is not kept in memory beside many others."""


class Row(NamedTuple):
    """The columns in the file's order.

    Attributes:
        priority: On the ladder.
        seq: Place in this queue.
        node: Of the message's id.
        boot: Of the message's id.
        origin_seq: Of the message's id.
        topic: Where the uplink publishes it.
        crc: Checksum of the message, from when it was put.
        payload: As encoded.
        born_ms: When it was put, on the queue's clock; None when it had none.
    """

    priority: int
    seq: int
    node: str
    boot: str
    origin_seq: int
    topic: str
    crc: int
    payload: bytes
    born_ms: int | None = None

    @property
    def message(self) -> Message:
        """What the queue's users see of it."""
        return Message(
            self.seq,
            MessageId(self.node, self.boot, self.origin_seq),
            self.priority,
            self.topic,
            self.payload,
            None if self.born_ms is None else self.born_ms / 1000,
        )

    def sealed(self) -> "Row":
        """With the checksum of what it is now."""
        return self._replace(crc=checksum(self[:6], self.payload))

    @property
    def is_sound(self) -> bool:
        """Whether the message still matches its checksum."""
        return matches(self.crc, self[:6], self.payload)

    @property
    def cost(self) -> int:
        """Bytes of the budget."""
        return cost_bytes(self.topic, self.payload)


def row_of(values: tuple[Any, ...]) -> Row:
    """A row as read; one whose values are of other types is not sound."""
    return Row._make(values if is_typed(values) else emptied(values))


def cost_of(rows: Collection[Row]) -> int:
    """Bytes of the budget that messages take together."""
    # One expression: a put and an ack do this for every message.
    sizes = [
        len(row.topic.encode(errors="surrogateescape")) + len(row.payload)
        for row in rows
    ]
    return sum(sizes) + ROW_OVERHEAD_BYTES * len(sizes)


def by_priority(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Messages of each priority, in the order given."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        group = groups.get(row.priority)
        if group is None:
            groups[row.priority] = [row]
        else:
            group.append(row)
    return groups


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


_COLUMNS = "priority, seq, node, boot, origin_seq, topic, crc, payload, born_ms"
_PLACES = f"message ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE = "message WHERE priority = ? AND seq = ?"
_INSERT = f"INSERT INTO {_PLACES}"
_DISCARD = f"DELETE FROM {_ONE}"  # noqa: S608 - our words, here and below
_OLDEST = (
    f"SELECT {_COLUMNS} FROM message "  # noqa: S608
    "WHERE priority = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?"
)
_NEWEST = _OLDEST.replace("ORDER BY seq", "ORDER BY seq DESC")
_COST = f"length(CAST(topic AS BLOB)) + length(payload) + {ROW_OVERHEAD_BYTES}"

_TALLY = (
    f"UPDATE tally SET {', '.join(f'{name} = {name} + ?' for name in COLUMNS)} "  # noqa: S608 - our words
    "WHERE priority = ?"
)


PAGE_BYTES = 4096


class Store:
    """A queue file for one process.

    Args:
        path: The file, for error messages.
        db: Its connection.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        # What was read and may be believed until another process writes.
        self._seen_version = -1
        self._values: dict[str, str | None] = {}
        self._held: dict[int, int] = {}
        self._grown_bytes = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on the disk when it ends.

        Raises:
            QueueDiskFullError: The disk is full.
            QueueFileError: The file cannot be used.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_stale()
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            self._seen_version = -1
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise self._translated(error) from error
            raise

    def insert(self, rows: Collection[Row], cost: int) -> None:
        """Store messages that cost so much together."""
        if rows:
            # SQLite binds plain tuples faster than named ones.
            self._db.executemany(_INSERT, map(tuple, rows))
            self._grown_bytes += cost

    def restore(self, row: Row) -> bool:
        """Store a salvaged message; False when its place is taken."""
        cursor = self._db.execute(f"INSERT OR IGNORE INTO {_PLACES}", row)
        return cursor.rowcount == 1

    def discard(self, rows: Sequence[Row]) -> list[Row]:
        """Remove messages, in a transaction; those that were not there."""
        if not rows:
            return []
        self._db.execute("SAVEPOINT gone")
        places = [row[:2] for row in rows]
        found = self._db.executemany(_DISCARD, places).rowcount
        if found != len(rows):  # which of them? one by one, at twice the price
            self._db.execute("ROLLBACK TO gone")
            delete = self._db.execute
            missing = [r for r in rows if delete(_DISCARD, r[:2]).rowcount != 1]
        else:
            missing = []
        self._db.execute("RELEASE gone")
        return missing

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
        return None if row is None else row_of(row)

    def between(
        self, priority: int, after: int, before: int | None, limit: int, newest: bool
    ) -> list[Row]:
        """Messages of a priority between two numbers, from one end.

        A large one ends them: it is not read before its turn comes.
        """
        sql = _NEWEST if newest else _OLDEST
        place = (priority, after, before or 2**63 - 1, limit)
        with self._reading():
            try:
                # A function of ours for every text would take a third of the time.
                self._db.text_factory = str
                rows = _until_large(self._db.execute(sql, place))
            except sqlite3.OperationalError:  # among others: a text is not UTF-8
                self._db.text_factory = tolerant_text
                rows = _until_large(self._db.execute(sql, place))
            finally:
                self._db.text_factory = tolerant_text
            if any(row.priority != priority for row in rows):
                raise sqlite3.DatabaseError("a message has the key of another")
        return rows

    def version(self) -> int:
        """Changes whenever another process has written to the file."""
        try:
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def page(self, priority: int, after: int, limit: int) -> list[Row]:
        """The oldest messages of a priority above a number: one short read."""
        with self._reading():
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM message "  # noqa: S608 - our words
                "WHERE priority = ? AND seq > ? ORDER BY seq LIMIT ?",
                (priority, after, limit),
            ).fetchall()
        return [row_of(row) for row in rows]

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
        if not self._db.in_transaction:
            self._forget_stale()
        if name not in self._values:
            with self._reading():
                row = self._db.execute(
                    "SELECT value FROM state WHERE name = ?", (name,)
                ).fetchone()
            self._values[name] = None if row is None else str(row[0])
        return self._values[name]

    def remember(self, values: Mapping[str, str]) -> None:
        """Remember values."""
        if values:
            self._db.executemany(
                "INSERT OR REPLACE INTO state VALUES (?, ?)", values.items()
            )
            self._values.update(values)

    def tally(self) -> dict[int, dict[str, int]]:
        """The tally's rows by priority, most urgent first."""
        with self._reading():
            rows = self._db.execute(
                f"SELECT priority, {', '.join(COLUMNS)} FROM tally "  # noqa: S608 - our words
                "ORDER BY priority DESC"
            ).fetchall()
        return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in rows}

    def reasons(self) -> dict[tuple[int, str], int]:
        """Drops by priority and reason."""
        with self._reading():
            rows = self._db.execute("SELECT priority, reason, count FROM dropped")
            return {(row[0], row[1]): row[2] for row in rows.fetchall()}

    def held(self) -> dict[int, int]:
        """Bytes that each priority holds, read again when others have written."""
        if not self._db.in_transaction:
            self._forget_stale()
        if not self._held:
            self._held = {p: row["bytes"] for p, row in self.tally().items()}
        return dict(self._held)

    def apply(self, changes: Changes) -> None:
        """Write changes of the tally."""
        rows = list(changes.rows())
        self._db.executemany(_TALLY, [(*by, p) for p, by in rows])
        for priority, by in rows if self._held else ():
            self._held[priority] += by[_BYTES]
        if changes.reasons:
            self._db.executemany(
                "INSERT INTO dropped VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(*place, by) for place, by in changes.reasons.items()],
            )

    def bound_growth(self) -> None:
        """Move the log into the file before it holds more growth than the reserve.

        On a full disk the log can then always be moved, and be used again.
        """
        if self._grown_bytes < RESERVE_BYTES // 8:
            return
        self._grown_bytes = 0
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

    def _forget_stale(self) -> None:
        version = self.version()
        if version != self._seen_version:
            self._seen_version = version
            self._values.clear()
            self._held.clear()

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


def _until_large(cursor: sqlite3.Cursor) -> list[Row]:
    rows: list[Row] = []
    for values in cursor:
        row = row_of(values)
        rows.append(row)
        if len(row.payload) > LARGE_BYTES:
            break
    return rows
