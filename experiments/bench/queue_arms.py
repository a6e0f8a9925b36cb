"""Queues side by side: ours, a bare loop with the same durability, and peers.

Every arm puts a batch, takes as many messages without removing them, and lets them
go. The peers are not in our lock file; they are imported when they are asked for.
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
MOST_BYTES = 10**10
LEVELS = 3
PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "wal_autocheckpoint=1000",
    "journal_size_limit=4194304",
)


class Arm(Protocol):
    """A queue as the experiment drives it."""

    def put(self, bodies: Sequence[bytes]) -> None:
        """Store a batch."""

    def take(self, count: int) -> Sequence[Any]:
        """Read the next messages without losing them."""

    def ack(self, taken: Sequence[Any]) -> None:
        """They are delivered."""

    def hurry(self, is_on: bool) -> None:
        """Wait for no disk while a backlog is made, when that would take for ever."""

    def close(self) -> None:
        """Write everything and close."""


class Ours:
    """Yamamori's queue."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._queue = SqliteQueue(
            folder / "q.db", "n1", "boot", MOST_BYTES, durability=durability
        )

    def put(self, bodies: Sequence[bytes]) -> None:
        """One call a batch, urgent and less urgent ones mixed."""
        self._queue.put([
            MessageDraft(1 + at % LEVELS, TOPIC, lambda _id, b=body: b)  # type: ignore[misc]
            for at, body in enumerate(bodies)
        ])

    def take(self, count: int) -> Sequence[QueuedMessage]:
        """Lease."""
        return self._queue.lease(count)

    def ack(self, taken: Sequence[QueuedMessage]) -> None:
        """Acknowledge."""
        self._queue.ack([message.seq for message in taken])

    def hurry(self, is_on: bool) -> None:
        """It is fast enough."""

    def close(self) -> None:
        """Close."""
        self._queue.close()


class OursRoutine(Ours):
    """Yamamori's queue with its window, fed with what may wait in it."""

    def put(self, bodies: Sequence[bytes]) -> None:
        """One call a message, as a sampler does."""
        for body in bodies:
            self._queue.put([MessageDraft(1, TOPIC, lambda _id, b=body: b)])  # type: ignore[misc]


class Bare:
    """What sqlite3 does with the same columns, key, batches and durability."""

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
        """One commit a batch."""
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
        """The most urgent, then the oldest; nothing is written."""
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
        """One commit a batch."""
        self._db.execute("BEGIN IMMEDIATE")
        self._delete(taken)
        self._db.execute("COMMIT")

    def _delete(self, taken: Sequence[tuple[Any, ...]]) -> None:
        self._db.executemany(
            "DELETE FROM message WHERE priority = ? AND seq = ?",
            [row[:2] for row in taken],
        )

    def hurry(self, is_on: bool) -> None:
        """It is fast enough."""

    def close(self) -> None:
        """Close."""
        self._db.close()


class BareAtOnce(Bare):
    """The same, but what was sent is deleted in the commit of the next put."""

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
        """Later."""
        self._sent = taken


class PersistAck:
    """persist-queue's SQLiteAckQueue: every step is a commit of its own.

    Its journal is WAL, its `synchronous` SQLite's default, FULL.
    """

    def __init__(self, folder: Path) -> None:
        peer = import_module("persistqueue")
        self._queue = peer.SQLiteAckQueue(str(folder), auto_commit=True)
        self._acked = 0

    def put(self, bodies: Sequence[bytes]) -> None:
        """It has no batch."""
        for body in bodies:
            self._queue.put(body)

    def take(self, count: int) -> Sequence[dict[str, Any]]:
        """Each is marked on the disk."""
        return [self._queue.get(block=False, raw=True) for _ in range(count)]

    def ack(self, taken: Sequence[dict[str, Any]]) -> None:
        """Each is marked, and now and then what was acknowledged is deleted."""
        for item in taken:
            self._queue.ack(id=item["pqid"])
        self._acked += len(taken)
        if self._acked >= 1000:  # noqa: PLR2004 - what it deletes at most
            self._queue.clear_acked_data(max_delete=1000, keep_latest=0)
            self._acked = 0

    def hurry(self, is_on: bool) -> None:
        """Its way to put has no batch."""
        level = "OFF" if is_on else "FULL"
        self._queue._putter.execute(f"PRAGMA synchronous={level}")  # noqa: SLF001 - no other way

    def close(self) -> None:
        """Close."""
        self._queue.close()


