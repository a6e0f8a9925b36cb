"""Leases: which messages are out, in memory, and where to look for the next.

A crash forgets them, and so gives every leased message back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edge_agent.queue.ranges import Ranges

SPARE_RANGES = 16
"""So many ranges more than messages out are not worth forgetting."""


@dataclass(frozen=True)
class Lease:
    """A message that is out.

    Attributes:
        priority: Its priority.
        cost: Its bytes of the budget.
    """

    priority: int
    cost: int


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
        self._out: dict[int, Lease] = {}
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

    def take(self, priority: int, seq: int, cost: int, newest: bool) -> None:
        """Lease a message that is the oldest, or the newest, of the free ones."""
        self.forget_returned(priority, seq)
        read = self._read[priority]
        if seq not in read:
            above = read.above(seq) if newest else None
            start = seq if newest else read.below(seq) + 1
            read.add(start, seq if above is None else above - 1)
        self._out[seq] = Lease(priority, cost)

    def stored(self, priority: int, seq: int) -> bool:
        """A free message of our own is in the file now.

        Returns:
            Whether its place was read before, so that it counts as given back.
        """
        if seq not in self._read[priority]:
            return False
        insort(self._back[priority], seq)
        return True

    def forget_returned(self, priority: int, seq: int) -> None:
        """Drop a number from those that were given back, if it is there."""
        back = self._back[priority]
        at = bisect_left(back, seq)
        if at < len(back) and back[at] == seq:
            del back[at]

    def end(self, seq: int) -> Lease | None:
        """The message is delivered; its lease, or None when it was not out."""
        return self._out.pop(seq, None)

    def give_back(self, seq: int) -> None:
        """The message will be leased again; unknown numbers are let go."""
        lease = self._out.pop(seq, None)
        if lease is not None:
            insort(self._back[lease.priority], seq)

    def give_all_back(self) -> int:
        """Give back everything; how many there were."""
        count = len(self._out)
        for seq, lease in self._out.items():
            self._back[lease.priority].append(seq)
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
        for seq, lease in self._out.items():
            kept[lease.priority].append(seq)
        for priority, seqs in kept.items():
            self._read[priority].keep(seqs)
