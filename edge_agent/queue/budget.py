"""What a queue may hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spatial_mqtt.priority import LADDER


@dataclass(frozen=True)
class Budget:
    """Bytes of topics and payloads, with what a row costs beside them.

    Attributes:
        max_bytes: For all priorities together.
        top_share: Share of it that only the top priority may use.
        by_priority: Further bounds of single priorities.
        thin_below: Series of lower priorities may be thinned for their own kin.
    """

    max_bytes: int
    top_share: float = 0.05
    by_priority: Mapping[int, int] = field(default_factory=dict)
    thin_below: int = 4

    def limit(self, priority: int) -> int:
        """Bytes that the whole queue may hold after a put of this priority."""
        if priority == LADDER.top:
            return self.max_bytes
        return int(self.max_bytes * (1 - self.top_share))

    def excess(self, held: Mapping[int, int], priority: int, cost: int) -> int:
        """Bytes that must go before a message fits; negative when it fits."""
        over = sum(held.values()) + cost - self.limit(priority)
        own = held.get(priority, 0) + cost - self.by_priority.get(priority, 2**63)
        return max(over, own)
