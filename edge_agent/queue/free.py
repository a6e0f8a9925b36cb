"""The messages that nobody holds: what may be leased next, from either end.

They are in three places: given back, waiting in memory, and stored. The stored
ones are read a page at a time and kept until somebody else writes to the file.
"""

from collections import deque
from collections.abc import Iterable

from edge_agent.queue.leases import Leases
from edge_agent.queue.store import Row, Store
from edge_agent.queue.waiting import Waiting

PAGE_ROWS = 32
"""Stored messages that are read at once."""


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
        # An empty page says that nothing is there; no page, that nobody looked.
        self._pages: dict[tuple[int, bool], deque[Row]] = {}

    def refresh(self) -> None:
        """Forget what was read when another process has written since."""
        version = self._store.version()
        if version != self._version:
            self._version = version
            self._pages.clear()

    def forget_pages(self) -> None:
        """Stored messages were dropped: read again."""
        self._pages.clear()

    def end(self, priority: int, newest: bool = False) -> Row | None:
        """The oldest or newest free message of a priority."""
        rows = filter(
            None,
            (
                self._returned(priority, newest),
                self._waiting.end(priority, newest),
                self._stored(priority, newest),
            ),
        )
        choose = max if newest else min
        return choose(rows, key=lambda row: row.message.seq, default=None)

    def take(self, row: Row, newest: bool = False) -> None:
        """Lease a message that `end` gave."""
        priority, seq = row.message.priority, row.message.seq
        for page_newest in (False, True):
            page = self._pages.get((priority, page_newest))
            if not page:
                continue
            if page[0].message.seq == seq:
                page.popleft()
            elif page[-1].message.seq == seq:
                page.pop()
            if not page:
                del self._pages[priority, page_newest]
        self._waiting.take(priority, seq)
        self._leases.take(priority, seq, row.cost, newest)

    def stored(self, messages: Iterable[tuple[int, int]]) -> None:
        """Free messages of our own are in the file now: priority and number."""
        for priority, seq in messages:
            if self._leases.stored(priority, seq):
                continue
            self._pages.pop((priority, True), None)
            oldest = self._pages.get((priority, False))
            if oldest is not None and (not oldest or seq < oldest[-1].message.seq):
                del self._pages[priority, False]

    def _returned(self, priority: int, newest: bool) -> Row | None:
        while (seq := self._leases.returned(priority, newest)) is not None:
            row = self._waiting.rows.get(seq) or self._store.row(priority, seq)
            if row is not None:
                return row
            self._leases.forget_returned(priority, seq)
        return None

    def _stored(self, priority: int, newest: bool) -> Row | None:
        page = self._pages.get((priority, newest))
        if page is None:
            page = deque(self._read(priority, newest))
            self._pages[priority, newest] = page
        return page[0] if page else None

    def _read(self, priority: int, newest: bool) -> list[Row]:
        for after, before in self._leases.gaps(priority, newest):
            rows = self._store.between(priority, after, before, PAGE_ROWS, newest)
            if rows:
                return rows
            if before is not None:
                self._leases.close_gap(priority, after, before)
        return []
