"""The overlay around a topic, as arrays over all nodes.

Routing inside a topic never leaves it, so a message's path does not depend on the
other nodes; what their links take of a routing table does.
"""

from dataclasses import dataclass
from typing import TypeAlias

from gateway_daemon.overlay.membership import BITS, common_bits
from gateway_daemon.overlay.skip_graph import SkipGraph

try:
    import numpy as np
except ImportError as error:  # a gateway has no numpy, and needs none to run
    raise ImportError(
        "the simulator needs numpy; install with pip install yamamori[backend]"
    ) from error

Vectors: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint64]]"
Places: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

TOP = (1 << BITS) - 1


@dataclass(frozen=True)
class Abroad:
    """The Skip Graph links of one node that lead out of its topic.

    Attributes:
        levels: Bits shared with each of them, one value a link.
        beside: The same of those that are its neighbours on level 0.
    """

    levels: tuple[int, ...]
    beside: tuple[int, ...]


class Whole:
    """All nodes of an overlay, in key order.

    Attributes:
        vectors: Membership vectors, shape (nodes,), uint64.
    """

    def __init__(self, nodes: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.vectors = chance.integers(0, TOP, nodes, np.uint64, endpoint=True)

    def around(self, start: int, members: int) -> "Around":
        """What surrounds the topic whose keys begin at this rank."""
        return Around(self.vectors, start, start + members)


class Around:
    """What surrounds a topic.

    Attributes:
        graph: The Skip Graph of the topic's own keys.
    """

    def __init__(self, vectors: Vectors, start: int, stop: int) -> None:
        own = vectors[start:stop]
        self.graph = SkipGraph(own.tolist())
        self._sides = [
            (side, _nearest(side, own), inner)
            for side, inner in (
                (vectors[:start][::-1], self.graph.left),
                (vectors[stop:], self.graph.right),
            )
        ]

    def abroad(self, rank: int) -> Abroad:
        """Links of a node of the topic that lead out of it."""
        levels: list[int] = []
        beside: list[int] = []
        for side, nearest, inner in self._sides:
            # Levels below are served inside the topic.
            level = sum(other is not None for other in inner[rank])
            is_beside = level == 0
            while level < len(nearest) and nearest[level][rank] < len(side):
                other = int(side[nearest[level][rank]])
                meeting = common_bits(self.graph.vectors[rank], other)
                levels.append(meeting)
                if is_beside:
                    beside.append(meeting)
                is_beside = False
                level = meeting + 1
        return Abroad(tuple(levels), tuple(beside))


def _nearest(side: Vectors, own: Vectors) -> list[Places]:
    """For each level and each node of a topic, its nearest neighbour on one side.

    Args:
        side: Vectors of those beyond the topic's edge, the nearest first.
        own: Vectors of the topic's nodes.

    Returns:
        Places in ``side`` for each level, each of shape (own,); the length of
        ``side`` where there is nobody.
    """
    nobody = len(side)
    order = np.argsort(side)
    ordered = side[order]
    found: list[Places] = []
    for level in range(BITS if nobody else 0):
        shift = np.uint64(min(BITS - level, BITS - 1))
        names, wanted = (
            (ordered >> shift, own >> shift)
            if level
            else (np.zeros_like(ordered), np.zeros_like(own))
        )
        starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
        firsts = np.minimum.reduceat(order, starts)
        at = np.minimum(np.searchsorted(names[starts], wanted), len(starts) - 1)
        is_there = names[starts][at] == wanted
        if not is_there.any():
            break
        found.append(np.where(is_there, firsts[at], nobody))
    return found
