"""Durable priority queue in one SQLite file.

Urgent messages (see `Durability`) are on disk before `put` returns (WAL, synchronous
FULL); others may be pending in memory until a group commit. Several processes may put
into one file, but only one of them leases.
"""

import logging
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    Durability,
    ExpiryPolicy,
    MessageDraft,
    OnPut,
    QueueClock,
    QueueDiskFullError,
    QueuedMessage,
    QueueFileError,
    QueueStats,
    SpareReason,
    lease_order,
)
from edge_agent.queue.disk_reserve import commit_removals
from edge_agent.queue.eviction import Budget, Evictor
from edge_agent.queue.file_lifecycle import QueueFile, read_stats
from edge_agent.queue.leasing import (
    LeaseTable,
    PendingChanges,
    ReadyCache,
    fitting_rows,
)
from edge_agent.queue.store import (
    DROPPED_DAMAGED,
    DROPPED_EXPIRED,
    CounterDeltas,
    QueueRow,
    Store,
    group_by_priority,
    row_checksum,
)
from edge_agent.queue.write_journal import (
    OPEN_BLOCK_KEY,
    CommitThread,
    SequenceBlock,
    WriteJournal,
    close_previous_block,
    journal_path,
    open_journal,
    recover_journal,
    skip_used_numbers,
)
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

_MAX_REMOVALS = 1000
"""Maximum number of pending removals, and of messages that one lease drops."""

_RETRY_S = 1.0
"""Time until a failed commit is retried, without a window."""

_REAP_ROWS = 64
"""Number of messages of each priority that a commit checks for expiry."""


