"""Storage of the durable queue in SQLite: rows with checksums, counters, statements."""

import logging
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from edge_agent.queue.base import (
    ROW_OVERHEAD_BYTES,
    QueueDiskFullError,
    QueuedMessage,
    QueueFileError,
    cost_bytes,
)
from edge_agent.queue.schema import decode_text
from edge_agent.queue.shared_queue import KnownIds, NodeBytes
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

MAX_SEQ = 2**53
"""No node ever puts as many messages."""

INVALID_CRC = -1
"""Matches no message: CRC-32 is not negative."""

_TYPES = (int, int, str, str, int, str, int, bytes)

RowHeader = tuple[int, int, str, str, int, str]
"""Priority, sequence number, id and topic, in the order of the columns."""


def row_checksum(head: RowHeader, payload: bytes) -> int:
    """CRC-32 of a message with its header."""
    priority, seq, node, boot, origin_seq, topic = head
    text = f"{priority} {seq} {node} {boot} {origin_seq} {topic}"
    return crc32(text.encode("utf-8", "surrogateescape"), crc32(payload))


def matches_checksum(crc: int, head: RowHeader, payload: bytes) -> bool:
    """Whether a message matches its checksum."""
    # Earlier versions stored the checksum of the payload alone.
    return crc == row_checksum(head, payload) or crc == crc32(payload)


def has_column_types(values: Sequence[Any]) -> bool:
    """Whether the values of a row have the types of the columns."""
    return tuple(map(type, values[: len(_TYPES)])) == _TYPES


def damaged_placeholder(values: Sequence[Any]) -> Sequence[Any]:
    """A placeholder for a row whose columns have the wrong types.

    Its checksum never matches; it is the stored one where possible.
    """
    crc = values[6] if type(values[6]) is int and values[6] else INVALID_CRC
    return (*values[:2], "", "", 0, "", crc, b"", None)


LARGE_BYTES = 4096
"""Messages with a larger payload are not cached."""


