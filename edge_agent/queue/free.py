"""The messages that nobody holds: what may be leased next, from either end.

They are in three places: given back, waiting in memory, and stored. Of the stored
ones a page is kept for each priority and end, until somebody else writes to the
file; what we store ourselves is added to it, so that a message which goes out at
once is not read from the file at all.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from edge_agent.queue.leases import Leases
from edge_agent.queue.row import LARGE_BYTES, Row
from edge_agent.queue.store import Store
from edge_agent.queue.waiting import Waiting

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
