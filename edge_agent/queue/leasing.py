"""Leases: which messages are out, in memory, and where to look for the next.

A crash forgets them, and so gives every leased message back.

The messages that nobody holds: what may be leased next, from either end.

They are in three places: given back, waiting in memory, and stored. Of the stored
ones a page is kept for each priority and end, until somebody else writes to the
file; what we store ourselves is added to it, so that a message which goes out at
once is not read from the file at all.

What the file does not know yet: messages, values, removals and counts.

Ranges of numbers: where nobody need look again.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from edge_agent.queue.store import (
    LARGE_BYTES,
    Changes,
    Row,
    Store,
    by_priority,
    cost_of,
)


class Ranges:
    """Numbers from 1 up as few ranges; those that touch become one."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        """Whether a number lies in a range."""
        at = bisect_right(self._starts, number)
        return at > 0 and number <= self._ends[at - 1]

    @property
    def top(self) -> int:
        """The highest number in a range, or 0."""
        return self._ends[-1] if self._ends else 0

    def add(self, start: int, end: int) -> None:
        """Cover the numbers from start to end, both included."""
        first = bisect_left(self._ends, start - 1)
        last = bisect_right(self._starts, end + 1)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def below(self, number: int) -> int:
        """Highest end of the ranges that begin below a number, or 0."""
        at = bisect_left(self._starts, number)
        return self._ends[at - 1] if at else 0

    def above(self, number: int) -> int | None:
        """Lowest start of the ranges that begin above a number, or None."""
        at = bisect_right(self._starts, number)
        return self._starts[at] if at < len(self._starts) else None

    def gaps(self, newest: bool) -> Iterator[tuple[int, int | None]]:
        """Numbers beside each gap, from one end; None when it has no upper end.

        The caller may close a gap that it was given before it asks for the next.
        """
        if newest:
            yield from self._gaps_down()
        else:
            yield from self._gaps_up()

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget the ranges that hold none of these numbers."""
        places = {bisect_right(self._starts, number) - 1 for number in numbers}
        kept = sorted(at for at in places if at >= 0)
        self._starts = [self._starts[at] for at in kept]
        self._ends = [self._ends[at] for at in kept]

    def _gaps_up(self) -> Iterator[tuple[int, int | None]]:
        after = self.below(2)
        while (before := self.above(after)) is not None:
            yield after, before
            after = self.below(before + 1)
        yield after, None

    def _gaps_down(self) -> Iterator[tuple[int, int | None]]:
        before: int | None = None
        at = len(self._starts)
        while at > 0:
            yield self._ends[at - 1], before
            # Closing this gap joined two ranges into the lower one.
            at = min(at, len(self._starts))
            before = self._starts[at - 1]
            at -= 1
        if before is None or before > 1:
            yield 0, before


SPARE_RANGES = 16
"""So many ranges more than messages out are not worth forgetting."""


