"""Leases: which messages are out, in memory, and where to look for the next.

A crash forgets them, and so gives every leased message back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from edge_agent.queue.ranges import Ranges
from edge_agent.queue.row import Row

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
