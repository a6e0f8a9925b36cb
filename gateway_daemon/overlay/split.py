"""Cut a range at the nodes one knows: split-forward broadcasting.

Source: Banno, Fujino and Shudo, IEICE Trans. E103-D(3) 516-525, 2020 (the idea, from
its abstract): a node cuts the range at the keys of all its neighbours and delegates
every part to the neighbour at its left end.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar


class Ordered(Protocol):
    """A key: anything that has an order."""

    def __lt__(self, other: Any, /) -> bool: ...  # noqa: ANN401 - as bisect asks


K = TypeVar("K", bound=Ordered)


class Part(NamedTuple, Generic[K]):
    """A range with the node that is to serve it.

    Attributes:
        to: Who gets it.
        low: First key of the range.
        high: First key behind it.
    """

    to: K
    low: K
    high: K


def split(low: K, high: K, right: Sequence[K]) -> list[Part[K]]:
    """Delegate a range that begins at or right of oneself.

    Args:
        low: First key of the range; what lies left of oneself in it is served.
        high: First key behind it.
        right: Known nodes right of oneself in key order; the first is the nearest
            of all, which a Skip Graph's level 0 always knows.

    Returns:
        Disjoint parts in key order that cover every node right of oneself in the
        range. What lies left of the first known node in it goes to a relay: the
        last known node before the range.
    """
    first, last = bisect_left(right, low), bisect_left(right, high)
    parts: list[Part[K]] = []
    start = right[first] if first < last else high
    if first and low < start:
        parts.append(Part(right[first - 1], low, start))
    for at in range(first, last):
        end = right[at + 1] if at + 1 < last else high
        parts.append(Part(right[at], right[at], end))
    return parts
