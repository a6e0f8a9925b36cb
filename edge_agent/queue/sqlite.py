"""The durable queue in one SQLite file.

What `Durability` calls urgent is on the disk before `put` returns (WAL,
synchronous FULL); the rest may wait in memory for one group commit. Several
processes may put into one file, one of them leases.
"""

import logging
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from edge_agent.queue.accounts import stats_of
from edge_agent.queue.base import Draft, Message, Stats, ladder_of
from edge_agent.queue.budget import Budget
from edge_agent.queue.committer import Committer
from edge_agent.queue.durability import EVERY_PUT, Ageing, Durability, QueueClock
from edge_agent.queue.errors import QueueDiskFullError, QueueFileError
from edge_agent.queue.free import Free
from edge_agent.queue.intake import Intake
from edge_agent.queue.leases import Leases
from edge_agent.queue.notes import Notes, notes_path, opened, take_over
from edge_agent.queue.numbers import OPEN_BLOCK, Numbers, settle
from edge_agent.queue.place import Place
from edge_agent.queue.room import Room
from edge_agent.queue.row import Row, by_priority
from edge_agent.queue.tally import DAMAGED, EXPIRED, Changes
from edge_agent.queue.waiting import Waiting
from spatial_mqtt.envelope import MessageId
from spatial_mqtt.priority import LADDER

log = logging.getLogger(__name__)

MOST_GONE = 1000
"""Removals that wait for a commit at once, and that one lease makes at most."""

