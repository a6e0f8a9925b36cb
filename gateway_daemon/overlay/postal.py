"""The fastest tree when a sender serves its children one after the other.

In the postal model a child of number j receives j * child_ms later than it could
alone, and everybody who has the message keeps sending. The best tree always makes
the send that arrives first. Its first children get the largest subtrees.

Source: Bar-Noy and Kipnis, "Designing broadcasting algorithms in the postal model",
SPAA 1992.
"""

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from gateway_daemon.overlay.delay import COST, Cost

UNLIMITED = 1 << 30


@dataclass(frozen=True)
class PostalTree:
    """A tree by the sizes of its first subtrees.

    Attributes:
        shares: Nodes in the subtree of each child of the root, in order of sending;
            never growing.
        mean_ms: Mean time until a node has the message.
        last_ms: Time until the last one has it.
    """

    shares: tuple[int, ...]
    mean_ms: float
    last_ms: float


@lru_cache(maxsize=4096)
def postal_tree(
    nodes: int, root: int = UNLIMITED, inner: int = UNLIMITED, cost: Cost = COST
) -> PostalTree:
    """Find the fastest tree.

    Args:
        nodes: How many are to be reached, the root not counted.
        root: Most children of the root.
        inner: Most children of any other node.
        cost: What a hop costs.
    """
    shares: list[int] = []
    # When it arrives, which child of the root it descends from, number of the send.
    sends = [(cost.at_child(1), -1, 1)]
    total_ms = last_ms = 0.0
    for _ in range(nodes):
        last_ms, branch, number = heappop(sends)
        total_ms += last_ms
        if number < (root if branch < 0 else inner):
            heappush(sends, (last_ms + cost.child_ms, branch, number + 1))
        if branch < 0:
            branch = len(shares)
            shares.append(0)
        shares[branch] += 1
        if inner:
            heappush(sends, (last_ms + cost.at_child(1), branch, 1))
    return PostalTree(tuple(shares), total_ms / max(nodes, 1), last_ms)
