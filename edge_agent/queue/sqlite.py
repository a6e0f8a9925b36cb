"""The durable queue in one SQLite file.

Every `put` is on the disk before it returns (WAL, synchronous FULL); several
processes may put into one file, one of them leases.
"""

import logging
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from edge_agent.queue.base import Depth, Draft, Message, Stats, cost_bytes
from edge_agent.queue.errors import QueueFileError, QueueFullError
from edge_agent.queue.leases import Leases
from edge_agent.queue.schema import check, connect, migrate
from spatial_mqtt.envelope import MessageId
from spatial_mqtt.priority import LADDER

log = logging.getLogger(__name__)

_SELECT = "SELECT seq, node, boot, origin_seq, topic, payload, crc FROM message"


class SqliteQueue:
    """A `Queue` in a file. See `edge_agent.queue.base.Queue` for the contract.

    Args:
        path: The file; its folder is made when missing.
        node: Id of the node or gateway whose queue this is.
        machine_boot: Id of the machine's boot, from the kernel.
        max_bytes: Budget in bytes of topics and payloads.

    Raises:
        QueueFileError: The file cannot be opened.
    """

    def __init__(
        self, path: str | Path, node: str, machine_boot: str, max_bytes: int
    ) -> None:
        self._path = Path(path)
        self._node = node
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._leases = Leases(LADDER.descending())
        self._db = self._open()
        # Ids must differ after a reboot and after the file was replaced alike.
        life = f"{machine_boot}/{self.recall('queue/file_id')}"
        self.boot = blake2b(life.encode(), digest_size=4).hexdigest()

    def put(
        self, drafts: Sequence[Draft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        """See `Queue.put`."""
        with self._lock, self._transaction():
            next_seq = int(self._state("queue/next_seq") or 1)
            ids: list[MessageId | None] = []
            for draft in drafts:
                taken = self._insert(draft, next_seq)
                next_seq += taken is not None
                ids.append(taken)
            self._remember({"queue/next_seq": str(next_seq), **(state or {})})
        return ids

    def lease(self, limit: int = 1, max_bytes: int | None = None) -> list[Message]:
        """See `Queue.lease`."""
        taken: list[Message] = []
        total_bytes = 0
        with self._lock:
            while len(taken) < limit and (message := self._most_urgent()):
                total_bytes += len(message.payload)
                if taken and max_bytes is not None and total_bytes > max_bytes:
                    break
                self._leases.take(message.priority, message.seq)
                taken.append(message)
        return taken

    def ack(self, seqs: Iterable[int]) -> None:
        """See `Queue.ack`."""
        with self._lock:
            out = {
                seq: self._leases.priority(seq) for seq in seqs if seq in self._leases
            }
            with self._transaction():
                for seq, priority in out.items():
                    self._delete(priority, seq, "acked")
            # Only now: a failed transaction must leave the leases as they were.
            for seq in out:
                self._leases.end(seq)

    def release(self, seqs: Iterable[int]) -> None:
        """See `Queue.release`."""
        with self._lock:
            for seq in seqs:
                self._leases.give_back(seq)

    def reap(self) -> int:
        """See `Queue.reap`."""
        with self._lock:
            return self._leases.give_all_back()

    def recall(self, name: str) -> str | None:
        """See `Queue.recall`."""
        with self._lock:
            return self._state(name)

    def stats(self) -> Stats:
        """See `Queue.stats`."""
        with self._lock:
            rows = self._db.execute(
                "SELECT priority, rows, bytes, put, acked, dropped, duplicates "
                "FROM tally ORDER BY priority DESC"
            ).fetchall()
            return Stats(
                depth={row[0]: Depth(row[1], row[2]) for row in rows},
                leased=len(self._leases),
                put={row[0]: row[3] for row in rows},
                acked={row[0]: row[4] for row in rows},
                dropped={row[0]: row[5] for row in rows},
                duplicates=sum(row[6] for row in rows),
            )

    def peek(self, limit: int) -> list[Message]:
        """The most urgent messages, without leasing them."""
        with self._lock:
            rows = self._db.execute(
                f"{_SELECT.replace('SELECT', 'SELECT priority,')} "
                "ORDER BY priority DESC, seq LIMIT ?",
                (limit,),
            ).fetchall()
        return [_message(row[0], row[1:]) for row in rows]

    def close(self) -> None:
        """See `Queue.close`."""
        with self._lock:
            self._db.close()

    def _open(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._usable()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise QueueFileError(str(self._path), str(error)) from error
            self._set_aside(error)
            return self._usable()
        except OSError as error:
            raise QueueFileError(str(self._path), str(error)) from error

    def _usable(self) -> sqlite3.Connection:
        db = connect(str(self._path))
        try:
            check(db)
            migrate(db)
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def _set_aside(self, error: Exception) -> None:
        """Keep a damaged file for salvage; a node must go on without it."""
        number = 1
        while (
            aside := self._path.with_name(f"{self._path.name}.damaged-{number}")
        ).exists():
            number += 1
        log.error("queue file %s is damaged (%s): kept as %s", self._path, error, aside)
        for suffix in ("", "-wal", "-shm"):
            part = Path(f"{self._path}{suffix}")
            if part.exists():
                part.rename(f"{aside}{suffix}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise QueueFileError(str(self._path), str(error)) from error
            raise

    def _insert(self, draft: Draft, seq: int) -> MessageId | None:
        message_id = draft.id or MessageId(self._node, self.boot, seq)
        if draft.id is not None and not self._take(draft.id):
            self._tally(draft.priority, "duplicates = duplicates + 1")
            return None
        payload = draft.encode(message_id)
        cost = cost_bytes(draft.topic, payload)
        self._make_room(draft.priority, cost)
        self._db.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                LADDER.check(draft.priority), seq,
                message_id.node, message_id.boot, message_id.seq,
                draft.topic, zlib.crc32(payload), payload,
            ),
        )  # fmt: skip
        self._tally(
            draft.priority, "rows = rows + 1, bytes = bytes + ?, put = put + 1", cost
        )
        return message_id

    def _take(self, message_id: MessageId) -> bool:
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
        self._db.execute(
            "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?)", (node, boot, low, high)
        )
        return True

    def _make_room(self, priority: int, cost: int) -> None:
        """Drop what is less urgent, oldest first, until the message fits."""
        held = self._db.execute("SELECT sum(bytes) FROM tally").fetchone()[0]
        for lower in range(1, priority):
            rows = self._db.execute(
                "SELECT seq FROM message WHERE priority = ? ORDER BY seq", (lower,)
            )
            for (seq,) in rows.fetchall() if held + cost > self._max_bytes else ():
                if held + cost <= self._max_bytes:
                    return
                if seq not in self._leases:
                    held -= self._delete(lower, seq, "dropped")
        if held + cost > self._max_bytes:
            raise QueueFullError(held, self._max_bytes)

    def _delete(self, priority: int, seq: int, why: str) -> int:
        row = self._db.execute(
            "DELETE FROM message WHERE priority = ? AND seq = ? "
            "RETURNING topic, payload",
            (priority, seq),
        ).fetchone()
        if row is None:
            return 0
        cost = cost_bytes(row[0], row[1])
        self._tally(
            priority, f"rows = rows - 1, bytes = bytes - ?, {why} = {why} + 1", cost
        )
        return cost

    def _tally(self, priority: int, change: str, *values: int) -> None:
        self._db.execute(
            f"UPDATE tally SET {change} WHERE priority = ?",  # noqa: S608 - our own words
            (*values, priority),
        )

    def _most_urgent(self) -> Message | None:
        for priority in LADDER.descending():
            while (seq := self._leases.returned(priority)) is not None:
                row = self._row(
                    f"{_SELECT} WHERE priority = ? AND seq = ?", priority, seq
                )
                if row is not None:
                    return _message(priority, row)
                self._leases.forget_returned(priority)
            mark = self._leases.mark(priority)
            row = self._row(
                f"{_SELECT} WHERE priority = ? AND seq > ? ORDER BY seq LIMIT 1",
                priority,
                mark,
            )
            if row is not None:
                return _message(priority, row)
        return None

    def _row(self, query: str, priority: int, seq: int) -> tuple | None:  # type: ignore[type-arg]
        return self._db.execute(query, (priority, seq)).fetchone()  # type: ignore[no-any-return]

    def _state(self, name: str) -> str | None:
        row = self._db.execute(
            "SELECT value FROM state WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else str(row[0])

    def _remember(self, values: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO state VALUES (?, ?)", values.items()
        )


def _message(priority: int, row: tuple) -> Message:  # type: ignore[type-arg]
    seq, node, boot, origin_seq, topic, payload, crc = row
    if zlib.crc32(payload) != crc:
        log.error(
            "message %s:%s:%s does not match its checksum", node, boot, origin_seq
        )
    return Message(seq, MessageId(node, boot, origin_seq), priority, topic, payload)
