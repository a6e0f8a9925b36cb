"""The thesis' topics: table 6.1, and the topics with one publisher of 6.1.

Source: the thesis, table 6.1 and 6.1 (50,000 keys: 10,000 nodes in 5 topics each).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Pattern:
    """A topic.

    Attributes:
        publishers: Number of publishers, at least one.
        subscribers: Number of subscribers, at least one.
    """

    publishers: int
    subscribers: int

    @property
    def members(self) -> int:
        """Keys of the topic."""
        return self.publishers + self.subscribers


PATTERNS: Mapping[str, Pattern] = MappingProxyType({
    "alpha": Pattern(10, 990),
    "beta": Pattern(500, 500),
    "gamma": Pattern(990, 10),
    "delta": Pattern(1, 9),
    "epsilon": Pattern(5, 5),
    "zeta": Pattern(9, 1),
})
TOTALS = (1_000, 10_000, 100_000)

ONE_PUBLISHER_SUBSCRIBERS = (10, 20, 40, 50, 60, 80, 160, 320, 640, 1280)
ONE_PUBLISHER_TOTAL = 50_000
