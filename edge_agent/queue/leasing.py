"""Leases, pending changes, and a cache of the messages that can be leased next.

All of this is in memory: after a crash every message in the file is unleased.
Unleased messages are released ones, pending ones, and stored ones. Of the stored ones
a page is cached for each priority and end until another process writes to the file.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from edge_agent.queue.store import (
    DROPPED_FULL,
    LARGE_BYTES,
    PAGE_BYTES,
    CounterDeltas,
    QueueRow,
    Store,
    total_cost_bytes,
)
from spatial_mqtt.custody import IntervalSet


class ReadRanges(IntervalSet):
    """Sequence numbers that have been read: they need not be searched again."""

    @property
    def highest(self) -> int:
        """Highest number in the set, or 0."""
        return self._high[-1] if self._high else 0

    def end_below(self, number: int) -> int:
        """Highest end of the ranges that start below a number, or 0."""
        at = bisect_left(self._low, number)
        return self._high[at - 1] if at else 0

    def start_above(self, number: int) -> int | None:
        """Lowest start of the ranges that start above a number, or None."""
        at = bisect_right(self._low, number)
        return self._low[at] if at < len(self._low) else None

    def gaps(self, newest: bool) -> Iterator[tuple[int, int | None]]:
        """Exclusive bounds of each gap, from one end; None without an upper bound.

        The caller may close a gap before it fetches the next one.
        """
        if newest:
            yield from self._gaps_down()
        else:
            yield from self._gaps_up()

    def retain(self, numbers: Iterable[int]) -> None:
        """Remove the ranges that contain none of these numbers."""
        found = {bisect_right(self._low, number) - 1 for number in numbers}
        kept = sorted(at for at in found if at >= 0)
        self._low = [self._low[at] for at in kept]
        self._high = [self._high[at] for at in kept]

    def _gaps_up(self) -> Iterator[tuple[int, int | None]]:
        after = self.end_below(2)
        while (before := self.start_above(after)) is not None:
            yield after, before
            after = self.end_below(before + 1)
        yield after, None

    def _gaps_down(self) -> Iterator[tuple[int, int | None]]:
        before: int | None = None
        at = len(self._low)
        while at > 0:
            yield self._high[at - 1], before
            # Closing this gap has joined two ranges into the lower one.
            at = min(at, len(self._low))
            before = self._low[at - 1]
            at -= 1
        if before is None or before > 1:
            yield 0, before


MAX_SPARE_RANGES = 16
"""Number of ranges without leased or released messages that is tolerated."""


class LeaseTable:
    """Leased messages of one queue, and the ranges that were read of each priority.

    In these ranges, the only unleased stored messages are released ones. Leasing the
    oldest extends the first range; leasing the newest starts a range at the other
    end, and both grow towards each other. Other processes store their numbers in
    order, so these never appear inside a range. Numbers from our own reserved block
    can, and are then treated as released.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self._leased: dict[int, QueueRow] = {}
        self._read = {p: ReadRanges() for p in priorities}
        self._released: dict[int, list[int]] = {p: [] for p in self._read}

    def __len__(self) -> int:
        """Number of leased messages."""
        return len(self._leased)

    def __contains__(self, seq: int) -> bool:
        """Whether a message is leased."""
        return seq in self._leased

    def rows(self, priority: int) -> list[QueueRow]:
        """Leased messages of a priority."""
        return [row for row in self._leased.values() if row.priority == priority]

    def gaps(self, priority: int, newest: bool) -> Iterator[tuple[int, int | None]]:
        """Exclusive bounds of each unread gap, from one end."""
        return self._read[priority].gaps(newest)

    def close_gap(self, priority: int, after: int, before: int) -> None:
        """Record that nothing is stored between these numbers."""
        self._read[priority].add(after + 1, before - 1)

    def first_released(self, priority: int, newest: bool) -> int | None:
        """Lowest or highest released number of a priority, or None."""
        released = self._released[priority]
        return released[-1 if newest else 0] if released else None

    def lease(self, rows: Sequence[QueueRow], newest: bool) -> None:
        """Lease the next messages of one priority.

        Args:
            rows: Contiguous from that end: no unleased message is between or beyond.
            newest: Which end it is.
        """
        priority, first, last = rows[0].priority, rows[0].seq, rows[-1].seq
        self.discard_released(priority, first)
        read = self._read[priority]
        if newest:
            above = read.start_above(first)
            read.add(last, first if above is None else above - 1)
        else:
            read.add(min(first, read.end_below(first) + 1), last)
        self._leased.update({row.seq: row for row in rows})

    def add_stored(self, rows: Sequence[QueueRow]) -> Sequence[QueueRow]:
        """Add unleased messages of one priority, in order, that are in the file now.

        Returns:
            Those outside the ranges that were read; the others count as released.
        """
        priority = rows[0].priority
        read = self._read[priority]
        if rows[0].seq > read.highest:
            return rows
        for row in rows:
            if row.seq in read:
                insort(self._released[priority], row.seq)
        return [row for row in rows if row.seq not in read]

    def discard_released(self, priority: int, seq: int) -> None:
        """Remove a number from the released ones, if present."""
        released = self._released[priority]
        at = bisect_left(released, seq)
        if at < len(released) and released[at] == seq:
            del released[at]

    def remove(self, seqs: Iterable[int]) -> list[QueueRow]:
        """Remove leases; return the messages that were leased."""
        found = [self._leased.pop(seq, None) for seq in seqs]
        return [row for row in found if row is not None]

    def release(self, seqs: Iterable[int]) -> None:
        """Release messages; ignore unknown numbers."""
        for row in self.remove(seqs):
            insort(self._released[row.priority], row.seq)

    def release_all(self) -> int:
        """Release all messages; return their number."""
        count = len(self._leased)
        for seq, row in self._leased.items():
            self._released[row.priority].append(seq)
        self._leased.clear()
        for released in self._released.values():
            released.sort()
        return count

    def compact_ranges(self) -> None:
        """Remove ranges without messages, when there are many of them.

        Call it when the file contains no acknowledged messages: the removed ranges
        are then empty, and reading them again costs nothing.
        """
        count = len(self._leased) + sum(map(len, self._released.values()))
        if sum(map(len, self._read.values())) <= 2 * count + MAX_SPARE_RANGES:
            return
        kept: dict[int, list[int]] = {p: list(s) for p, s in self._released.items()}
        for seq, row in self._leased.items():
            kept[row.priority].append(seq)
        for priority, seqs in kept.items():
            self._read[priority].retain(seqs)