class Leases:
    """Leased messages of one queue, and for each priority what was read.

    In the ranges that were read no stored message is free but for those that were
    given back. Leasing the oldest makes the first range longer; leasing the newest
    begins one at the other end, and both grow towards each other. Numbers of other
    processes are stored in their order, so they never appear in such a range; our
    own ones may, when they come from a block, and are then added to those that
    were given back.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self._out: dict[int, Row] = {}
        self._read = {p: Ranges() for p in priorities}
        self._back: dict[int, list[int]] = {p: [] for p in self._read}

    def __len__(self) -> int:
        """How many messages are out."""
        return len(self._out)

    def __contains__(self, seq: int) -> bool:
        """Whether a message is out."""
        return seq in self._out

    def gaps(self, priority: int, newest: bool) -> Iterator[tuple[int, int | None]]:
        """Numbers beside each gap that was not read, from one end."""
        return self._read[priority].gaps(newest)

    def close_gap(self, priority: int, after: int, before: int) -> None:
        """Nothing is stored between these numbers."""
        self._read[priority].add(after + 1, before - 1)

    def returned(self, priority: int, newest: bool) -> int | None:
        """Lowest or highest number of a priority that was given back."""
        back = self._back[priority]
        return back[-1 if newest else 0] if back else None

    def take(self, rows: Sequence[Row], newest: bool) -> None:
        """Lease messages of one priority that nothing free lies between or beyond.

        Args:
            rows: From the end that is eaten.
            newest: Which end that is.
        """
        priority, first, last = rows[0].priority, rows[0].seq, rows[-1].seq
        self.forget_returned(priority, first)
        read = self._read[priority]
        if newest:
            above = read.above(first)
            read.add(last, first if above is None else above - 1)
        else:
            read.add(min(first, read.below(first) + 1), last)
        self._out.update({row.seq: row for row in rows})

    def stored(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Free messages of our own, of one priority and in order, are in the file.

        Returns:
            Those whose place was not read before; the others count as given back.
        """
        priority = rows[0].priority
        read = self._read[priority]
        if rows[0].seq > read.top:
            return rows
        for row in rows:
            if row.seq in read:
                insort(self._back[priority], row.seq)
        return [row for row in rows if row.seq not in read]

    def forget_returned(self, priority: int, seq: int) -> None:
        """Drop a number from those that were given back, if it is there."""
        back = self._back[priority]
        at = bisect_left(back, seq)
        if at < len(back) and back[at] == seq:
            del back[at]

    def end(self, seqs: Iterable[int]) -> list[Row]:
        """Messages need not be leased again; those of them that were out."""
        found = [self._out.pop(seq, None) for seq in seqs]
        return [row for row in found if row is not None]

    def give_back(self, seq: int) -> None:
        """The message will be leased again; unknown numbers are let go."""
        row = self._out.pop(seq, None)
        if row is not None:
            insort(self._back[row.priority], seq)

    def give_all_back(self) -> int:
        """Give back everything; how many there were."""
        count = len(self._out)
        for seq, row in self._out.items():
            self._back[row.priority].append(seq)
        self._out.clear()
        for back in self._back.values():
            back.sort()
        return count

    def forget_read(self) -> None:
        """Keep only ranges with messages in them, when there are many others.

        Call it when everything that was delivered is out of the file: the rest of
        a range is then empty, and reading it again costs nothing.
        """
        held = len(self._out) + sum(map(len, self._back.values()))
        if sum(map(len, self._read.values())) <= 2 * held + SPARE_RANGES:
            return
        kept: dict[int, list[int]] = {p: list(b) for p, b in self._back.items()}
        for seq, row in self._out.items():
            kept[row.priority].append(seq)
        for priority, seqs in kept.items():
            self._read[priority].keep(seqs)


class Waiting:
    """Changes in memory, all of which the next commit takes.

    Attributes:
        rows: Messages by number, some of them out on lease.
        state: Values to remember.
        gone: Stored messages to remove.
        changes: Of the tally, for all of these.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self.rows: dict[int, Row] = {}
        self.state: dict[str, str] = {}
        self.gone: list[Row] = []
        self.changes = Changes()
        self._free: dict[int, deque[int]] = {p: deque() for p in priorities}

    def __bool__(self) -> bool:
        """Whether there is something to write; counts alone can wait for it."""
        return bool(self.rows or self.state or self.gone)

    def add(self, row: Row) -> None:
        """A message was put."""
        self.rows[row.seq] = row
        self._free[row.priority].append(row.seq)
        self.changes.put(row.priority, row.cost)

    def end(self, priority: int, newest: bool) -> Row | None:
        """The oldest or newest message of a priority that was never leased."""
        free = self._free[priority]
        return self.rows[free[-1 if newest else 0]] if free else None

    def take(self, priority: int, seq: int) -> None:
        """A message is leased from one end."""
        free = self._free[priority]
        if free and free[0] == seq:
            free.popleft()
        elif free and free[-1] == seq:
            free.pop()

    def deliver(self, rows: Iterable[Row]) -> None:
        """Messages were acknowledged."""
        for priority, group in by_priority(rows).items():
            self.changes.acked(priority, cost_of(group), len(group))
            self._remove(group)

    def drop(self, row: Row, reason: str) -> None:
        """A message is given up."""
        self.changes.dropped(row.priority, row.cost, reason)
        self._remove([row])

    def _remove(self, rows: Iterable[Row]) -> None:
        stored = [row for row in rows if self.rows.pop(row.seq, None) is None]
        self.gone += stored

    def write(self, store: Store, changes: Changes) -> None:
        """Write everything but the counts, in the caller's transaction."""
        rows = self.rows.values()
        store.insert(rows, cost_of(rows))
        for row in store.discard(self.gone):
            # Another process made room with it, and has counted that.
            changes.held(row.priority, 1, row.cost)

    def settle(self) -> dict[int, list[Row]]:
        """Everything is in the file: forget it here.

        Returns:
            The messages of each priority that are stored now and free, in order.
        """
        stored = {
            priority: [self.rows[seq] for seq in free]
            for priority, free in self._free.items()
            if free
        }
        for priority in stored:
            self._free[priority].clear()
        self.rows.clear()
        self.state.clear()
        self.gone.clear()
        self.changes = Changes()
        return stored


PAGE_ROWS, MOST_ROWS = 32, 64
"""Stored messages that are read at once: usually, and when many are asked for."""


