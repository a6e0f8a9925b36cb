"""The durable queue in one SQLite file.

What `Durability` calls urgent is on the disk before `put` returns (WAL,
synchronous FULL); the rest may wait in memory for one group commit. Several
processes may put into one file, one of them leases.

The thread that ends each commit window; it starts when something waits.

What a queue holds and what went through it: the file and memory together.

From drafts to rows, and into the file: everything a put needs but the commit.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from edge_agent.queue.base import (
    EVERY_PUT,
    Ageing,
    Depth,
    Draft,
    Durability,
    Message,
    OnPut,
    QueueClock,
    QueueDiskFullError,
    QueueFileError,
    Stats,
    ladder_of,
)
from edge_agent.queue.eviction import Budget, Room
from edge_agent.queue.file_lifecycle import Place
from edge_agent.queue.leasing import Free, Leases, Waiting
from edge_agent.queue.store import (
    COLUMNS,
    DAMAGED,
    EXPIRED,
    Changes,
    Row,
    Store,
    by_priority,
    checksum,
    cost_of,
)
from edge_agent.queue.write_journal import (
    LOST_AT_MOST,
    OPEN_BLOCK,
    Notes,
    Numbers,
    notes_path,
    opened,
    settle,
    take_over,
)
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId


class Committer:
    """Commits once, at most a window after it was woken.

    Args:
        window_s: Longest wait.
        commit: Does it; whatever it cannot write it wakes us for again.
    """

    def __init__(self, window_s: float, commit: Callable[[], None]) -> None:
        self._window_s = window_s
        self._commit = commit
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something waits. Callers hold one lock among themselves."""
        if self._thread is None:
            # A daemon: a process that forgets to close must still be able to end.
            self._thread = threading.Thread(
                target=self._run, name="queue commits", daemon=True
            )
            self._thread.start()
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """End the thread without a last commit."""
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait()
            if self._stop.wait(self._window_s):
                return
            self._woken.clear()
            self._commit()


def stats_of(store: Store, changes: Changes, leased: int) -> Stats:
    """The file's tally with what it does not know yet.

    Args:
        store: The file.
        changes: Not in it yet.
        leased: Messages that are out.
    """
    tally = store.tally()
    now = {
        column: {p: row[column] + changes.of(p, column) for p, row in tally.items()}
        for column in COLUMNS
    }
    reasons: dict[int, dict[str, int]] = {p: {} for p in tally}
    for found in (store.reasons(), changes.reasons):
        for (priority, reason), count in found.items():
            held = reasons.setdefault(priority, {})
            held[reason] = held.get(reason, 0) + count
    return Stats(
        depth={p: Depth(now["rows"][p], now["bytes"][p]) for p in tally},
        leased=leased,
        put=now["put"],
        acked=now["acked"],
        dropped=now["dropped"],
        duplicates=sum(now["duplicates"].values()),
        reasons=reasons,
        lost_at_most=int(store.recall(LOST_AT_MOST) or 0),
    )


class Intake:
    """Gives messages their ids and rows, and makes room for them.

    Args:
        store: The file.
        room: Its budget.
        clock: The queue's time.
        node: Id of the node whose queue this is.
        boot: Id of its life.
    """

    def __init__(
        self, store: Store, room: Room, clock: QueueClock, node: str, boot: str
    ) -> None:
        self._store = store
        self._room = room
        self._clock = clock
        self._node = node
        self._boot = boot

    def rows(
        self, drafts: Sequence[Draft], first: int
    ) -> tuple[list[MessageId], list[Row]]:
        """The drafts as messages with numbers from `first` up."""
        node, boot, now_ms = self._node, self._boot, self._clock.now_ms()
        ids = [
            d.id or MessageId(node, boot, seq) for seq, d in enumerate(drafts, first)
        ]
        payloads = [d.encode(i) for d, i in zip(drafts, ids, strict=True)]
        rows = [
            Row(
                d.priority, seq, i.node, i.boot, i.seq, d.topic,
                checksum((d.priority, seq, i.node, i.boot, i.seq, d.topic), p), p,
                None if now_ms is None else now_ms - int(d.age_s * 1000),
            )
            for seq, (d, i, p) in enumerate(
                zip(drafts, ids, payloads, strict=True), first
            )
        ]  # fmt: skip
        return ids, rows

    def fits(self, rows: Sequence[Row], changes: Changes) -> bool:
        """Whether messages fit beside what is held, and none has to go for them."""
        costs = {p: cost_of(some) for p, some in by_priority(rows).items()}
        return self._room.is_enough(self._store, changes, costs)

    def put(
        self, drafts: Sequence[Draft], first: int, changes: Changes
    ) -> tuple[list[MessageId | None], list[Row]]:
        """Store drafts in the caller's transaction, but for duplicates.

        Returns:
            The id of each, None for a duplicate; and the rows stored.
        """
        is_new = [d.id is None or self._is_new(d, d.id, changes) for d in drafts]
        ids, rows = self.rows(
            [d for d, new in zip(drafts, is_new, strict=True) if new], first
        )
        self._insert(rows, changes)
        given = iter(ids)
        return [next(given) if new else None for new in is_new], rows

    def _is_new(self, draft: Draft, message_id: MessageId, changes: Changes) -> bool:
        """Whether an id was never taken; notes it. Our own may come by replay."""
        is_own = message_id.node == self._node
        if is_own and self._store.holds(message_id):
            is_new = False
        else:
            is_new = self._store.take(message_id)
        if not is_new:
            changes.duplicate(draft.priority)
        return is_new

    def _insert(self, rows: Sequence[Row], changes: Changes) -> None:
        """Store messages, one by one when others must go for them."""
        groups = by_priority(rows)
        costs = {priority: cost_of(some) for priority, some in groups.items()}
        if self._room.is_enough(self._store, changes, costs):
            self._store.insert(rows, sum(costs.values()))
            for priority, some in groups.items():
                changes.put(priority, costs[priority], len(some))
            return
        for row in rows:
            self._room.make(self._store, changes, row.priority, row.cost)
            self._store.insert([row], row.cost)
            changes.put(row.priority, row.cost)


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

    Attributes:
        on_put: Called after each `put` of messages, once they are as durable as
            `durability` promises; None by default.

    Raises:
        QueueFileError: The file cannot be opened.
    """

    on_put: OnPut | None = None

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
        ids = self._put(drafts, state)
        if drafts and self.on_put is not None:
            self.on_put(ids, drafts)
        return ids

    def _put(
        self, drafts: Sequence[Draft], state: Mapping[str, str] | None
    ) -> list[MessageId | None]:
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
        with self._lock:
            self._waiting.deliver(self._leases.end(seqs))
            self._write_soon()

    def release(self, seqs: Iterable[int]) -> None:
        with self._lock:
            for seq in seqs:
                self._leases.give_back(seq)

    def age_s(self, message: Message) -> float | None:
        now_ms = self._clock.now_ms()
        if now_ms is None or message.born_s is None:
            return None
        return max(0.0, now_ms / 1000 - message.born_s)

    def oldest_s(self) -> float | None:
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
        with self._lock:
            return self._leases.give_all_back()

    def recall(self, name: str) -> str | None:
        with self._lock:
            waiting = self._waiting.state.get(name)
            return self._store.recall(name) if waiting is None else waiting

    def stats(self) -> Stats:
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