_LARGEST_IN_PAGE = 1000
"""SQLite gives each larger message pages of its own."""

_WINDOW_BYTES = 64 * 1024
"""In the file and its log this is twice as much: what the deleted journal frees."""


def _file_bytes(rows: Sequence[QueueRow]) -> int:
    """Bytes by which messages may grow the file."""
    large = sum(row.cost_bytes > _LARGEST_IN_PAGE for row in rows)
    return total_cost_bytes(rows) + large * PAGE_BYTES


class PendingChanges:
    """Changes in memory, all of which the next commit writes.

    Attributes:
        rows: New messages by sequence number, some of them leased.
        state: Key-value pairs to store.
        removed: Stored messages to remove.
        moved: Those of them that another queue has.
        counters: Counter deltas for all of these.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self.rows: dict[int, QueueRow] = {}
        self.state: dict[str, str] = {}
        self.removed: list[QueueRow] = []
        self.moved: list[QueueRow] = []
        self.counters = CounterDeltas()
        self._unleased: dict[int, deque[int]] = {p: deque() for p in priorities}

    def __bool__(self) -> bool:
        """Whether there is something to write; counters alone do not count."""
        return bool(self.rows or self.state or self.removed)

    def add(self, row: QueueRow) -> None:
        """Add a new message."""
        self.rows[row.seq] = row
        self._unleased[row.priority].append(row.seq)
        self.counters.add_put([row])

    def has_room(self, new: Sequence[QueueRow]) -> bool:
        """Whether an alarm on a full disk can take these along without the reserve."""
        return _file_bytes([*self.rows.values(), *new]) <= _WINDOW_BYTES

    def peek(self, priority: int, newest: bool) -> QueueRow | None:
        """The oldest or newest message of a priority that was never leased."""
        unleased = self._unleased[priority]
        return self.rows[unleased[-1 if newest else 0]] if unleased else None

    def make_room(self, new: Sequence[QueueRow], max_bytes: int) -> bool:
        """Drop messages that are no more urgent until new ones fit.

        The least urgent are dropped first, of these the oldest: the newest have the
        level of the present. Messages that were ever leased are kept.

        Returns:
            False when the new ones cannot fit; they then count as dropped.
        """
        lowest = min(row.priority for row in new)
        excess = _file_bytes([*self.rows.values(), *new]) - max_bytes
        chosen: list[QueueRow] = []
        for priority in sorted(p for p in self._unleased if p <= lowest):
            for seq in self._unleased[priority]:
                if excess <= 0:
                    break
                chosen.append(self.rows[seq])
                excess -= _file_bytes(chosen[-1:])
        if excess > 0:
            self.counters.add_put(new)
            for row in new:
                self.counters.add_dropped(row.priority, row.cost_bytes, DROPPED_FULL)
            return False
        for row in chosen:
            self._unleased[row.priority].popleft()
            self.drop(row, DROPPED_FULL)
        return True

    def mark_leased(self, priority: int, seq: int) -> None:
        """Mark a message at either end as leased."""
        unleased = self._unleased[priority]
        if unleased and unleased[0] == seq:
            unleased.popleft()
        elif unleased and unleased[-1] == seq:
            unleased.pop()

    def acknowledge(self, rows: Sequence[QueueRow]) -> None:
        """Remove acknowledged messages."""
        self.counters.add_acked(rows)
        self._remove(rows)

    def hand_over(self, rows: Sequence[QueueRow]) -> None:
        """Remove messages that another queue has, and forget their ids."""
        self.acknowledge(rows)
        self.moved += rows

    def drop(self, row: QueueRow, reason: str) -> None:
        """Remove a message and count it as dropped."""
        self.counters.add_dropped(row.priority, row.cost_bytes, reason)
        self._remove([row])

    def _remove(self, rows: Iterable[QueueRow]) -> None:
        stored = [row for row in rows if self.rows.pop(row.seq, None) is None]
        self.removed += stored

    def write(self, store: Store, changes: CounterDeltas) -> None:
        """Write everything but the counters, in the caller's transaction."""
        store.insert(self.rows.values())
        for row in store.delete_rows(self.removed):
            # Another process has evicted and counted it already.
            changes.add_stored(row.priority, 1, row.cost_bytes)
        for row in self.moved:
            store.known_ids.forget(row.message.id)

    def commit_removals(
        self, store: Store, count: int, check: Callable[[Store], None]
    ) -> None:
        """Commit the first removals alone, if a check before the commit passes.

        Their other counters are written with everything else: after a crash before
        that, only those are too low.
        """
        rows = self.removed[:count]
        seqs = {row.seq for row in rows}
        changes = CounterDeltas()
        with store.transaction():
            missing = {row.seq for row in store.delete_rows(rows)}
            for row in rows:
                if row.seq not in missing:
                    changes.add_stored(row.priority, -1, -row.cost_bytes)
            for row in self.moved:
                if row.seq in seqs:
                    store.known_ids.forget(row.message.id)
            store.apply_deltas(changes)
            check(store)
        del self.removed[:count]
        self.moved = [row for row in self.moved if row.seq not in seqs]
        for row in rows:
            self.counters.add_stored(row.priority, 1, row.cost_bytes)

    def clear_committed(self) -> dict[int, list[QueueRow]]:
        """Clear everything after its commit.

        Returns:
            The committed unleased messages by priority, in order.
        """
        stored = {
            priority: [self.rows[seq] for seq in unleased]
            for priority, unleased in self._unleased.items()
            if unleased
        }
        for priority in stored:
            self._unleased[priority].clear()
        self.rows.clear()
        self.state.clear()
        self.removed.clear()
        self.moved.clear()
        self.counters = CounterDeltas()
        return stored


