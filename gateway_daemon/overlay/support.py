"""Support nodes: PSG, the thesis' way to search from many places at once.

An urgent message starts searches not only at its publisher but at *supports*, nodes
whose membership vectors lie on a grid around the publisher's; the first search to
meet the subscribers wins. Kept to compare with: key ranges (`partition`) do better.

What the thesis says and what is done here:

* ``count`` is 0 for N = 2 and the interval then divides by zero: at least 1.
* For p = 4 and N >= 16 the interval is 5, coprime with N, so "until back at the
  first node" visits all N places: stop after ``count``.
* N = 4 gives no support at any priority: it stays so, there is nobody to gain.
* Nothing says who may support and what is searched. The reading that fits its
  results: publishers of the topic whose vector lies exactly on the grid; the
  searches look for the edge of the subscribers; one range multicast runs from there.

Source: the thesis, 5.3.
"""

from collections.abc import Iterable, Sequence
from math import ceil, log2

from gateway_daemon.overlay.errors import OverlayError
from gateway_daemon.overlay.membership import prefix
from spatial_mqtt.priority import LADDER

MOST_SHARE = 4
"""At the highest priority one of so many nodes supports."""


def levels_for(nodes: int) -> int:
    """The Skip Graph's highest level, as far as it can be known: of so many nodes."""
    return max(1, ceil(log2(max(nodes, 2))))


def support_count(space: int, priority: int) -> int:
    """Number of places on the grid, the publisher's own among them.

    Args:
        space: Number of membership vectors, 2**max_level.
        priority: 1 searches from the publisher alone.

    Raises:
        OverlayError: The space is no power of two.
    """
    if space.bit_count() != 1:
        raise OverlayError("space", "a power of two", space)
    share = (LADDER.check(priority) - 1) / (LADDER.top - 1)
    return max(1, int(1 + (space / MOST_SHARE - 1) * share))


def grid(vector: int, space: int, priority: int) -> list[int]:
    """Places on the grid in the thesis' order, the publisher's own first."""
    number = support_count(space, priority)
    interval = space // number
    return [(vector + interval * step) % space for step in range(number)]


def supports(
    own: int,
    vectors: Sequence[int],
    publishers: Iterable[int],
    levels: int,
    priority: int,
) -> list[int]:
    """Ranks that search beside the publisher.

    Args:
        own: Rank of the publisher.
        vectors: Membership vector of each rank.
        publishers: Ranks of the topic's publishers.
        levels: The Skip Graph's highest level.
        priority: Of the message.
    """
    # The first place is the publisher's own: whoever else has it by chance does not
    # support, or priority 1 would not be plain.
    places = set(grid(prefix(vectors[own], levels), 1 << levels, priority)[1:])
    return [rank for rank in publishers if prefix(vectors[rank], levels) in places]