RETRY_S = 1.0
"""When nothing may wait, how soon a commit is tried again that failed."""

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
        self._durability = durability
        self._lock = threading.RLock()
        self._leases = Leases(LADDER.descending())
        self._waiting = Waiting(LADDER.descending())
        self._place = Place(Path(path))
        self._store, self._reserve = self._place.open()
        self._free = Free(self._store, self._waiting, self._leases)
        # Ids must differ after a reboot, after the file was replaced, and after it
        # went back to what it was (its log was lost): then its numbers come again.
        self.boot = secrets.token_hex(4)
        self._clock = QueueClock(ageing, machine_boot, self.recall("queue/clock"))
        budget = max_bytes if isinstance(max_bytes, Budget) else Budget(max_bytes)
        room = Room(budget, self._leases.__contains__)
        self._intake = Intake(self._store, room, self._clock, node, self.boot)
        self._skipped = 0
        self._is_stuck = False
        self._is_closed = False
        self._numbers = Numbers()
        self._notes: Notes | None = None
        window_s = durability.removal_s
        if durability.window_s > 0 and self._place.own():
            self._notes = self._notes_of_own()
            self._numbers = Numbers(most_waiting=durability.batch)
            window_s = durability.window_s
        self._place.check_meanwhile()
        self._most_gone = MOST_GONE if window_s > 0 else 1
        self._committer = Committer(window_s or RETRY_S, self._try_flush)

    def put(
        self, drafts: Sequence[Draft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        """See `Queue.put`."""
        priorities = {draft.priority for draft in drafts}
        for priority in priorities:
            LADDER.check(priority)
        is_top = LADDER.top in priorities
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
            return frozenset(p for p in LADDER.descending() if self._free.some(p))

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
        taken: list[Row] = []
        with self._lock:
            self._free.refresh()
            self._skipped = 0
            for level in ladder:
                if not self._lease(level, newest, taken, (limit, max_bytes)):
                    break
            if self._skipped:
                self._write_soon()
        return [row.message for row in taken]

    def ack(self, seqs: Iterable[int]) -> None:
        """See `Queue.ack`."""
        with self._lock:
            self._waiting.deliver(self._leases.end(seqs))
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

    def oldest_s(self) -> float | None:
        """See `Queue.oldest_s`."""
        return max(self.ages_s().values(), default=None)

    def ages_s(self) -> Mapping[int, float]:
        """See `Queue.ages_s`; what is not in the file yet is younger."""
        now_ms = self._clock.now_ms()
        with self._lock:
            firsts = {p: self._store.oldest(p, 1) for p in LADDER.descending()}
        return {
            priority: max(0.0, (now_ms - born_ms) / 1000)
            for priority, rows in firsts.items()
            for _, born_ms in rows
            if now_ms is not None and born_ms is not None
        }

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
            return stats_of(self._store, self._waiting.changes, len(self._leases))

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
            if self._notes is not None:
                self._notes.close()
            self._store.close()
            self._place.close()

    def _rows_to_wait(self, drafts: Sequence[Draft]) -> list[Row] | None:
        """The drafts as rows when they may wait in memory, or None."""
        promised = self._durability
        if not self._numbers.most_waiting or self._is_stuck or not drafts:
            return None
        is_low = all(d.priority < promised.urgent_from and not d.id for d in drafts)
        count = len(self._waiting.rows) + len(drafts)
        if not is_low or count >= promised.batch or not self._numbers.has(len(drafts)):
            return None
        _, rows = self._intake.rows(drafts, self._numbers.next)
        return rows if self._intake.fits(rows, self._waiting.changes) else None

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
            if not may_spend:
                raise
            self._reserve.spend()
            if self._notes is not None:
                self._notes.give_up()
            self._store.start_wal_again()
            ids = self._commit_once(drafts, state or {})
        self._is_stuck = False
        return ids

    def _commit_once(
        self, drafts: Sequence[Draft], state: Mapping[str, str]
    ) -> list[MessageId | None]:
        changes = self._waiting.changes.copy()
        with self._store.transaction():
            self._waiting.write(self._store, changes)
            numbers = self._numbers.drawn(len(drafts), self._store)
            ids, rows = self._intake.put(drafts, numbers.next, changes)
            self._reap_expired(changes)
            void = self._notes.void() if self._notes else {}
            told = {**numbers.text(), **self._clock.text(), **void}
            self._store.remember({**self._waiting.state, **state, **told})
            self._store.apply(changes)
        # Only now: a failed transaction must leave the memory as it was.
        if self._notes is not None:
            self._notes.committed()
        if changes.reasons != self._waiting.changes.reasons:
            self._free.forget_pages()
        self._free.stored(self._waiting.settle())
        self._free.stored(by_priority(rows))
        self._leases.forget_read()
        if self._reserve.is_kept:
            self._store.bound_growth()
        else:  # what the reserve gave is for messages, not for the log
            self._store.start_wal_again()
        # Without a block, a number left over must not be used after those of others.
        rest = numbers.used(len(rows))
        self._numbers = rest if rest.most_waiting else Numbers()
        return ids

    def _reap_expired(self, changes: Changes) -> None:
        """Drop what outlived its time, a bounded number a commit."""
        for priority in self._clock.mortal:
            for seq, born_ms in self._store.oldest(priority, REAP_BATCH):
                is_old = self._clock.is_expired(priority, born_ms)
                if is_old and seq not in self._leases:
                    cost = self._store.delete(priority, seq) or 0
                    changes.dropped(priority, cost, EXPIRED)

    def _lease(
        self,
        priority: int,
        newest: bool,
        taken: list[Row],
        most: tuple[int, int | None],
    ) -> bool:
        """Take messages of one priority; whether a less urgent one may come next."""
        limit, max_bytes = most
        while len(taken) < limit:
            rows = self._free.some(priority, newest, limit - len(taken))
            if not rows:
                return True
            sound = list(takewhile(self._is_sound, rows))
            if not sound:
                self._skip(rows[0], newest)
                # The caller asks again; nothing less urgent may go meanwhile.
                if self._skipped >= MOST_GONE:
                    return False
                continue
            fitting = _fitting(taken, sound, max_bytes)
            if fitting:
                self._free.take(fitting, newest)
                taken += fitting
            if len(fitting) < len(sound):
                return False
        return False

    def _skip(self, row: Row, newest: bool) -> None:
        """Drop a message instead of leasing it."""
        if not row.is_sound:
            log.error("message %s does not match its checksum: dropped", row.message.id)
        self._skipped += 1
        self._free.take([row], newest)
        self._leases.end([row.seq])
        self._waiting.drop(row, EXPIRED if row.is_sound else DAMAGED)

    def _is_sound(self, row: Row) -> bool:
        return row.is_sound and not self._is_expired(row)

    def _is_expired(self, row: Row) -> bool:
        # Most rows have no age to look at.
        born_ms = row.born_ms
        return born_ms is not None and self._clock.is_expired(row.priority, born_ms)

    def _write_soon(self) -> None:
        """Let the next commit or the window's end write what waits."""
        if len(self._waiting.gone) >= self._most_gone:
            self._try_flush()
        elif self._waiting:
            self._committer.wake()

    def _notes_of_own(self) -> Notes | None:
        """Take over what the process before us left."""
        place = notes_path(self._place.path)
        settle(self._store, take_over(self._store, place))
        return opened(self._store, place)

    def _is_noted(self) -> bool:
        """Whether what waits is on the disk without a commit."""
        rows, state = self._waiting.rows.values(), self._waiting.state
        if self._notes is None or self._is_stuck:
            return False
        if not self._notes.has_new(rows, state):
            return not self._waiting.gone
        if not self._notes.add(rows, state):
            return False
        if self._waiting.gone:
            self._committer.wake()  # the next window without news removes them
        return True

    def _try_flush(self) -> None:
        """Put on the disk; on failure go on, and try again with the next commit."""
        with self._lock:
            try:
                if not self._is_noted():
                    self.flush()
            except QueueFileError as error:
                if not self._is_stuck:
                    log.error("queue cannot write, and waits: %s", error)  # noqa: TRY400
                self._is_stuck = True
                self._committer.wake()


def _fitting(
    taken: Sequence[Row], rows: Sequence[Row], max_bytes: int | None
) -> Sequence[Row]:
    """The first rows whose payloads fit beside what is taken; the very first always."""
    if max_bytes is None:
        return rows
    left = max_bytes - sum(len(row.payload) for row in taken)
    for count, row in enumerate(rows):
        left -= len(row.payload)
        if left < 0 and (taken or count):
            return rows[:count]
    return rows