PAGE_ROWS, MAX_PAGE_ROWS = 32, 64
"""Messages read from the file at once: by default, and at most."""


class ReadyPage:
    """Unleased stored messages of one priority from one end, the next one first.

    Attributes:
        rows: The messages.
        is_complete: Whether there are no others.
    """

    def __init__(self, rows: Iterable[QueueRow], is_complete: bool) -> None:
        self.rows = deque(rows)
        self.is_complete = is_complete

    def consume(self, first: int, last: int) -> None:
        """Remove the messages between two numbers from both ends of the page."""
        rows = self.rows
        while rows and first <= rows[0].seq <= last:
            rows.popleft()
        while rows and first <= rows[-1].seq <= last:
            rows.pop()

    def add_newer(self, rows: Sequence[QueueRow]) -> bool:
        """Append to a page with the oldest first; False when they are not newer."""
        if self.rows and rows[0].seq < self.rows[-1].seq:
            return False
        if self.is_complete and _are_small(rows):
            limit = MAX_PAGE_ROWS - len(self.rows)
            self.rows.extend(rows[:limit])
            self.is_complete = len(rows) <= limit
        else:
            self.is_complete = False
        return True

    def add_newest(self, rows: Sequence[QueueRow]) -> bool:
        """Prepend to a page with the newest first; False when that is not possible."""
        if (self.rows and rows[0].seq < self.rows[0].seq) or not _are_small(rows):
            return False
        self.rows.extendleft(rows)
        while len(self.rows) > MAX_PAGE_ROWS:
            self.rows.pop()
            self.is_complete = False
        return True


