"""Leases: which messages are out, in memory, and where to look for the next.

A crash forgets them, and so gives every leased message back.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


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
    """Leased messages of one queue and a reading mark for each priority.

    Everything stored above the mark has not been leased yet. Numbers of other
    processes are stored in their order, so they never appear below the mark; our
    own ones may, when they come from a block, and are then added to the heap of
    those that were given back.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self._out: dict[int, Lease] = {}
        self._mark = dict.fromkeys(priorities, 0)
        self._back: dict[int, list[int]] = {p: [] for p in self._mark}

    def __len__(self) -> int:
        """How many messages are out."""
        return len(self._out)

    def __contains__(self, seq: int) -> bool:
        """Whether a message is out."""
        return seq in self._out

    def mark(self, priority: int) -> int:
        """Highest sequence number of a priority that was ever leased."""
        return self._mark[priority]

    def returned(self, priority: int) -> int | None:
        """Lowest sequence number of a priority that was given back."""
        heap = self._back[priority]
        return heap[0] if heap else None

    def take(self, priority: int, seq: int, cost: int) -> None:
        """Lease a message."""
        heap = self._back[priority]
        if heap and heap[0] == seq:
            heapq.heappop(heap)
        self._mark[priority] = max(self._mark[priority], seq)
        self._out[seq] = Lease(priority, cost)

    def stored(self, priority: int, seq: int) -> None:
        """A free message of our own is in the file now."""
        if seq <= self._mark[priority]:
            heapq.heappush(self._back[priority], seq)

    def forget_returned(self, priority: int) -> None:
        """Drop the lowest returned number: its message is gone."""
        heapq.heappop(self._back[priority])

    def end(self, seq: int) -> Lease | None:
        """The message is delivered; its lease, or None when it was not out."""
        return self._out.pop(seq, None)

    def give_back(self, seq: int) -> None:
        """The message will be leased again; unknown numbers are let go."""
        lease = self._out.pop(seq, None)
        if lease is not None:
            heapq.heappush(self._back[lease.priority], seq)

    def give_all_back(self) -> int:
        """Give back everything; how many there were."""
        seqs = list(self._out)
        for seq in seqs:
            self.give_back(seq)
        return len(seqs)
