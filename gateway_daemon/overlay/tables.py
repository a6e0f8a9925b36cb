"""Routing tables in an order: ATM, and PATM with its order made total.

FRT says: put a total order on all tables, admit every entry, and drop the one whose
absence leaves the best table. ATM's order keeps the Skip Graph's links and fills up
with subscribers of the own topic, evenly over the levels. PATM adds the priority.

The thesis' PATM order is no order: B0 uses ">" where all other rules say "F is
better", so it *rejects* urgent entries; B1 and the rules after it do not ask for
equal |HPRIO|, and B10 does not ask for equal B9, so E <= F and F <= E can hold
together; taken literally it evicts the level-0 links and a topic of low priority
becomes a chain. `merit` is the corrected form: one tuple, compared in order. What
priority buys in it is the room of those links that only double another's level.

Source: Banno and Shudo, COMPSAC 2020 (ATM); the thesis, 4.3 and 5.4 (PATM).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from gateway_daemon.overlay.skip_graph import SkipGraph

SIZE = 60
"""Entries of a table, for each key of a node."""

URGENT_FROM = 4
"""Priority from which PATM prefers subscribers to links (the thesis' threshold)."""


@dataclass(frozen=True)
class Entry:
    """Another node, as a table sees it.

    Attributes:
        rank: Its place in key order.
        level: Bits its membership vector shares with ours.
        distance: How many places away it is.
        is_subscriber: Whether it subscribes to our topic.
    """

    rank: int
    level: int
    distance: int
    is_subscriber: bool


Merit = tuple[
    int, int, int, int, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]
]


def merit(table: Collection[Entry], links: Collection[int]) -> Merit:
    """How good a table is; of two different ones exactly one is greater.

    Args:
        table: Its entries.
        links: Ranks that must be in it, or nodes would fall out of reach: the Skip
            Graph's links (ATM), or those of level 0 (PATM, urgent topics).

    Returns:
        Links held; highest level; levels without an entry, fewer is better; own
        subscribers; their numbers per level, evenly is better, then high levels;
        sum of distances, near is better; at last the ranks, so that no two tables
        are equal.
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


def fill(
    graph: SkipGraph,
    rank: int,
    subscribers: range,
    links: Collection[int],
    room: int,
) -> list[int]:
    """The best table of a converged node, as far as it lies in the topic.

    Args:
        graph: The topic's Skip Graph.
        rank: Whose table.
        subscribers: Ranks of the topic's subscribers.
        links: Ranks inside the topic that must be in it.
        room: Entries left when what is kept outside the topic is counted.

    Returns:
        Ranks in order: the links, then subscribers level by level, as many on each,
        the nearest first, and one more on the high levels when they do not divide.
    """
    levels = [
        (sum(r in links for r in ranks), [r for r in ranks if r not in links])
        for ranks in map(subscribers_in(subscribers), graph.meeting_at(rank))
    ]
    numbers = _evenly(
        [held for held, _ in levels], [len(r) for _, r in levels], room - len(links)
    )
    table = set(links)
    for number, (_, ranks) in zip(numbers, levels, strict=True):
        table.update(_nearest(ranks, rank, number))
    return sorted(table)


def subscribers_in(subscribers: range) -> Callable[[Sequence[int]], Sequence[int]]:
    """Choose the subscribers of ordered ranks."""
    low, high = subscribers.start, subscribers.stop
    return lambda ranks: ranks[bisect_left(ranks, low) : bisect_left(ranks, high)]


def _evenly(held: Sequence[int], waiting: Sequence[int], room: int) -> list[int]:
    """How many more entries each level gets, so that all have as many as possible."""
    given = [0] * len(held)
    line = [(number, -level) for level, number in enumerate(held) if waiting[level]]
    heapify(line)
    for _ in range(room):
        if not line:
            break
        number, level = line[0]
        given[-level] += 1
        if given[-level] < waiting[-level]:
            heapreplace(line, (number + 1, level))
        else:
            heappop(line)
    return given


def _nearest(ranks: Sequence[int], rank: int, number: int) -> Sequence[int]:
    """So many of ordered ranks that are nearest to one; of two as near, the left."""
    left = right = bisect_left(ranks, rank)
    while right - left < min(number, len(ranks)):
        if right == len(ranks) or (
            left and rank - ranks[left - 1] <= ranks[right] - rank
        ):
            left -= 1
        else:
            right += 1
    return ranks[left:right]