class ReadyCache:
    """Finds and leases the next messages.

    Args:
        store: The file.
        pending: Changes that are not in it yet.
        leases: The leased messages.
    """

    def __init__(
        self, store: Store, pending: PendingChanges, leases: LeaseTable
    ) -> None:
        self._store = store
        self._pending = pending
        self._leases = leases
        self._version = 0
        self._pages: dict[tuple[int, bool], ReadyPage] = {}

    def refresh(self) -> None:
        """Clear the cache when another process has written to the file."""
        version = self._store.data_version()
        if version != self._version:
            self._version = version
            self._pages.clear()

    def clear(self) -> None:
        """Clear the cache after stored messages were dropped."""
        self._pages.clear()

    def has_any(self, priority: int) -> bool:
        """Whether a priority has an unleased message."""
        return (
            self._pending.peek(priority, newest=False) is not None
            or bool(self._page(priority, newest=False, limit=1).rows)
            or self._first_released(priority, newest=False) is not None
        )

    def peek(
        self, priority: int, newest: bool = False, limit: int = 1
    ) -> list[QueueRow]:
        """Next unleased messages of a priority from one end, without leasing them.

        They are contiguous: no unleased message is between them or beyond them. The
        list is empty only when there is none.
        """
        stored = self._page(priority, newest, limit).rows
        released = self._first_released(priority, newest)
        pending = self._pending.peek(priority, newest)
        if released is None and pending is None:
            return list(islice(stored, limit))
        ends = [row for row in (released, pending) if row is not None]
        ends += islice(stored, 1)
        ends.sort(key=lambda row: row.seq, reverse=newest)
        return ends[:1]

    def oldest(self, priority: int) -> list[QueueRow]:
        """The oldest message of a priority, leased or not; empty without one."""
        rows = [*self.peek(priority), *self._leases.rows(priority)]
        return sorted(rows, key=lambda row: row.seq)[:1]

    def lease(self, rows: Sequence[QueueRow], newest: bool = False) -> None:
        """Lease messages that `peek` returned, or the first of them."""
        priority = rows[0].priority
        first, last = sorted((rows[0].seq, rows[-1].seq))
        for from_newest in (False, True):
            page = self._pages.get((priority, from_newest))
            if page is not None and page.rows:
                page.consume(first, last)
        self._pending.mark_leased(priority, rows[0].seq)
        self._leases.lease(rows, newest)

    def add_stored(self, groups: Mapping[int, Sequence[QueueRow]]) -> None:
        """Add unleased messages that are in the file now, by priority and in order."""
        for priority, rows in groups.items():
            new = self._leases.add_stored(rows)
            oldest = self._pages.get((priority, False))
            if new and oldest is not None and not oldest.add_newer(new):
                del self._pages[priority, False]
            newest = self._pages.get((priority, True))
            if new and newest is not None and not newest.add_newest(new):
                del self._pages[priority, True]

    def _first_released(self, priority: int, newest: bool) -> QueueRow | None:
        while (seq := self._leases.first_released(priority, newest)) is not None:
            row = self._pending.rows.get(seq) or self._store.read_row(priority, seq)
            if row is not None:
                return row
            self._leases.discard_released(priority, seq)
        return None

    def _page(self, priority: int, newest: bool, limit: int) -> ReadyPage:
        page = self._pages.get((priority, newest))
        if page is None or not (page.rows or page.is_complete):
            page = self._read_page(
                priority, newest, min(max(limit, PAGE_ROWS), MAX_PAGE_ROWS)
            )
            self._pages[priority, newest] = page
        return page

    def _read_page(self, priority: int, newest: bool, limit: int) -> ReadyPage:
        for after, before in self._leases.gaps(priority, newest):
            rows = self._store.read_between(priority, after, before, limit, newest)
            if rows:
                is_last = not after if newest else before is None
                is_all = len(rows) < limit and _are_small(rows[-1:])
                return ReadyPage(rows, is_last and is_all)
            if before is not None:
                self._leases.close_gap(priority, after, before)
        return ReadyPage((), is_complete=True)


def _are_small(rows: Iterable[QueueRow]) -> bool:
    return all(len(row.payload) <= LARGE_BYTES for row in rows)


def fitting_rows(
    leased: Sequence[QueueRow], rows: Sequence[QueueRow], max_bytes: int | None
) -> Sequence[QueueRow]:
    """The first rows whose payloads fit beside `leased`; at least one in total."""
    if max_bytes is None:
        return rows
    left = max_bytes - sum(len(row.payload) for row in leased)
    for count, row in enumerate(rows):
        left -= len(row.payload)
        if left < 0 and (leased or count):
            return rows[:count]
    return rows
