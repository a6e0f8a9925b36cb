"""Queues to compare: ours, a bare sqlite3 loop with the same durability, and peers.

Every arm puts a batch, takes as many messages without removing them, and acknowledges
them. The peers are not in our lock file; they are imported on demand.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    COMMIT_PUTS_DEFER_ACKS,
    Durability,
    MessageDraft,
    QueuedMessage,
)
from edge_agent.queue.sqlite_queue import SqliteQueue

TOPIC = "/forward/3/1/2/0/1/3/2"
MAX_BYTES = 10**10
LEVELS = 3
PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "wal_autocheckpoint=1000",
    "journal_size_limit=4194304",
)


class Arm(Protocol):
    """Interface of a queue under test."""

    def put(self, bodies: Sequence[bytes]) -> None:
        """Store a batch."""

    def take(self, count: int) -> Sequence[Any]:
        """Read the next messages without removing them."""

    def ack(self, taken: Sequence[Any]) -> None:
        """Remove delivered messages."""

    def set_bulk_mode(self, is_on: bool) -> None:
        """Turn fsync off while a backlog is put, if that would take too long."""

    def close(self) -> None:
        """Write everything and close."""


class Ours:
    """Yamamori's queue."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._queue = SqliteQueue(
            folder / "q.db", "n1", "boot", MAX_BYTES, durability=durability
        )

    def put(self, bodies: Sequence[bytes]) -> None:
        """One call per batch, with mixed priorities."""
        self._queue.put([
            MessageDraft(1 + at % LEVELS, TOPIC, lambda _id, b=body: b)  # type: ignore[misc]
            for at, body in enumerate(bodies)
        ])

    def take(self, count: int) -> Sequence[QueuedMessage]:
        """Lease the messages."""
        return self._queue.lease(count)

    def ack(self, taken: Sequence[QueuedMessage]) -> None:
        """Acknowledge."""
        self._queue.ack([message.seq for message in taken])

    def set_bulk_mode(self, is_on: bool) -> None:
        """Do nothing: the queue is fast enough."""

    def close(self) -> None:
        """Close."""
        self._queue.close()


class OursRoutine(Ours):
    """Yamamori's queue with its write window, for routine messages."""

    def put(self, bodies: Sequence[bytes]) -> None:
        """One call per message, as the sampler does."""
        for body in bodies:
            self._queue.put([MessageDraft(1, TOPIC, lambda _id, b=body: b)])  # type: ignore[misc]


class Bare:
    """sqlite3 with the same columns, key, batches and durability."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(folder / "q.db", isolation_level=None)
        for pragma in PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("""
            CREATE TABLE IF NOT EXISTS message (
                priority INTEGER NOT NULL, seq INTEGER NOT NULL,
                node TEXT NOT NULL, boot TEXT NOT NULL, origin_seq INTEGER NOT NULL,
                topic TEXT NOT NULL, crc INTEGER NOT NULL, payload BLOB NOT NULL,
                born_ms INTEGER, PRIMARY KEY (priority, seq)
            ) WITHOUT ROWID""")
        self._next = 1 + max(
            self._db.execute(
                "SELECT ifnull(max(seq), 0) FROM message WHERE priority = ?", (level,)
            ).fetchone()[0]
            for level in range(1, LEVELS + 1)
        )

    def put(self, bodies: Sequence[bytes]) -> None:
        """One commit per batch."""
        self._db.execute("BEGIN IMMEDIATE")
        self._insert(bodies)
        self._db.execute("COMMIT")

    def _insert(self, bodies: Sequence[bytes]) -> None:
        first = self._next
        self._next += len(bodies)
        self._db.executemany(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (1 + at % LEVELS, seq, "n1", "00c0ffee", seq, TOPIC, crc32(b), b, None)
                for at, (seq, b) in enumerate(zip(range(first, self._next), bodies))  # noqa: B905
            ],
        )

    def take(self, count: int) -> Sequence[tuple[Any, ...]]:
        """The most urgent first, then the oldest; writes nothing."""
        rows: list[tuple[Any, ...]] = []
        for level in range(LEVELS, 0, -1):
            rows += self._db.execute(
                "SELECT * FROM message WHERE priority = ? ORDER BY seq LIMIT ?",
                (level, count - len(rows)),
            )
            if len(rows) == count:
                break
        return rows

    def ack(self, taken: Sequence[tuple[Any, ...]]) -> None:
        """One commit per batch."""
        self._db.execute("BEGIN IMMEDIATE")
        self._delete(taken)
        self._db.execute("COMMIT")

    def _delete(self, taken: Sequence[tuple[Any, ...]]) -> None:
        self._db.executemany(
            "DELETE FROM message WHERE priority = ? AND seq = ?",
            [row[:2] for row in taken],
        )

    def set_bulk_mode(self, is_on: bool) -> None:
        """Do nothing: the queue is fast enough."""

    def close(self) -> None:
        """Close."""
        self._db.close()


class BareOneCommit(Bare):
    """The same, but acknowledged rows are deleted in the commit of the next put."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sent: Sequence[tuple[Any, ...]] = ()

    def put(self, bodies: Sequence[bytes]) -> None:
        """One commit for both."""
        self._db.execute("BEGIN IMMEDIATE")
        self._delete(self._sent)
        self._insert(bodies)
        self._db.execute("COMMIT")
        self._sent = ()

    def ack(self, taken: Sequence[tuple[Any, ...]]) -> None:
        """Delete with the next put."""
        self._sent = taken


