"""Postal model: the fastest tree when a sender serves its children one after the other.

Child number j receives j * child_ms later than an only child would, and every node that
has the message keeps sending. The best tree always makes the send that arrives first,
so the first children get the largest subtrees.

Costs of a hop: 1 ms inside a node, 10 ms between nodes, 0.1 ms per child. The hundredth
child waits for ninety-nine others.

Source: Bar-Noy and Kipnis, "Designing broadcasting algorithms in the postal model",
SPAA 1992; the costs are from the thesis, 6.2.
"""

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush


@dataclass(frozen=True)
class HopCost:
    """Cost of forwarding, in milliseconds.

    Attributes:
        node_ms: Inside a node, once per message.
        link_ms: Between two nodes.
        child_ms: For each copy that a node sends.
    """

    node_ms: float = 1.0
    link_ms: float = 10.0
    child_ms: float = 0.1

    @property
    def hop_ms(self) -> float:
        """Cost of a hop without the copies."""
        return self.node_ms + self.link_ms

    def child_delay_ms(self, number: int) -> float:
        """Return the delay from a node to its n-th child, 1 the first (ours)."""
        return self.hop_ms + number * self.child_ms


DEFAULT_COST = HopCost()


UNLIMITED = 1 << 30


@dataclass(frozen=True)
class PostalTree:
    """A tree, given by the sizes of its first subtrees.

    Attributes:
        subtree_sizes: Nodes in the subtree of each child of the root, in order of
            sending; never increasing.
        mean_ms: Mean time until a node has the message.
        last_ms: Time until the last one has it.
    """

    subtree_sizes: tuple[int, ...]
    mean_ms: float
    last_ms: float


@lru_cache(maxsize=4096)
def build_postal_tree(
    nodes: int,
    root_fan_out: int = UNLIMITED,
    inner_fan_out: int = UNLIMITED,
    cost: HopCost = DEFAULT_COST,
) -> PostalTree:
    """Find the fastest tree.

    Args:
        nodes: Number of nodes to reach, without the root.
        root_fan_out: Maximum children of the root.
        inner_fan_out: Maximum children of any other node.
        cost: Cost of a hop.
    """
    shares: list[int] = []
    # When it arrives, which child of the root it descends from, number of the send.
    sends = [(cost.child_delay_ms(1), -1, 1)]
    total_ms = last_ms = 0.0
    for _ in range(nodes):
        last_ms, branch, number = heappop(sends)
        total_ms += last_ms
        if number < (root_fan_out if branch < 0 else inner_fan_out):
            heappush(sends, (last_ms + cost.child_ms, branch, number + 1))
        if branch < 0:
            branch = len(shares)
            shares.append(0)
        shares[branch] += 1
        if inner_fan_out:
            heappush(sends, (last_ms + cost.child_delay_ms(1), branch, 1))
    return PostalTree(tuple(shares), total_ms / max(nodes, 1), last_ms)
