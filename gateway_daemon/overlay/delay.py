"""What a hop costs.

Source: the thesis, 6.2: 1 ms inside a node, 10 ms between nodes, 0.1 ms for each
child, ten children assumed; so every hop counts 12 ms. `Cost.at_child` charges what
a node really sends instead: the hundredth child waits for ninety-nine others.
"""

from dataclasses import dataclass

THESIS_CHILDREN = 10


@dataclass(frozen=True)
class Cost:
    """Cost of forwarding, in milliseconds.

    Attributes:
        node_ms: Inside a node, once a message.
        link_ms: Between two nodes.
        child_ms: For each copy that a node sends.
    """

    node_ms: float = 1.0
    link_ms: float = 10.0
    child_ms: float = 0.1

    @property
    def hop_ms(self) -> float:
        """What every hop costs, whatever the number of copies."""
        return self.node_ms + self.link_ms

    def at_child(self, number: int) -> float:
        """Delay from a node to its child of this number, 1 the first (ours)."""
        return self.hop_ms + number * self.child_ms

    def of_hops(self, hops: float) -> float:
        """Delay of a path by its length alone (the thesis)."""
        return hops * (self.hop_ms + THESIS_CHILDREN * self.child_ms)


COST = Cost()