class Page:
    """Free stored messages of one priority from one end, the next one first.

    Attributes:
        rows: The messages.
        is_whole: Whether these are all that there are.
    """

    def __init__(self, rows: Iterable[Row], is_whole: bool) -> None:
        self.rows = deque(rows)
        self.is_whole = is_whole

    def eat(self, first: int, last: int) -> None:
        """Remove from both ends what lies between two numbers."""
        rows = self.rows
        while rows and first <= rows[0].seq <= last:
            rows.popleft()
        while rows and first <= rows[-1].seq <= last:
            rows.pop()

    def add_newer(self, rows: Sequence[Row]) -> bool:
        """Add messages where the oldest come first; False when they are not newer."""
        if self.rows and rows[0].seq < self.rows[-1].seq:
            return False
        if self.is_whole and _are_small(rows):
            room = MOST_ROWS - len(self.rows)
            self.rows.extend(rows[:room])
            self.is_whole = len(rows) <= room
        else:
            self.is_whole = False
        return True

    def add_newest(self, rows: Sequence[Row]) -> bool:
        """Add messages where the newest come first; False when they are not that."""
        if (self.rows and rows[0].seq < self.rows[0].seq) or not _are_small(rows):
            return False
        self.rows.extendleft(rows)
        while len(self.rows) > MOST_ROWS:
            self.rows.pop()
            self.is_whole = False
        return True


class Free:
    """Finds and takes free messages.

    Args:
        store: The file.
        waiting: What is not in it yet.
        leases: What is out.
    """

    def __init__(self, store: Store, waiting: Waiting, leases: Leases) -> None:
        self._store = store
        self._waiting = waiting
        self._leases = leases
        self._version = 0
        self._pages: dict[tuple[int, bool], Page] = {}

    def refresh(self) -> None:
        """Forget what was read when another process has written since."""
        version = self._store.version()
        if version != self._version:
            self._version = version
            self._pages.clear()

    def forget_pages(self) -> None:
        """Stored messages were dropped: read again."""
        self._pages.clear()

    def some(self, priority: int, newest: bool = False, limit: int = 1) -> list[Row]:
        """Free messages of a priority from one end, at least one if there is one.

        Nothing free lies between them or beyond them.
        """
        stored = self._page(priority, newest, limit).rows
        returned = self._returned(priority, newest)
        waiting = self._waiting.end(priority, newest)
        if returned is None and waiting is None:
            return list(islice(stored, limit))
        ends = [row for row in (returned, waiting) if row is not None]
        ends += islice(stored, 1)
        ends.sort(key=lambda row: row.seq, reverse=newest)
        return ends[:1]

    def take(self, rows: Sequence[Row], newest: bool = False) -> None:
        """Lease messages that `some` gave, from their beginning."""
        priority = rows[0].priority
        first, last = sorted((rows[0].seq, rows[-1].seq))
        for from_newest in (False, True):
            page = self._pages.get((priority, from_newest))
            if page is not None and page.rows:
                page.eat(first, last)
        self._waiting.take(priority, rows[0].seq)
        self._leases.take(rows, newest)

    def stored(self, groups: Mapping[int, Sequence[Row]]) -> None:
        """Free messages of our own are in the file now, by priority and in order."""
        for priority, rows in groups.items():
            new = self._leases.stored(rows)
            oldest = self._pages.get((priority, False))
            if new and oldest is not None and not oldest.add_newer(new):
                del self._pages[priority, False]
            newest = self._pages.get((priority, True))
            if new and newest is not None and not newest.add_newest(new):
                del self._pages[priority, True]

    def _returned(self, priority: int, newest: bool) -> Row | None:
        while (seq := self._leases.returned(priority, newest)) is not None:
            row = self._waiting.rows.get(seq) or self._store.row(priority, seq)
            if row is not None:
                return row
            self._leases.forget_returned(priority, seq)
        return None

    def _page(self, priority: int, newest: bool, limit: int) -> Page:
        page = self._pages.get((priority, newest))
        if page is None or not (page.rows or page.is_whole):
            page = self._read(priority, newest, min(max(limit, PAGE_ROWS), MOST_ROWS))
            self._pages[priority, newest] = page
        return page

    def _read(self, priority: int, newest: bool, limit: int) -> Page:
        for after, before in self._leases.gaps(priority, newest):
            rows = self._store.between(priority, after, before, limit, newest)
            if rows:
                is_last = not after if newest else before is None
                is_all = len(rows) < limit and _are_small(rows[-1:])
                return Page(rows, is_last and is_all)
            if before is not None:
                self._leases.close_gap(priority, after, before)
        return Page((), is_whole=True)


def _are_small(rows: Iterable[Row]) -> bool:
    return all(len(row.payload) <= LARGE_BYTES for row in rows)
