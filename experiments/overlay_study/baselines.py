"""Baselines for comparison: Skip Graph, support nodes (PSG), and tables (ATM, PATM).

Skip Graph: nodes are ranks, 0 to n - 1 in key order. The level-0 list contains all; the
level-l list of a node contains those that share l bits of its membership vector.

PSG: an urgent message starts searches not only at its publisher but at *supports*,
nodes whose membership vectors lie on a grid around the publisher's; the first search
that reaches the subscribers wins. Key ranges (`partition`) do better. Deviations from
the thesis:

* ``count`` is 0 for N = 2 and the interval then divides by zero: at least 1.
* For p = 4 and N >= 16 the interval is 5, coprime with N, so "until back at the
  first node" visits all N places: stop after ``count``.
* N = 4 gives no support at any priority: unchanged, since nothing can be gained.
* The thesis does not define the candidates and the target of the search. The reading
  that fits its results: publishers of the topic whose vector lies exactly on the grid;
  the searches look for the edge of the subscribers; one range multicast starts there.

ATM and PATM: FRT defines a total order on all tables, admits every entry, and drops the
one whose absence leaves the best table. ATM's order keeps the Skip Graph's links and
fills up with subscribers of the own topic, evenly over the levels. PATM adds the
priority. The order in the thesis is not an order: B0 uses ">" where all other rules use
"F is better", so it *rejects* urgent entries; B1 and the rules after it do not require
equal |HPRIO|, and B10 does not require equal B9, so E <= F and F <= E can hold
together. Taken literally it evicts the level-0 links, and a topic of low priority
becomes a chain. `table_merit` is the corrected form: one tuple, compared in order.
Priority buys the entries of those links that only double another link's level.

Source: Aspnes and Shah, Skip Graphs, SODA 2003; Banno and Shudo, COMPSAC 2020 (ATM);
the thesis, 4.3 and 5.4 (PATM) and 5.3 (PSG).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import ceil, log2

from gateway_daemon.overlay.keys import VECTOR_BITS, OverlayError
from spatial_mqtt.priority import LADDER

Ranks = Sequence[int]


def vector_prefix(vector: int, level: int) -> int:
    """Return the first ``level`` bits of a vector, the name of its list there."""
    return vector >> (VECTOR_BITS - level)


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
        lists: list[Ranks] = [range(len(vectors))] if vectors else []
        for level in range(VECTOR_BITS):
            for ranks in lists:
                self._link(ranks)
            lists = [half for ranks in lists for half in self._halves(ranks, level)]

    def _link(self, ranks: Ranks) -> None:
        self.left[ranks[0]].append(None)
        for one, other in pairwise(ranks):
            self.right[one].append(other)
            self.left[other].append(one)
        self.right[ranks[-1]].append(None)

    def _halves(self, ranks: Ranks, level: int) -> Iterator[Ranks]:
        """Yield the lists above a list that have more than one member."""
        vectors, shift = self.vectors, VECTOR_BITS - level - 1
        name = vector_prefix(vectors[ranks[0]], level) << 1
        halves: tuple[list[int], list[int]] = [], []
        for rank in ranks:
            halves[vectors[rank] >> shift & 1].append(rank)
        for bit, half in enumerate(halves):
            self._lists[level + 1, name | bit] = half
            if len(half) > 1:
                yield half

    def right_neighbours(self, rank: int) -> list[int]:
        """Distinct right neighbours, nearest first."""
        return sorted({r for r in self.right[rank] if r is not None})

    def left_neighbours(self, rank: int) -> list[int]:
        """Distinct left neighbours, leftmost first."""
        return sorted({r for r in self.left[rank] if r is not None})

    def ranks_by_common_bits(self, rank: int) -> Iterator[Ranks]:
        """Yield for each level from 0 the ranks that share exactly that many bits."""
        vector = self.vectors[rank]
        for level in range(1, len(self.right[rank]) + 1):
            sibling = (level, vector_prefix(vector, level) ^ 1)
            yield self._lists.get(sibling, ())

    def hops_to(self, target: int, start: int) -> int:
        """Return the length of the search from a rank to one right of it.

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


MAX_SUPPORT_SHARE = 4
"""At the highest priority one of this many nodes supports."""


def max_level(nodes: int) -> int:
    """Return the expected highest level of a Skip Graph with this many nodes."""
    return max(1, ceil(log2(max(nodes, 2))))


def support_count(space: int, priority: int) -> int:
    """Return the number of places on the grid, including the publisher's own.

    Args:
        space: Number of membership vectors, 2**max_level.
        priority: 1 searches from the publisher alone.

    Raises:
        OverlayError: The space is not a power of two.
    """
    if space.bit_count() != 1:
        raise OverlayError("space", "a power of two", space)
    share = (LADDER.check(priority) - 1) / (LADDER.top - 1)
    return max(1, int(1 + (space / MAX_SUPPORT_SHARE - 1) * share))