class PersistFifo:
    """persist-queue's FIFOSQLiteQueue; `task_done` deletes what was got in a batch."""

    def __init__(self, folder: Path) -> None:
        peer = import_module("persistqueue")
        self._queue = peer.FIFOSQLiteQueue(str(folder), auto_commit=False)

    def put(self, bodies: Sequence[bytes]) -> None:
        """It has no batch."""
        for body in bodies:
            self._queue.put(body)

    def take(self, count: int) -> Sequence[bytes]:
        """Nothing is written yet."""
        return [self._queue.get(block=False) for _ in range(count)]

    def ack(self, taken: Sequence[bytes]) -> None:
        """All that was got."""
        self._queue.task_done()

    def hurry(self, is_on: bool) -> None:
        """Its way to put has no batch."""
        level = "OFF" if is_on else "FULL"
        self._queue._putter.execute(f"PRAGMA synchronous={level}")  # noqa: SLF001 - no other way

    def close(self) -> None:
        """Close."""
        self._queue.close()


class Lite:
    """litequeue; as shipped its `synchronous` is NORMAL and each put a commit.

    Its transaction lets us put and finish in batches; taking is one commit each.
    """

    def __init__(self, folder: Path, is_full: bool) -> None:
        peer = import_module("litequeue")
        self._queue = peer.LiteQueue(str(folder / "q.db"))
        if is_full:
            self._queue.conn.execute("PRAGMA synchronous=FULL")

    def put(self, bodies: Sequence[bytes]) -> None:
        """It stores text; ours are ASCII."""
        with self._queue.transaction():
            for body in bodies:
                self._queue.put(body.decode("ascii"))

    def take(self, count: int) -> Sequence[Any]:
        """Each is locked on the disk."""
        return [self._queue.pop() for _ in range(count)]

    def ack(self, taken: Sequence[Any]) -> None:
        """Marked and deleted in one commit."""
        with self._queue.transaction():
            for message in taken:
                self._queue.done(message.message_id)
            self._queue.prune()

    def hurry(self, is_on: bool) -> None:
        """It is fast enough."""

    def close(self) -> None:
        """Close."""
        self._queue.close()


@dataclass(frozen=True)
class Kind:
    """An arm, and what a reader must know to compare it.

    Attributes:
        open: Opens it in a folder.
        promise: What is on the disk when, and in how many commits.
        like: The bare loop with the same commits, if there is one.
        is_peer: Whether it must be installed first.
    """

    open: Callable[[Path], Arm]
    promise: str
    like: str | None = None
    is_peer: bool = False


BARE, BARE_ONE = "bare sqlite3", "bare, one commit"
EACH_PUT, NEXT_PUT = "yamamori EVERY_PUT", "yamamori WITH_NEXT_PUT"

ARMS: dict[str, Kind] = {
    BARE: Kind(Bare, "FULL, batch in, batch out", BARE),
    BARE_ONE: Kind(BareAtOnce, "FULL, out with the next batch in", BARE_ONE),
    EACH_PUT: Kind(
        lambda folder: Ours(folder, COMMIT_EVERY_PUT), "FULL, batch in, batch out", BARE
    ),
    NEXT_PUT: Kind(
        lambda folder: Ours(folder, COMMIT_PUTS_DEFER_ACKS),
        "FULL, out with the next batch in, or after 0.5 s",
        BARE_ONE,
    ),
    "yamamori window": Kind(
        lambda folder: OursRoutine(folder, Durability()),
        "FULL, one by one, waiting in memory for 2 s or 50",
    ),
    "persist-queue ack": Kind(
        PersistAck, "FULL, one by one, put and get and ack", is_peer=True
    ),
    "persist-queue fifo": Kind(
        PersistFifo, "FULL, one by one in, batch out", is_peer=True
    ),
    "litequeue": Kind(
        lambda folder: Lite(folder, is_full=False),
        "NORMAL (no fsync), batch in, each locked, batch out",
        is_peer=True,
    ),
    "litequeue, FULL": Kind(
        lambda folder: Lite(folder, is_full=True),
        "FULL, batch in, each locked, batch out",
        is_peer=True,
    ),
}
