"""The durable queue in one SQLite file.

What `Durability` calls urgent is on the disk before `put` returns (WAL,
synchronous FULL); the rest may wait in memory for one group commit. Several
processes may put into one file, one of them leases.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from edge_agent.queue.base import Depth, Draft, Message, Stats, ladder_of
from edge_agent.queue.budget import Budget, Room, held_bytes
from edge_agent.queue.committer import Committer
from edge_agent.queue.durability import EVERY_PUT, Ageing, Durability, QueueClock
from edge_agent.queue.errors import QueueDiskFullError, QueueFileError
from edge_agent.queue.free import Free
from edge_agent.queue.leases import Leases
from edge_agent.queue.numbers import LOST_AT_MOST, OPEN_BLOCK, Numbers, settle
from edge_agent.queue.place import Place
from edge_agent.queue.store import Row, seconds_of
from edge_agent.queue.tally import DAMAGED, EXPIRED, Changes
from edge_agent.queue.waiting import Waiting
from spatial_mqtt.envelope import MessageId
from spatial_mqtt.priority import LADDER

log = logging.getLogger(__name__)

MOST_GONE = 1000
"""Removals that wait for a commit at once, and that one lease makes at most."""

REAP_BATCH = 64
"""Oldest messages of a priority that each commit looks at for their age."""


class SqliteQueue:
    """A `Queue` in a file. See `edge_agent.queue.base.Queue` for the contract.

    Args:
        path: The file; its folder is made when missing.
        node: Id of the node or gateway whose queue this is.
        machine_boot: Id of the machine's boot, from the kernel.
        max_bytes: Budget; a number gives one with the usual reserve.
        durability: What is on the disk when. A window is for the process that
            leases: another one that has the file with a window keeps it, and
            this one then puts everything on the disk.
        ageing: How old messages may get; None keeps them for ever.

    Raises:
        QueueFileError: The file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        node: str,
        machine_boot: str,
        max_bytes: int | Budget,
        *,
        durability: Durability = EVERY_PUT,
        ageing: Ageing | None = None,
    ) -> None:
        self._node = node
        self._durability = durability
        self._budget = max_bytes if isinstance(max_bytes, Budget) else Budget(max_bytes)
        self._lock = threading.RLock()
        self._leases = Leases(LADDER.descending())
        self._waiting = Waiting(LADDER.descending())
        self._room = Room(self._budget, self._leases.__contains__)
        self._place = Place(Path(path))
        self._store, self._reserve = self._place.open()
        self._free = Free(self._store, self._waiting, self._leases)
        # Ids must differ after a reboot and after the file was replaced alike.
        life = f"{machine_boot}/{self.recall('queue/file_id')}"
        self.boot = blake2b(life.encode(), digest_size=4).hexdigest()
        self._clock = QueueClock(ageing, machine_boot, self.recall("queue/clock"))
        self._skipped = 0
        self._is_stuck = False
        self._is_closed = False
        self._numbers = Numbers()
        self._committer: Committer | None = None
        if durability.window_s > 0 and self._place.own():
            settle(self._store)
            self._numbers = Numbers(most_waiting=durability.batch)
            self._committer = Committer(durability.window_s, self._try_flush)

    def put(
        self, drafts: Sequence[Draft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        """See `Queue.put`."""
        for draft in drafts:
            LADDER.check(draft.priority)
        is_top = any(draft.priority == LADDER.top for draft in drafts)
        with self._lock:
            # While the disk is full, what the reserve gave is for the top alone.
            if drafts and not is_top and not self._reserve.restore():
                raise QueueDiskFullError(str(self._place.path))
            rows = self._rows_to_wait(drafts)
            if rows is None:
                return self._commit(drafts, state, may_spend=is_top)
            for row in rows:
                self._waiting.add(row)
            self._waiting.state.update(state or {})
            self._numbers = self._numbers.used(len(rows))
            self._write_soon()
            return [row.message.id for row in rows]

    def waiting(self) -> frozenset[int]:
        """See `Queue.waiting`."""
        with self._lock:
            self._free.refresh()
            return frozenset(p for p in LADDER.descending() if self._free.end(p))

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[Message]:
        """See `Queue.lease`."""
        ladder = ladder_of(priority, newest)
        taken: list[Message] = []
        total_bytes = 0
        with self._lock:
            self._free.refresh()
            self._skipped = 0
            while len(taken) < limit and (row := self._next(ladder, newest)):
                total_bytes += len(row.message.payload)
                if taken and max_bytes is not None and total_bytes > max_bytes:
                    break
                self._free.take(row, newest)
                taken.append(row.message)
            if self._skipped:
                self._write_soon()
        return taken

    def ack(self, seqs: Iterable[int]) -> None:
        """See `Queue.ack`."""
        with self._lock:
            for seq in seqs:
                lease = self._leases.end(seq)
                if lease is not None:
                    self._waiting.deliver(seq, lease)
            self._write_soon()

    def release(self, seqs: Iterable[int]) -> None:
        """See `Queue.release`."""
        with self._lock:
            for seq in seqs:
                self._leases.give_back(seq)

    def age_s(self, message: Message) -> float | None:
        """See `Queue.age_s`."""
        now_ms = self._clock.now_ms()
        if now_ms is None or message.born_s is None:
            return None
        return max(0.0, now_ms / 1000 - message.born_s)

    def reap(self) -> int:
        """See `Queue.reap`."""
        with self._lock:
            return self._leases.give_all_back()

    def recall(self, name: str) -> str | None:
        """See `Queue.recall`."""
        with self._lock:
            waiting = self._waiting.state.get(name)
            return self._store.recall(name) if waiting is None else waiting

    def stats(self) -> Stats:
        """See `Queue.stats`."""
        with self._lock:
            tally, changes = self._store.tally(), self._waiting.changes
            now = {
                column: {
                    p: row[column] + changes.of(p, column) for p, row in tally.items()
                }
                for column in ("rows", "bytes", "put", "acked", "dropped", "duplicates")
            }
            reasons: dict[int, dict[str, int]] = {p: {} for p in tally}
            for found in (self._store.reasons(), changes.reasons):
                for (priority, reason), count in found.items():
                    held = reasons.setdefault(priority, {})
                    held[reason] = held.get(reason, 0) + count
            return Stats(
                depth={p: Depth(now["rows"][p], now["bytes"][p]) for p in tally},
                leased=len(self._leases),
                put=now["put"],
                acked=now["acked"],
                dropped=now["dropped"],
                duplicates=sum(now["duplicates"].values()),
                reasons=reasons,
                lost_at_most=int(self._store.recall(LOST_AT_MOST) or 0),
            )

    def flush(self) -> None:
        """Write what waits in memory now, without waiting for the window's end.

        Raises:
            QueueFileError: The store failed; it all waits on.
        """
        with self._lock:
            if self._waiting:
                self._commit((), None, may_spend=bool(self._waiting.gone))

    def close(self) -> None:
        """See `Queue.close`."""
        if self._committer is not None:
            self._committer.close()  # outside the lock, which its thread may want
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            is_owner = self._numbers.most_waiting > 0
            self._numbers = Numbers()
            try:
                if is_owner or self._waiting:
                    self._commit((), {OPEN_BLOCK: ""} if is_owner else None, True)
            except QueueFileError:
                log.exception("%d messages in memory are lost", len(self._waiting.rows))
            self._store.close()
            self._place.close()

    def _rows_to_wait(self, drafts: Sequence[Draft]) -> list[Row] | None:
        """The drafts as rows when they may wait in memory, or None."""
        promised = self._durability
        if self._committer is None or self._is_stuck or not drafts:
            return None
        is_low = all(d.priority < promised.urgent_from and not d.id for d in drafts)
        count = len(self._waiting.rows) + len(drafts)
        if not is_low or count >= promised.batch or not self._numbers.has(len(drafts)):
            return None
        numbers = range(self._numbers.next, self._numbers.end)
        rows = [self._row(d, n) for d, n in zip(drafts, numbers, strict=False)]
        held = held_bytes(self._store, self._waiting.changes)
        for row in rows:
            if self._budget.excess(held, row.message.priority, row.cost) > 0:
                return None
            held[row.message.priority] += row.cost
        return rows

    def _row(self, draft: Draft, seq: int) -> Row:
        message_id = draft.id or MessageId(self._node, self.boot, seq)
        payload = draft.encode(message_id)
        born_ms = self._clock.now_ms()
        message = Message(
            seq,
            message_id,
            draft.priority,
            draft.topic,
            payload,
            seconds_of(born_ms),
        )
        return Row(message, crc32(payload), born_ms)

    def _commit(
        self,
        drafts: Sequence[Draft],
        state: Mapping[str, str] | None,
        may_spend: bool,
    ) -> list[MessageId | None]:
        """Write everything that waits, and drafts behind it."""
        try:
            ids = self._commit_once(drafts, state or {})
        except QueueDiskFullError:
            if not may_spend or not self._reserve.spend():
                raise
            self._store.start_wal_again()
            ids = self._commit_once(drafts, state or {})
        self._is_stuck = False
        return ids

    def _commit_once(
        self, drafts: Sequence[Draft], state: Mapping[str, str]
    ) -> list[MessageId | None]:
        changes = self._waiting.changes.copy()
        rows: list[Row | None] = []
        with self._store.transaction():
            self._waiting.write(self._store, changes)
            numbers = self._numbers.drawn(len(drafts), self._store)
            for draft in drafts:
                row = self._insert(draft, numbers.next, changes)
                numbers = numbers.used(row is not None)
                rows.append(row)
            self._reap_expired(changes)
            told = {**numbers.text(), **self._clock.text()}
            self._store.remember({**self._waiting.state, **state, **told})
            self._store.apply(changes)
        # Only now: a failed transaction must leave the memory as it was.
        if changes.reasons != self._waiting.changes.reasons:
            self._free.forget_pages()
        self._free.stored(self._waiting.settle())
        self._free.stored((r.message.priority, r.message.seq) for r in rows if r)
        self._leases.forget_read()
        self._store.bound_growth()
        # Without a block, a number left over must not be used after those of others.
        self._numbers = numbers if numbers.most_waiting else Numbers()
        return [row.message.id if row else None for row in rows]

    def _insert(self, draft: Draft, seq: int, changes: Changes) -> Row | None:
        if draft.id is not None and self._has_seen(draft.id):
            changes.duplicate(draft.priority)
            return None
        row = self._row(draft, seq)
        self._room.make(self._store, changes, draft.priority, row.cost)
        self._store.insert(row)
        changes.put(draft.priority, row.cost)
        return row

    def _has_seen(self, message_id: MessageId) -> bool:
        """Whether an id was taken before; notes it. Our own may come by replay."""
        is_held = message_id.node == self._node and self._store.holds(message_id)
        return is_held or not self._store.take(message_id)

    def _reap_expired(self, changes: Changes) -> None:
        """Drop what outlived its time, a bounded number a commit."""
        for priority in self._clock.mortal:
            for seq, born_ms in self._store.oldest(priority, REAP_BATCH):
                is_old = self._clock.is_expired(priority, born_ms)
                if is_old and seq not in self._leases:
                    cost = self._store.delete(priority, seq) or 0
                    changes.dropped(priority, cost, EXPIRED)

    def _next(self, ladder: Iterable[int], newest: bool) -> Row | None:
        """The first sound message of the first priority that has one."""
        for priority in ladder:
            while row := self._free.end(priority, newest):
                reason = self._spoiled(row)
                if reason is None:
                    return row
                self._skipped += 1
                self._free.take(row, newest)
                lease = self._leases.end(row.message.seq)
                if lease is not None:
                    self._waiting.drop(row.message.seq, lease, reason)
                # The caller asks again; nothing less urgent may go meanwhile.
                if self._skipped >= MOST_GONE:
                    return None
        return None

    def _spoiled(self, row: Row) -> str | None:
        message = row.message
        if not row.is_sound:
            log.error("message %s does not match its checksum: dropped", message.id)
            return DAMAGED
        is_old = self._clock.is_expired(message.priority, row.born_ms)
        return EXPIRED if is_old else None

    def _write_soon(self) -> None:
        """Let the window's end write what waits; now when there is no window."""
        if self._committer is None or len(self._waiting.gone) >= MOST_GONE:
            self._try_flush()
        elif self._waiting:
            self._committer.wake()

    def _try_flush(self) -> None:
        """Flush; on failure go on, and try again with the next commit."""
        with self._lock:
            try:
                self.flush()
            except QueueFileError as error:
                if not self._is_stuck:
                    log.error("queue cannot write, and waits: %s", error)  # noqa: TRY400
                self._is_stuck = True
                if self._committer is not None:
                    self._committer.wake()