class QueueRow(NamedTuple):
    """A message as stored: the columns in the file's order.

    Attributes:
        priority: On the ladder.
        seq: Sequence number in this queue.
        node: Node of the message id.
        boot: Boot of the message id.
        origin_seq: Sequence number of the message id.
        topic: Topic on which the uplink publishes it.
        crc: Checksum, computed when the message was put.
        payload: As encoded.
        born_ms: Time of the put on the queue's clock; None without a clock.
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
    def message(self) -> QueuedMessage:
        """The row as a `QueuedMessage`."""
        return QueuedMessage(
            self.seq,
            MessageId(self.node, self.boot, self.origin_seq),
            self.priority,
            self.topic,
            self.payload,
            None if self.born_ms is None else self.born_ms / 1000,
        )

    def with_checksum(self) -> "QueueRow":
        """The row with a checksum computed from its present values."""
        return self._replace(crc=row_checksum(self[:6], self.payload))

    @property
    def is_intact(self) -> bool:
        """Whether the message matches its checksum."""
        return matches_checksum(self.crc, self[:6], self.payload)

    @property
    def cost_bytes(self) -> int:
        """Bytes that it takes from the budget."""
        return cost_bytes(self.topic, self.payload)


def row_from_values(values: tuple[Any, ...]) -> QueueRow:
    """A row as read, or a placeholder when its values have the wrong types."""
    return QueueRow._make(
        values if has_column_types(values) else damaged_placeholder(values)
    )


def total_cost_bytes(rows: Collection[QueueRow]) -> int:
    """Bytes that messages take from the budget together."""
    # Inlined for speed: called for every message put or acknowledged.
    sizes = [
        len(row.topic.encode(errors="surrogateescape")) + len(row.payload)
        for row in rows
    ]
    return sum(sizes) + ROW_OVERHEAD_BYTES * len(sizes)


def group_by_priority(rows: Iterable[QueueRow]) -> dict[int, list[QueueRow]]:
    """Messages of each priority, in the order given."""
    groups: dict[int, list[QueueRow]] = {}
    for row in rows:
        group = groups.get(row.priority)
        if group is None:
            groups[row.priority] = [row]
        else:
            group.append(row)
    return groups


DROPPED_FULL = "full"
DROPPED_THINNED = "thinned"
DROPPED_EXPIRED = "expired"
DROPPED_DAMAGED = "damaged"
DROPPED_PURGED = "purged"
DROP_REASONS = (
    *(DROPPED_FULL, DROPPED_THINNED, DROPPED_EXPIRED),
    *(DROPPED_DAMAGED, DROPPED_PURGED),
)
"""Every reason that is counted."""

COUNTER_COLUMNS = ("rows", "bytes", "put", "acked", "dropped", "duplicates")
_ROWS, _BYTES, _PUT, _ACKED, _DROPPED, _DUPLICATES = range(len(COUNTER_COLUMNS))


class CounterDeltas:
    """Changes of the counters that are not on disk yet.

    Attributes:
        drop_reasons: Drops by priority and reason.
    """

    def __init__(self) -> None:
        self.drop_reasons: Counter[tuple[int, str]] = Counter()
        self._by: dict[int, list[int]] = {}

    def copy(self) -> "CounterDeltas":
        """An independent copy."""
        other = CounterDeltas()
        other.drop_reasons.update(self.drop_reasons)
        other._by = {priority: list(by) for priority, by in self._by.items()}
        return other

    def changed_rows(self) -> Iterator[tuple[int, list[int]]]:
        """Changed priorities with their deltas, in the order of `COUNTER_COLUMNS`."""
        return ((priority, by) for priority, by in self._by.items() if any(by))

    def add_put(self, rows: Iterable[QueueRow]) -> None:
        """Count stored messages."""
        for priority, group in group_by_priority(rows).items():
            by = self._of(priority)
            by[_ROWS] += len(group)
            by[_BYTES] += total_cost_bytes(group)
            by[_PUT] += len(group)

    def add_acked(self, rows: Iterable[QueueRow]) -> None:
        """Count acknowledged messages."""
        for priority, group in group_by_priority(rows).items():
            by = self._of(priority)
            by[_ROWS] -= len(group)
            by[_BYTES] -= total_cost_bytes(group)
            by[_ACKED] += len(group)

    def add_dropped(self, priority: int, cost_bytes: int, reason: str) -> None:
        """Count a dropped message and its size."""
        self.add_stored(priority, -1, -cost_bytes)
        self._of(priority)[_DROPPED] += 1
        self.drop_reasons[priority, reason] += 1

    def add_duplicate(self, priority: int) -> None:
        """Count a rejected duplicate."""
        self._of(priority)[_DUPLICATES] += 1

    def add_stored(self, priority: int, rows: int, cost_bytes: int) -> None:
        """Add to the number and size of stored messages only."""
        by = self._of(priority)
        by[_ROWS] += rows
        by[_BYTES] += cost_bytes

    def get(self, priority: int, column: str) -> int:
        """Delta of one counter."""
        by = self._by.get(priority)
        return 0 if by is None else by[COUNTER_COLUMNS.index(column)]

    def _of(self, priority: int) -> list[int]:
        by = self._by.get(priority)
        if by is None:
            by = self._by[priority] = [0] * len(COUNTER_COLUMNS)
        return by


_COLUMNS = "priority, seq, node, boot, origin_seq, topic, crc, payload, born_ms"
_BORN_MS = "CASE typeof(born_ms) WHEN 'integer' THEN born_ms END"  # has no checksum
_READ = _COLUMNS.replace("born_ms", _BORN_MS)
_PLACES = f"message ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE = "message WHERE priority = ? AND seq = ?"
_INSERT = f"INSERT INTO {_PLACES}"
_DISCARD = f"DELETE FROM {_ONE}"  # noqa: S608 - constants only, here and below
_OLDEST = (
    f"SELECT {_READ} FROM message "  # noqa: S608
    "WHERE priority = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?"
)
_NEWEST = _OLDEST.replace("ORDER BY seq", "ORDER BY seq DESC")
_COST = f"length(CAST(topic AS BLOB)) + length(payload) + {ROW_OVERHEAD_BYTES}"

_TALLY = (
    f"UPDATE tally SET {', '.join(f'{name} = {name} + ?' for name in COUNTER_COLUMNS)} "  # noqa: S608
    "WHERE priority = ?"
)

PAGE_BYTES = 4096

RESERVE_BYTES = 256 * 1024
"""Size of the file that is deleted on a full disk (`SpaceReserve`)."""


class Store:
    """SQL statements on a queue file, for one process.

    Args:
        path: The file, for error messages.
        db: Its connection.

    Attributes:
        known_ids: Foreign ids that were stored.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        self.known_ids = KnownIds(db)
        # Cached values are valid until another process writes to the file.
        self._seen_version = -1
        self._values: dict[str, str | None] = {}
        self._held: dict[int, int] = {}
        self._node_bytes: NodeBytes | None = None
        self._counts_nodes = False
        self._grown_bytes = 0
        self._is_checkpoint_failing = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that is on disk when the context ends.

        Raises:
            QueueDiskFullError: The disk is full.
            QueueFileError: The file cannot be used.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._forget_stale()
            if self._counts_nodes:
                self._loaded_node_bytes().begin()
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            self._values.clear()
            self._held.clear()
            if self._node_bytes is not None and not self._node_bytes.undo():
                self._node_bytes = None
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise self._translated(error) from error
            raise

    def insert(self, rows: Collection[QueueRow]) -> None:
        """Store messages, in a transaction."""
        if rows:
            # sqlite3 binds plain tuples faster than named ones.
            self._db.executemany(_INSERT, map(tuple, rows))
            self._grown_bytes += total_cost_bytes(rows)
            if self._node_bytes is not None:
                for row in rows:
                    self._node_bytes.add(row.node, row.priority, row.cost_bytes)

    def insert_if_absent(self, row: QueueRow) -> bool:
        """Store a recovered message; False when its key exists."""
        return self._db.execute(f"INSERT OR IGNORE INTO {_PLACES}", row).rowcount == 1

    def delete_rows(self, rows: Sequence[QueueRow]) -> list[QueueRow]:
        """Delete messages, in a transaction; return those that did not exist."""
        if not rows:
            return []
        self._db.execute("SAVEPOINT gone")
        missing: list[QueueRow] = []
        found = self._db.executemany(_DISCARD, [row[:2] for row in rows]).rowcount
        if found != len(rows):  # repeat one by one to find the missing ones
            self._db.execute("ROLLBACK TO gone")
            delete = self._db.execute
            missing = [r for r in rows if delete(_DISCARD, r[:2]).rowcount != 1]
        self._db.execute("RELEASE gone")
        if self._node_bytes is not None:
            for row in rows if not missing else set(rows).difference(missing):
                self._node_bytes.add(row.node, row.priority, -row.cost_bytes)
        return missing

    def delete(self, priority: int, seq: int) -> int | None:
        """Delete a message; return its size, or None when it did not exist."""
        row = self._db.execute(
            f"DELETE FROM {_ONE} RETURNING {_COST}, node",  # noqa: S608
            (priority, seq),
        ).fetchone()
        if row is not None and self._node_bytes is not None:
            self._node_bytes.add(row[1], priority, -int(row[0]))
        return None if row is None else int(row[0])

    def read_row(self, priority: int, seq: int) -> QueueRow | None:
        """One message, or None."""
        with self._reading():
            row = self._db.execute(
                f"SELECT {_READ} FROM {_ONE}",  # noqa: S608
                (priority, seq),
            ).fetchone()
        return None if row is None else row_from_values(row)

    def read_between(
        self, priority: int, after: int, before: int | None, limit: int, newest: bool
    ) -> list[QueueRow]:
        """Messages of a priority between two sequence numbers, from one end.

        The list ends with the first large message, so that few are in memory.
        """
        sql = _NEWEST if newest else _OLDEST
        values = (priority, after, before or 2**63 - 1, limit)
        with self._reading():
            try:
                # Decoding each text in Python would take a third of the time.
                self._db.text_factory = str
                rows = _until_large(self._db.execute(sql, values))
            except sqlite3.OperationalError:  # for instance, a text is not UTF-8
                self._db.text_factory = decode_text
                rows = _until_large(self._db.execute(sql, values))
            finally:
                self._db.text_factory = decode_text
            if any(row.priority != priority for row in rows):
                raise sqlite3.DatabaseError("a message has the key of another")
        return rows

    def data_version(self) -> int:
        """A number that changes when another process has written to the file."""
        try:
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def read_page(self, priority: int, after: int, limit: int) -> list[QueueRow]:
        """The oldest messages of a priority after a sequence number."""
        with self._reading():
            rows = self._db.execute(
                f"SELECT {_READ} FROM message "  # noqa: S608
                "WHERE priority = ? AND seq > ? ORDER BY seq LIMIT ?",
                (priority, after, limit),
            ).fetchall()
        return [row_from_values(row) for row in rows]

    def read_seqs(self, priority: int, after: int, to: int, limit: int) -> list[int]:
        """The lowest sequence numbers of a priority in a range."""
        rows = self._db.execute(
            "SELECT seq FROM message WHERE priority = ? AND seq > ? AND seq <= ? "
            "ORDER BY seq LIMIT ?",
            (priority, after, to, limit),
        ).fetchall()
        return [int(row[0]) for row in rows]

    def read_oldest(self, priority: int, limit: int) -> list[tuple[int, int | None]]:
        """Sequence number and time of put of the oldest messages of a priority."""
        return self._db.execute(
            f"SELECT seq, {_BORN_MS} FROM message WHERE priority = ? "  # noqa: S608
            "ORDER BY seq LIMIT ?",
            (priority, limit),
        ).fetchall()

    def seq_bounds(self, priority: int) -> tuple[int, int]:
        """Lowest and highest sequence number of a priority; zeros when it is empty."""
        low = self.read_seqs(priority, -1, 2**63 - 1, 1)
        high = self._db.execute(
            "SELECT seq FROM message WHERE priority = ? ORDER BY seq DESC LIMIT 1",
            (priority,),
        ).fetchone()
        return (low[0], int(high[0])) if low else (0, 0)

    def contains(self, message_id: MessageId) -> bool:
        """Whether a message with an id assigned by this queue is stored."""
        return any(
            row is not None and row.message.id == message_id
            for row in (self.read_row(p, message_id.seq) for p in LADDER.descending)
        )

    def get_state(self, name: str) -> str | None:
        """Stored state value, or None."""
        if not self._db.in_transaction:
            self._forget_stale()
        if name not in self._values:
            with self._reading():
                row = self._db.execute(
                    "SELECT value FROM state WHERE name = ?", (name,)
                ).fetchone()
            self._values[name] = None if row is None else str(row[0])
        return self._values[name]

    def get_int(self, name: str, default: int) -> int:
        """Stored state value as an integer; the default when it is none."""
        value = self.get_state(name)
        try:
            return default if value is None else int(value)
        except ValueError:
            log.error("state %s of %s is damaged: %a", name, self._path, value)  # noqa: TRY400
            return default

    def highest_seq(self) -> int:
        """The highest sequence number of a stored message; 0 for none.

        Numbers that only a bit error can make are left out.
        """
        query = "SELECT max(seq) FROM message WHERE priority = ? AND seq < ?"
        with self._reading():
            found = [
                self._db.execute(query, (priority, MAX_SEQ)).fetchone()[0]
                for priority in LADDER.descending
            ]
        return max((seq for seq in found if seq is not None), default=0)

    def set_state(self, values: Mapping[str, str]) -> None:
        """Store state values, in a transaction."""
        if values:
            self._db.executemany(
                "INSERT OR REPLACE INTO state VALUES (?, ?)", values.items()
            )
            self._values.update(values)

    def read_counters(self) -> dict[int, dict[str, int]]:
        """Counters by priority, most urgent first."""
        with self._reading():
            rows = self._db.execute(
                f"SELECT priority, {', '.join(COUNTER_COLUMNS)} FROM tally "  # noqa: S608
                "ORDER BY priority DESC"
            ).fetchall()
        return {
            row[0]: dict(zip(COUNTER_COLUMNS, row[1:], strict=True)) for row in rows
        }

    def read_drop_reasons(self) -> dict[tuple[int, str], int]:
        """Number of drops by priority and reason."""
        with self._reading():
            rows = self._db.execute("SELECT priority, reason, count FROM dropped")
            return {(row[0], row[1]): row[2] for row in rows.fetchall()}

    def stored_bytes(self) -> dict[int, int]:
        """Stored bytes by priority; cached until another process writes."""
        if not self._db.in_transaction:
            self._forget_stale()
        if not self._held:
            self._held = {p: row["bytes"] for p, row in self.read_counters().items()}
        return dict(self._held)

    def node_bytes(self, node: str, lowest_priority: int) -> int:
        """Stored bytes of a node from a priority upwards, in a transaction.

        The first call reads the headers of all messages.
        """
        self._counts_nodes = True
        return self._loaded_node_bytes().held_bytes(node, lowest_priority)

    def _loaded_node_bytes(self) -> NodeBytes:
        if self._node_bytes is None:
            query = f"SELECT node, priority, sum({_COST}) FROM message GROUP BY 1, 2"  # noqa: S608
            self._node_bytes = NodeBytes(self._db.execute(query))
        return self._node_bytes

    def apply_deltas(self, changes: CounterDeltas) -> None:
        """Write counter deltas, in a transaction."""
        rows = list(changes.changed_rows())
        self._db.executemany(_TALLY, [(*by, p) for p, by in rows])
        for priority, by in rows if self._held else ():
            self._held[priority] += by[_BYTES]
        if changes.drop_reasons:
            self._db.executemany(
                "INSERT INTO dropped VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(*key, count) for key, count in changes.drop_reasons.items()],
            )

    def limit_growth(self) -> None:
        """Checkpoint the log before it would grow the file by more than the reserve.

        On a full disk, the log can then always be checkpointed and reused.
        """
        if self._grown_bytes < RESERVE_BYTES // 8:
            return
        self._grown_bytes = 0
        with self._logging_errors():
            if self.growth_bytes() > RESERVE_BYTES // 2:
                self._checkpoint("PASSIVE")

    def growth_bytes(self) -> int:
        """Bytes by which a checkpoint would grow the file."""
        with self._reading():
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        return int(pages) * PAGE_BYTES - self._path.stat().st_size

    def restart_wal(self) -> None:
        """Checkpoint, so that the next commit overwrites the log from its start."""
        with self._logging_errors():
            self._checkpoint("RESTART")

    def _checkpoint(self, mode: str) -> None:
        self._db.execute(f"PRAGMA wal_checkpoint({mode})")
        self._is_checkpoint_failing = False

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        """Log the first of several failed checkpoints; on a full disk, none."""
        try:
            yield
        # The log remains valid without a checkpoint; the commit reports the error.
        except (OSError, sqlite3.DatabaseError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                return
            if not self._is_checkpoint_failing:
                log.warning("%s has no checkpoint: %s", self._path, error)
            self._is_checkpoint_failing = True

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _forget_stale(self) -> None:
        version = self.data_version()
        if version != self._seen_version:
            self._seen_version = version
            self._values.clear()
            self._held.clear()
            self._node_bytes = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            # `transaction` translates the error and rolls back.
            if self._db.in_transaction:
                raise
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.DatabaseError) -> Exception:
        if isinstance(error, sqlite3.IntegrityError):
            return error
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return QueueDiskFullError(str(self._path))
        return QueueFileError(str(self._path), str(error))


def _until_large(cursor: sqlite3.Cursor) -> list[QueueRow]:
    rows: list[QueueRow] = []
    for values in cursor:
        row = row_from_values(values)
        rows.append(row)
        if len(row.payload) > LARGE_BYTES:
            break
    return rows