def support_grid(vector: int, space: int, priority: int) -> list[int]:
    """Return the places on the grid in the thesis' order, the publisher's own first."""
    number = support_count(space, priority)
    interval = space // number
    return [(vector + interval * step) % space for step in range(number)]


def choose_supports(
    own: int,
    vectors: Sequence[int],
    publishers: Iterable[int],
    levels: int,
    priority: int,
) -> list[int]:
    """Return the ranks that search in addition to the publisher.

    Args:
        own: Rank of the publisher.
        vectors: Membership vector of each rank.
        publishers: Ranks of the topic's publishers.
        levels: The Skip Graph's highest level.
        priority: Of the message.
    """
    # The first place is the publisher's own. Other nodes with the same vector do not
    # support, so that priority 1 stays without support.
    places = set(
        support_grid(vector_prefix(vectors[own], levels), 1 << levels, priority)[1:]
    )
    return [
        rank for rank in publishers if vector_prefix(vectors[rank], levels) in places
    ]


TABLE_SIZE = 60
"""Entries of a table, per key of a node."""

URGENT_FROM = 4
"""Priority from which PATM prefers subscribers to links (the thesis' threshold)."""


@dataclass(frozen=True)
class TableEntry:
    """Another node in a table.

    Attributes:
        rank: Its position in key order.
        level: Bits that its membership vector shares with ours.
        distance: How many positions away it is.
        is_subscriber: Whether it subscribes to our topic.
    """

    rank: int
    level: int
    distance: int
    is_subscriber: bool


TableMerit = tuple[
    int, int, int, int, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]
]


def table_merit(table: Collection[TableEntry], links: Collection[int]) -> TableMerit:
    """Rank a table; of two different tables exactly one is greater.

    Args:
        table: Its entries.
        links: Ranks that must be in it, or nodes would become unreachable: the Skip
            Graph's links (ATM), or those of level 0 (PATM, urgent topics).

    Returns:
        Links included; highest level; levels without an entry, fewer is better; own
        subscribers; their numbers per level, evenly is better, then high levels;
        sum of distances, near is better; last the ranks, so that no two tables are
        equal.
    """
    levels = {entry.level for entry in table}
    top = max(levels, default=-1)
    own = [entry for entry in table if entry.is_subscriber]
    numbers = Counter(entry.level for entry in own)
    return (
        len({entry.rank for entry in table} & set(links)),
        top,
        len(levels) - (top + 1),
        len(own),
        tuple(-number for number in sorted(numbers.values(), reverse=True)),
        tuple(sorted((entry.level for entry in own), reverse=True)),
        -sum(entry.distance for entry in own),
        tuple(sorted(-entry.rank for entry in table)),
    )


def fill_table(
    graph: SkipGraph,
    rank: int,
    subscribers: range,
    links: Collection[int],
    entry_count: int,
) -> list[int]:
    """Return the best table of a converged node, as far as it lies in the topic.

    Args:
        graph: The topic's Skip Graph.
        rank: The node.
        subscribers: Ranks of the topic's subscribers.
        links: Ranks inside the topic that must be in it.
        entry_count: Entries left after those outside the topic.

    Returns:
        Ranks in order: the links, then subscribers level by level, as many on each,
        the nearest first, and one more on the high levels if they do not divide evenly.
    """
    levels = [
        (sum(r in links for r in ranks), [r for r in ranks if r not in links])
        for ranks in map(
            select_subscribers(subscribers), graph.ranks_by_common_bits(rank)
        )
    ]
    numbers = _distribute_evenly(
        [present for present, _ in levels],
        [len(r) for _, r in levels],
        entry_count - len(links),
    )
    table = set(links)
    for number, (_, ranks) in zip(numbers, levels, strict=True):
        table.update(_nearest(ranks, rank, number))
    return sorted(table)


def select_subscribers(subscribers: range) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return a function that selects the subscribers of ordered ranks."""
    low, high = subscribers.start, subscribers.stop
    return lambda ranks: ranks[bisect_left(ranks, low) : bisect_left(ranks, high)]


def _distribute_evenly(
    present: Sequence[int], available: Sequence[int], count: int
) -> list[int]:
    """Distribute new entries over the levels as evenly as possible.

    Args:
        present: Entries that each level has already.
        available: Candidates of each level.
        count: Number of new entries.
    """
    added = [0] * len(present)
    heap = [
        (number, -level) for level, number in enumerate(present) if available[level]
    ]
    heapify(heap)
    for _ in range(count):
        if not heap:
            break
        number, level = heap[0]
        added[-level] += 1
        if added[-level] < available[-level]:
            heapreplace(heap, (number + 1, level))
        else:
            heappop(heap)
    return added


def _nearest(ranks: Sequence[int], rank: int, number: int) -> Sequence[int]:
    """Return the ranks nearest to one; of two equally near, the left."""
    left = right = bisect_left(ranks, rank)
    while right - left < min(number, len(ranks)):
        if right == len(ranks) or (
            left and rank - ranks[left - 1] <= ranks[right] - rank
        ):
            left -= 1
        else:
            right += 1
    return ranks[left:right]