class SqliteQueue:
    """A `Queue` in a file.

    Args:
        path: The file; a missing folder is created.
        node: Id of the node or gateway.
        machine_boot: Id of the machine's boot, from the kernel.
        max_bytes: Budget; a number gives the default `Budget` of that size.
        durability: When messages are on disk. If another process uses the file with
            a commit window, this one has none.
        expiry: Maximum age of messages; None for no limit.

    Attributes:
        boot: Boot id in the message ids, new each time the file is opened.
        on_put: Called after each `put` of messages, once they are as durable as
            `durability` promises; None by default.
        is_owner: Whether this process is the only one that may lease.
        spare_for: Why the file is a spare one in memory; None for one on a disk.

    Raises:
        QueueFileError: The file cannot be opened.
    """

    on_put: OnPut | None = None
    spare_for: SpareReason | None = None
    _failure: str | None = None

    def __init__(
        self,
        path: str | Path,
        node: str,
        machine_boot: str,
        max_bytes: int | Budget,
        *,
        durability: Durability = COMMIT_EVERY_PUT,
        expiry: ExpiryPolicy | None = None,
    ) -> None:
        self._durability = durability
        self._lock = threading.RLock()
        self._leases = LeaseTable(LADDER.descending)
        self._pending = PendingChanges(LADDER.descending)
        self._file = QueueFile(Path(path))
        self.is_owner = durability.leases_alone and self._file.acquire_ownership()
        self._store, self._reserve = self._file.open()
        self._ready = ReadyCache(self._store, self._pending, self._leases)
        # Sequence numbers repeat when the file was replaced, or lost its log.
        self.boot = secrets.token_hex(4)
        self._clock = QueueClock(expiry, machine_boot, self.get_state("queue/clock"))
        self._evictor = Evictor(
            self._store,
            max_bytes if isinstance(max_bytes, Budget) else Budget(max_bytes),
            self._leases.__contains__,
        )
        self._writer = _PutWriter(
            self._store, self._evictor, self._clock, node, self.boot
        )
        self._skipped = self._unstored = 0
        self._is_failing = self._is_closed = False
        self._block = SequenceBlock()
        self._journal: WriteJournal | None = None
        window_s = durability.removal_delay_s
        if durability.window_s > 0 and self.is_owner:
            self._journal = self._open_journal()
            self._block = SequenceBlock(max_pending=durability.max_pending)
            window_s = durability.window_s
        skip_used_numbers(self._store)
        self._file.check_in_background()
        self._max_removals = _MAX_REMOVALS if window_s > 0 else 1
        self._committer = CommitThread(window_s or _RETRY_S, self._try_flush)

    def put(
        self, drafts: Sequence[MessageDraft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        ids = self._put(drafts, state)
        if drafts and self.on_put is not None:
            self.on_put(ids, drafts)
        return ids

    def _put(
        self, drafts: Sequence[MessageDraft], state: Mapping[str, str] | None
    ) -> list[MessageId | None]:
        priorities = {draft.priority for draft in drafts}
        for priority in priorities:
            LADDER.check(priority)
        is_top = priorities == {LADDER.top}
        with self._lock:
            try:
                # On a full disk, the reserve's space is for the top priority only.
                if drafts and not is_top and not self._reserve.allocate():
                    self._raise_full_or_failing()
                rows = self._pending_rows(drafts)
                if rows is None:
                    return self._commit(drafts, state, use_reserve=is_top)
            except QueueFileError as error:
                rows = self._rows_to_hold(drafts, error)
                if not rows:
                    raise
            for row in rows:
                self._pending.add(row)
            self._pending.state.update(state or {})
            self._block = self._block.after_using(len(rows))
            self._write_soon()
            return [row.message.id for row in rows]

    def waiting_priorities(self) -> frozenset[int]:
        with self._lock:
            self._ready.refresh()
            return frozenset(filter(self._ready.has_any, LADDER.descending))

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[QueuedMessage]:
        ladder = lease_order(priority, newest)
        leased: list[QueueRow] = []
        with self._lock:
            self._ready.refresh()
            self._skipped = 0
            for level in ladder:
                if not self._lease(level, newest, leased, (limit, max_bytes)):
                    break
            if self._skipped:
                self._write_soon()
        return [row.message for row in leased]

    def ack(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._pending.acknowledge(self._leases.remove(seqs))
            self._write_soon()

    def hand_over(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._pending.hand_over(self._leases.remove(seqs))
            self._write_soon()

    def release(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._leases.release(seqs)

    def withhold(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._leases.remove(seqs)

    def age_s(self, message: QueuedMessage) -> float | None:
        now_ms = self._clock.now_ms()
        if now_ms is None or message.born_s is None:
            return None
        return max(0.0, now_ms / 1000 - message.born_s)

    def oldest_s(self) -> float | None:
        return max(self.ages_s().values(), default=None)

    def ages_s(self) -> Mapping[int, float]:
        now_ms = self._clock.now_ms()
        with self._lock:
            self._ready.refresh()
            rows = [row for p in LADDER.descending for row in self._ready.oldest(p)]
        return {
            row.priority: max(0.0, (now_ms - row.born_ms) / 1000)
            for row in rows
            if now_ms is not None and row.born_ms is not None
        }

    def release_all(self) -> int:
        with self._lock:
            return self._leases.release_all()

    def get_state(self, name: str) -> str | None:
        with self._lock:
            pending = self._pending.state.get(name)
            return self._store.get_state(name) if pending is None else pending

    def stats(self) -> QueueStats:
        with self._lock:
            counted = read_stats(self._store, self._pending.counters, len(self._leases))
            if self.spare_for is not None:
                unstored = sum(counted.put.values())
                return replace(counted, unstored=unstored, **self.spare_for._asdict())
            return replace(counted, failure=self._failure, unstored=self._unstored)

    def flush(self) -> None:
        """Commit pending changes now.

        Raises:
            QueueFileError: The store failed; the changes are still pending.
        """
        with self._lock:
            if self._pending:
                self._commit((), None, use_reserve=False)

    def close(self) -> None:
        self._committer.close()  # outside the lock, which its thread may be waiting for
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            is_owner = self._block.max_pending > 0
            self._block = SequenceBlock()
            try:
                if is_owner or self._pending:
                    self._commit((), {OPEN_BLOCK_KEY: ""} if is_owner else None, True)
            except QueueFileError:
                log.exception("%d messages in memory are lost", len(self._pending.rows))
            if self._journal is not None:
                self._journal.close()
            self._store.close()
            self._file.close()

    def _pending_rows(self, drafts: Sequence[MessageDraft]) -> list[QueueRow] | None:
        """The drafts as rows when they may be pending in memory, or None."""
        policy = self._durability
        if not self._block.max_pending or self._is_failing or not drafts:
            return None
        is_low = all(d.priority < policy.urgent_from and not d.id for d in drafts)
        count = len(self._pending.rows) + len(drafts)
        if (
            not is_low
            or count >= policy.max_pending
            or not self._block.has(len(drafts))
        ):
            return None
        _, rows = self._writer.rows(drafts, self._block.next)
        fits = self._evictor.fits(self._pending.counters, rows)
        return rows if fits and self._pending.has_room(rows) else None

    def _rows_to_hold(
        self, drafts: Sequence[MessageDraft], error: QueueFileError
    ) -> list[QueueRow]:
        """Drafts that cannot be stored as rows to be pending; empty if they may not."""
        policy = self._durability
        is_full = isinstance(error, QueueDiskFullError)
        lowest = policy.urgent_from if is_full else 0
        is_own = all(d.priority >= lowest and not d.id for d in drafts)
        if not (policy.held_bytes and drafts and is_own):
            return []
        block = self._block
        if not block.has(len(drafts)):
            block = block.ahead(self._store)
        _, rows = self._writer.rows(drafts, block.next)
        if not self._pending.make_room(rows, policy.held_bytes):
            return []
        self._block = block
        self._unstored += 0 if is_full else len(rows)
        return rows

    def _raise_full_or_failing(self) -> NoReturn:
        """Raise that the disk is full, or the error of one that has failed since."""
        if self._durability.held_bytes:
            self._commit((), None, use_reserve=False)
        raise QueueDiskFullError(str(self._file.path))

    def _commit(
        self,
        drafts: Sequence[MessageDraft],
        state: Mapping[str, str] | None,
        use_reserve: bool,
    ) -> list[MessageId | None]:
        """Commit the pending changes and then the drafts."""
        try:
            ids = self._commit_once(drafts, state or {})
        except QueueFileError as error:
            if not isinstance(error, QueueDiskFullError):
                if self._failure is None and self._durability.held_bytes:
                    self._unstored += len(self._pending.rows)
                    log.error("replace the SD card if this lasts: %s", error)  # noqa: TRY400
                self._is_failing, self._failure = True, str(error)
                raise
            ids = self._commit_on_full_disk(drafts, state or {}, use_reserve)
        self._is_failing, self._failure = False, None
        return ids

    def _commit_on_full_disk(
        self,
        drafts: Sequence[MessageDraft],
        state: Mapping[str, str],
        use_reserve: bool,
    ) -> list[MessageId | None]:
        if self._pending.removed:
            with suppress(QueueDiskFullError):
                commit_removals(self._store, self._reserve, self._pending)
                return self._commit_once(drafts, state)
        if not use_reserve:
            raise QueueDiskFullError(str(self._file.path))
        self._reserve.release()
        if self._journal is not None:
            self._journal.delete()
        self._store.restart_wal()
        return self._commit_once(drafts, state)

    def _commit_once(
        self, drafts: Sequence[MessageDraft], state: Mapping[str, str]
    ) -> list[MessageId | None]:
        changes = self._pending.counters.copy()
        with self._store.transaction():
            if self._pending:
                self._pending.write(self._store, changes)
            block = self._block.with_reserved(len(drafts), self._store)
            ids, rows = self._writer.put(drafts, block.next, changes)
            self._drop_expired(changes)
            void = self._journal.invalidation_state() if self._journal else {}
            own = {**block.to_state(), **self._clock.to_state(), **void}
            self._store.set_state({**self._pending.state, **state, **own})
            self._store.apply_deltas(changes)
            if rows or self._pending.rows:
                self._reserve.check_growth(self._store)
        # After the commit: a failed transaction must not change anything in memory.
        rest = block.after_using(len(rows))
        # Without a block, an unused number may be lower than those of other processes.
        self._block = rest if rest.max_pending else SequenceBlock()
        if self._journal is not None:
            self._journal.reset_after_commit()
        if changes.drop_reasons != self._pending.counters.drop_reasons:
            self._ready.clear()
        self._ready.add_stored(self._pending.clear_committed())
        self._ready.add_stored(group_by_priority(rows))
        self._leases.compact_ranges()
        self._reserve.limit_log(self._store)
        return ids

    def _drop_expired(self, changes: CounterDeltas) -> None:
        """Drop expired messages, a limited number per commit."""
        for priority in self._clock.priorities_with_ttl:
            for seq, born_ms in self._store.read_oldest(priority, _REAP_ROWS):
                is_old = self._clock.is_expired(priority, born_ms)
                if is_old and seq not in self._leases:
                    cost = self._store.delete(priority, seq) or 0
                    changes.add_dropped(priority, cost, DROPPED_EXPIRED)

    def _lease(
        self,
        priority: int,
        newest: bool,
        leased: list[QueueRow],
        limits: tuple[int, int | None],
    ) -> bool:
        """Lease messages of one priority; return whether to go on with the next."""
        limit, max_bytes = limits
        while len(leased) < limit:
            rows = self._ready.peek(priority, newest, limit - len(leased))
            if not rows:
                return True
            valid = list(takewhile(self._is_valid, rows))
            if not valid:
                self._drop(rows[0], newest)
                # Less urgent messages must not overtake; the caller leases again.
                if self._skipped >= _MAX_REMOVALS:
                    return False
                continue
            fitting = fitting_rows(leased, valid, max_bytes)
            if fitting:
                self._ready.lease(fitting, newest)
                leased += fitting
            if len(fitting) < len(valid):
                return False
        return False

    def _drop(self, row: QueueRow, newest: bool) -> None:
        """Drop a message instead of leasing it."""
        if not row.is_intact:
            # The id may be damaged, too, and then it is not UTF-8.
            id_ = ascii(str(row.message.id))
            log.error("message %s does not match its checksum: dropped", id_)
        self._skipped += 1
        self._ready.lease([row], newest)
        self._leases.remove([row.seq])
        self._pending.drop(row, DROPPED_EXPIRED if row.is_intact else DROPPED_DAMAGED)

    def _is_valid(self, row: QueueRow) -> bool:
        return row.is_intact and not self._clock.is_expired(row.priority, row.born_ms)

    def _write_soon(self) -> None:
        """Commit now if many removals are pending, else at the end of the window."""
        if len(self._pending.removed) >= self._max_removals:
            self._try_flush()
        elif self._pending:
            self._committer.wake()

    def _open_journal(self) -> WriteJournal | None:
        """Recover the previous process's journal and open a new one."""
        path = journal_path(self._file.path)
        close_previous_block(self._store, recover_journal(self._store, path))
        journal = open_journal(self._store, path)
        self._file.give_to_owner()
        return journal

    def _write_journal(self) -> bool:
        """Whether all pending changes are on disk without a commit."""
        rows, state = self._pending.rows.values(), self._pending.state
        if self._journal is None or self._is_failing:
            return False
        if not self._journal.has_unwritten(rows, state):
            return not self._pending.removed
        if not self._journal.append(rows, state):
            return False
        if self._pending.removed:
            self._committer.wake()  # a window without new changes commits removals
        return True

    def _try_flush(self) -> None:
        """Write pending changes to disk; on failure, retry after a window."""
        with self._lock:
            was_failing = self._is_failing
            try:
                if not self._write_journal():
                    self.flush()
            except QueueFileError as error:
                if not was_failing:
                    log.error("queue cannot write, will retry: %s", error)  # noqa: TRY400
                self._is_failing = True
                self._committer.wake()


class _PutWriter:
    """Turns drafts into rows and writes them, in the caller's transaction.

    Args:
        store: The file.
        evictor: Evicts messages when the budget is exhausted.
        clock: The queue's clock.
        node: Node of new message ids.
        boot: Boot of new message ids.
    """

    def __init__(
        self, store: Store, evictor: Evictor, clock: QueueClock, node: str, boot: str
    ) -> None:
        self._store = store
        self._evictor = evictor
        self._clock = clock
        self._node = node
        self._boot = boot

    def rows(
        self, drafts: Sequence[MessageDraft], first: int
    ) -> tuple[list[MessageId], list[QueueRow]]:
        """Ids and rows of drafts, with sequence numbers from `first` on."""
        node, boot, now_ms = self._node, self._boot, self._clock.now_ms()
        ids = [
            d.id or MessageId(node, boot, seq) for seq, d in enumerate(drafts, first)
        ]
        payloads = [d.encode(i) for d, i in zip(drafts, ids, strict=True)]
        rows = [
            QueueRow(
                d.priority, seq, i.node, i.boot, i.seq, d.topic,
                row_checksum((d.priority, seq, i.node, i.boot, i.seq, d.topic), p), p,
                None if now_ms is None else now_ms - int(d.age_s * 1000),
            )
            for seq, (d, i, p) in enumerate(
                zip(drafts, ids, payloads, strict=True), first
            )
        ]  # fmt: skip
        return ids, rows

    def put(
        self, drafts: Sequence[MessageDraft], first: int, changes: CounterDeltas
    ) -> tuple[list[MessageId | None], list[QueueRow]]:
        """Store drafts except duplicates.

        Returns:
            The id of each draft, None for a duplicate; and the rows stored.
        """
        is_new = [d.id is None or self._is_new(d, d.id, changes) for d in drafts]
        new_drafts = [d for d, new in zip(drafts, is_new, strict=True) if new]
        ids, rows = self.rows(new_drafts, first)
        self._insert(rows, new_drafts, changes)
        new_ids = iter(ids)
        return [next(new_ids) if new else None for new in is_new], rows

    def _is_new(
        self, draft: MessageDraft, message_id: MessageId, changes: CounterDeltas
    ) -> bool:
        """Record an id; whether it is new. `queue replay` puts ids of this node."""
        is_stored = message_id.node == self._node and self._store.contains(message_id)
        is_new = not is_stored and self._store.known_ids.record(message_id)
        if not is_new:
            changes.add_duplicate(draft.priority)
        return is_new

    def _insert(
        self,
        rows: Sequence[QueueRow],
        drafts: Sequence[MessageDraft],
        changes: CounterDeltas,
    ) -> None:
        """Store messages, one by one when others must be evicted."""
        if self._evictor.fits(changes, rows):
            self._store.insert(rows)
            changes.add_put(rows)
            return
        for row, draft in zip(rows, drafts, strict=True):
            self._evictor.check_share(changes, row, draft)
            self._evictor.evict_for(changes, row.priority, row.cost_bytes)
            self._store.insert([row])
            changes.add_put([row])
