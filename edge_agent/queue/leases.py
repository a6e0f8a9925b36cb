"""Leases: which messages are out, in memory, and where to look for the next.

A crash forgets them, and so gives every leased message back.
"""

import heapq
from collections.abc import Iterable


class Leases:
    """Leased messages of one queue and a reading mark for each priority.

    Sequence numbers only grow, so everything above the mark has not been leased
    yet; what was given back below it waits in a heap.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self._out: dict[int, int] = {}
        self._mark = dict.fromkeys(priorities, 0)
        self._back: dict[int, list[int]] = {p: [] for p in self._mark}

    def __len__(self) -> int:
        """How many messages are out."""
        return len(self._out)

    def __contains__(self, seq: int) -> bool:
        """Whether a message is out."""
        return seq in self._out

    def priority(self, seq: int) -> int:
        """Priority of a message that is out."""
        return self._out[seq]

    def mark(self, priority: int) -> int:
        """Highest sequence number of a priority that was ever leased."""
        return self._mark[priority]

    def returned(self, priority: int) -> int | None:
        """Lowest sequence number of a priority that was given back."""
        heap = self._back[priority]
        return heap[0] if heap else None

    def take(self, priority: int, seq: int) -> None:
        """Lease a message."""
        heap = self._back[priority]
        if heap and heap[0] == seq:
            heapq.heappop(heap)
        self._mark[priority] = max(self._mark[priority], seq)
        self._out[seq] = priority

    def forget_returned(self, priority: int) -> None:
        """Drop the lowest returned number: its message is gone."""
        heapq.heappop(self._back[priority])

    def end(self, seq: int) -> int | None:
        """The message is delivered; its priority, or None when it was not out."""
        return self._out.pop(seq, None)

    def give_back(self, seq: int) -> None:
        """The message will be leased again; unknown numbers are let go."""
        priority = self._out.pop(seq, None)
        if priority is not None:
            heapq.heappush(self._back[priority], seq)

    def give_all_back(self) -> int:
        """Give back everything; how many there were."""
        seqs = list(self._out)
        for seq in seqs:
            self.give_back(seq)
        return len(seqs)