class PersistAck:
    """persist-queue's SQLiteAckQueue: every operation is a commit.

    Its journal mode is WAL and its `synchronous` is SQLite's default, FULL.
    """

    def __init__(self, folder: Path) -> None:
        peer = import_module("persistqueue")
        self._queue = peer.SQLiteAckQueue(str(folder), auto_commit=True)
        self._acked = 0

    def put(self, bodies: Sequence[bytes]) -> None:
        """One call per message: it has no batches."""
        for body in bodies:
            self._queue.put(body)

    def take(self, count: int) -> Sequence[dict[str, Any]]:
        """One commit per message marks it as taken."""
        return [self._queue.get(block=False, raw=True) for _ in range(count)]

    def ack(self, taken: Sequence[dict[str, Any]]) -> None:
        """One commit per message; acknowledged rows are deleted from time to time."""
        for item in taken:
            self._queue.ack(id=item["pqid"])
        self._acked += len(taken)
        if self._acked >= 1000:  # noqa: PLR2004 - maximum of one deletion
            self._queue.clear_acked_data(max_delete=1000, keep_latest=0)
            self._acked = 0

    def set_bulk_mode(self, is_on: bool) -> None:
        """Turn fsync off or on: it has no batches."""
        level = "OFF" if is_on else "FULL"
        self._queue._putter.execute(f"PRAGMA synchronous={level}")  # noqa: SLF001 - no other way

    def close(self) -> None:
        """Close."""
        self._queue.close()


class PersistFifo:
    """persist-queue's FIFOSQLiteQueue; `task_done` deletes what was taken, at once."""

    def __init__(self, folder: Path) -> None:
        peer = import_module("persistqueue")
        self._queue = peer.FIFOSQLiteQueue(str(folder), auto_commit=False)

    def put(self, bodies: Sequence[bytes]) -> None:
        """One call per message: it has no batches."""
        for body in bodies:
            self._queue.put(body)

    def take(self, count: int) -> Sequence[bytes]:
        """Writes nothing."""
        return [self._queue.get(block=False) for _ in range(count)]

    def ack(self, taken: Sequence[bytes]) -> None:
        """Delete everything that was taken."""
        self._queue.task_done()

    def set_bulk_mode(self, is_on: bool) -> None:
        """Turn fsync off or on: it has no batches."""
        level = "OFF" if is_on else "FULL"
        self._queue._putter.execute(f"PRAGMA synchronous={level}")  # noqa: SLF001 - no other way

    def close(self) -> None:
        """Close."""
        self._queue.close()


class Lite:
    """litequeue; by default its `synchronous` is NORMAL and each put is a commit.

    Its transactions allow putting and acknowledging in batches; each take is a commit.
    """

    def __init__(self, folder: Path, is_full: bool) -> None:
        peer = import_module("litequeue")
        self._queue = peer.LiteQueue(str(folder / "q.db"))
        if is_full:
            self._queue.conn.execute("PRAGMA synchronous=FULL")

    def put(self, bodies: Sequence[bytes]) -> None:
        """One transaction per batch; it stores text, and the bodies are ASCII."""
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body.decode("ascii"))

    def take(self, count: int) -> Sequence[Any]:
        """One commit per message locks it."""
        return [self._queue.pop() for _ in range(count)]

    def ack(self, taken: Sequence[Any]) -> None:
        """One commit marks and deletes them."""
        with self._queue.transaction():
            for message in taken:
                self._queue.done(message.message_id)
            self._queue.prune()

    def set_bulk_mode(self, is_on: bool) -> None:
        """Do nothing: the queue is fast enough."""

    def close(self) -> None:
        """Close."""
        self._queue.close()


@dataclass(frozen=True)
class ArmKind:
    """An arm and the facts needed to compare it.

    Attributes:
        open: Opens it in a folder.
        promise: Its durability, and its number of commits.
        like: The bare loop with the same commits, if there is one.
        is_peer: Whether it is a library that must be installed first.
    """

    open: Callable[[Path], Arm]
    promise: str
    like: str | None = None
    is_peer: bool = False


BARE, BARE_ONE = "bare sqlite3", "bare, one commit"
EACH_PUT, NEXT_PUT = "yamamori EVERY_PUT", "yamamori WITH_NEXT_PUT"

ARMS: dict[str, ArmKind] = {
    BARE: ArmKind(Bare, "FULL, batch in, batch out", BARE),
    BARE_ONE: ArmKind(BareOneCommit, "FULL, out with the next batch in", BARE_ONE),
    EACH_PUT: ArmKind(
        lambda folder: Ours(folder, COMMIT_EVERY_PUT), "FULL, batch in, batch out", BARE
    ),
    NEXT_PUT: ArmKind(
        lambda folder: Ours(folder, COMMIT_PUTS_DEFER_ACKS),
        "FULL, out with the next batch in, or after 0.5 s",
        BARE_ONE,
    ),
    "yamamori window": ArmKind(
        lambda folder: OursRoutine(folder, Durability()),
        "FULL, one by one, waiting in memory for 2 s or 50",
    ),
    "persist-queue ack": ArmKind(
        PersistAck, "FULL, one by one, put and get and ack", is_peer=True
    ),
    "persist-queue fifo": ArmKind(
        PersistFifo, "FULL, one by one in, batch out", is_peer=True
    ),
    "litequeue": ArmKind(
        lambda folder: Lite(folder, is_full=False),
        "NORMAL (no fsync), batch in, each locked, batch out",
        is_peer=True,
    ),
    "litequeue, FULL": ArmKind(
        lambda folder: Lite(folder, is_full=True),
        "FULL, batch in, each locked, batch out",
        is_peer=True,
    ),
}
