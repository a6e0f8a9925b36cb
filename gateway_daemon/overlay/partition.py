"""Disjoint key ranges: a node that gets a message *owns* a part of the subscribers.

A first-hop node does not search, as the thesis' support nodes do; it answers for
its own part. So every subscriber receives exactly one copy and n subscribers cost
exactly n messages, and a wrong idea of the ranks costs balance, never a subscriber.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise

from gateway_daemon.overlay.postal import postal_tree
from gateway_daemon.overlay.split import K, Part

ROOM = 46
"""Entries for successors and fingers: a table of 60 less the Skip Graph's links."""

BINARY = 2


class Shape(Enum):
    """How a range is cut.

    Attributes:
        EQUAL: Equal parts at the root; fingers below it (V3).
        REGULAR: Equal parts everywhere (a k-ary tree).
        POSTAL: The earlier it is sent, the larger the part (V6).
    """

    EQUAL = "equal"
    REGULAR = "regular"
    POSTAL = "postal"


@dataclass(frozen=True)
class Plan:
    """How a message spreads.

    Attributes:
        shape: How ranges are cut.
        root: Most copies that the publisher sends.
        inner: Most copies that a subscriber sends.
    """

    shape: Shape
    root: int
    inner: int = ROOM


def shares(others: int, plan: Plan, is_root: bool) -> Sequence[int]:
    """How many of the nodes to be reached each child answers for, itself included.

    Args:
        others: Nodes in the range, oneself not counted.
        plan: How to cut.
        is_root: Whether one is the publisher.
    """
    fan_out = plan.root if is_root else plan.inner
    if others <= fan_out and plan.shape is not Shape.POSTAL:
        return [1] * others
    if plan.shape is Shape.POSTAL:
        return postal_tree(others, fan_out, plan.inner).shares
    if plan.shape is Shape.REGULAR or is_root:
        return _equal(others, fan_out)
    return _fingers(others, fan_out)


def _equal(others: int, parts: int) -> list[int]:
    each, more = divmod(others, parts)
    return [each + 1] * more + [each] * (parts - more)


def _fingers(others: int, room: int) -> list[int]:
    """Parts between the ranks j * base**i: as few digits as fit the table."""
    digits = 2
    base = _root_up(others + 1, digits)
    while (base - 1) * digits > room and base > BINARY:
        digits += 1
        base = _root_up(others + 1, digits)
    ends = {j * base**i for i in range(digits) for j in range(1, base)}
    inside = sorted(end for end in ends if end <= others)
    return [end - start for start, end in pairwise([*inside, others + 1])]


def _root_up(number: int, degree: int) -> int:
    """Smallest base, at least 2, with base**degree at least the number."""
    base = max(BINARY, int(number ** (1 / degree)) - 1)
    while base**degree < number:
        base += 1
    return base


def heads(sizes: Sequence[int]) -> list[int]:
    """Places of the heads in a range whose parts have these sizes, 0 the first."""
    return [0, *accumulate(sizes[:-1])] if sizes else []


def hand_out(low: K, high: K, chosen: Sequence[K]) -> list[Part[K]]:
    """Give a range to heads, each from its own key to the next head.

    Args:
        low: First key of the range.
        high: First key behind it.
        chosen: Heads in key order, all in the range, none but in order.

    Returns:
        Disjoint parts that cover the range. The first head answers also for what
        lies left of it: who joined there since we heard of it is its left
        neighbour.
    """
    starts = [low, *chosen[1:]]
    ends = [*chosen[1:], high]
    return (
        [Part(*each) for each in zip(chosen, starts, ends, strict=True)]
        if chosen
        else []
    )


def nearest(wanted: Sequence[int], places: Sequence[int]) -> list[int]:
    """Choose for each wanted place the known one that is nearest.

    Args:
        wanted: Places in order.
        places: Known places in order.

    Returns:
        Distinct indices into ``places`` in order; fewer where two wish for one.
    """
    found: dict[int, None] = {}
    for place in wanted:
        at = bisect_left(places, place)
        around = [i for i in (at - 1, at) if 0 <= i < len(places)]
        found[min(around, key=lambda i: abs(places[i] - place))] = None
    return sorted(found)


def second_heads(sizes: Sequence[int]) -> list[int]:
    """Places of a second tree's heads: in the middle of the first tree's parts.

    Who answers for others in one tree does not in the other, so a subscriber is
    missed only if the heads of both are dead.
    """
    places = [
        start + size // 2 for start, size in zip(heads(sizes), sizes, strict=True)
    ]
    return [1, *places] if places and places[0] > 1 else places
