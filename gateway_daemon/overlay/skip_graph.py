"""Skip Graph: everybody's neighbours on every level, and the search along them.

Nodes are ranks, 0 to n - 1 in key order. The level-0 list holds everybody; the
level-l list of a node holds those who share l bits of its membership vector.

Source: Aspnes and Shah, Skip Graphs, SODA 2003.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gateway_daemon.overlay.membership import BITS, prefix

Ranks = Sequence[int]


class SkipGraph:
    """The lists of all levels, and the neighbours in them.

    Attributes:
        vectors: Membership vector of each rank.
        right: For each rank its right neighbour on each level, None at a list's end.
        left: The same to the left. Above its last level a node is alone.
    """

    def __init__(self, vectors: Sequence[int]) -> None:
        self.vectors = vectors
        self.right: list[list[int | None]] = [[] for _ in vectors]
        self.left: list[list[int | None]] = [[] for _ in vectors]
        self._lists: dict[tuple[int, int], list[int]] = {}
        crowds: list[Ranks] = [range(len(vectors))] if vectors else []
        for level in range(BITS):
            for ranks in crowds:
                self._link(ranks)
            crowds = [half for ranks in crowds for half in self._halves(ranks, level)]

    def _link(self, ranks: Ranks) -> None:
        self.left[ranks[0]].append(None)
        for one, other in pairwise(ranks):
            self.right[one].append(other)
            self.left[other].append(one)
        self.right[ranks[-1]].append(None)

    def _halves(self, ranks: Ranks, level: int) -> Iterator[Ranks]:
        """The lists above a list: those who are not alone in theirs."""
        vectors, shift = self.vectors, BITS - level - 1
        name = prefix(vectors[ranks[0]], level) << 1
        halves: tuple[list[int], list[int]] = [], []
        for rank in ranks:
            halves[vectors[rank] >> shift & 1].append(rank)
        for bit, half in enumerate(halves):
            self._lists[level + 1, name | bit] = half
            if len(half) > 1:
                yield half

    def rights(self, rank: int) -> list[int]:
        """Distinct right neighbours, nearest first."""
        return sorted({r for r in self.right[rank] if r is not None})

    def lefts(self, rank: int) -> list[int]:
        """Distinct left neighbours, leftmost first."""
        return sorted({r for r in self.left[rank] if r is not None})

    def meeting_at(self, rank: int) -> Iterator[Ranks]:
        """For each level l from 0 up, the ranks that share exactly l bits with this."""
        vector = self.vectors[rank]
        for level in range(1, len(self.right[rank]) + 1):
            sibling = (level, prefix(vector, level) ^ 1)
            yield self._lists.get(sibling, ())

    def hops_to(self, target: int, start: int) -> int:
        """Length of the search from a rank to one right of it; levels only fall.

        Source: Aspnes and Shah 2003, algorithm 1.
        """
        hops, at = 0, start
        level = len(self.right[at]) - 1
        while at != target:
            onward = self.right[at][level]
            if onward is not None and onward <= target:
                at = onward
                hops += 1
            else:
                level -= 1
        return hops
