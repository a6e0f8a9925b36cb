"""Whom a queue gives up when it is full.

What a queue may hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edge_agent.queue.base import QueueFullError
from edge_agent.queue.store import FULL, THINNED, Changes, Store
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


LOOK_AT = 64


class Room:
    """Makes room in a transaction: the least urgent first, thinned, then dropped.

    Args:
        budget: The bounds.
        is_leased: Whether a sequence number is out; such a message stays.
    """

    def __init__(self, budget: Budget, is_leased: Callable[[int], bool]) -> None:
        self._budget = budget
        self._is_leased = is_leased
        self._thinned_to: dict[int, tuple[int, int]] = {}

    def is_enough(
        self, store: Store, changes: Changes, costs: Mapping[int, int]
    ) -> bool:
        """Whether so many bytes of each priority fit, and none has to go for them."""
        held = held_bytes(store, changes)
        for priority, cost in costs.items():
            held[priority] += cost
        return all(self._budget.excess(held, p, 0) <= 0 for p in costs)

    def make(self, store: Store, changes: Changes, priority: int, cost: int) -> None:
        """Give up messages until one of this priority and cost fits.

        Raises:
            QueueFullError: It cannot fit.
        """
        held = held_bytes(store, changes)
        if self._budget.excess(held, priority, cost) <= 0:
            return
        for lower in range(1, priority):
            while self._is_over_for(lower, held, priority, cost):
                if not self._give_up(store, changes, lower, held):
                    break
        while self._budget.excess(held, priority, cost) > 0:
            may_thin = priority < self._budget.thin_below
            if not may_thin or not self._thin(store, changes, priority, held):
                bound = self._budget.limit(priority)
                raise QueueFullError(sum(held.values()), bound)

    def _is_over_for(
        self, lower: int, held: Mapping[int, int], priority: int, cost: int
    ) -> bool:
        """Whether giving up a lower priority helps: not against an own bound."""
        total = sum(held.values()) + cost
        return held.get(lower, 0) > 0 and total > self._budget.limit(priority)

    def _give_up(
        self, store: Store, changes: Changes, priority: int, held: dict[int, int]
    ) -> bool:
        if self._thin(store, changes, priority, held):
            return True
        oldest = self._free(store, priority, 0, 2**63 - 1)
        if not oldest:
            return False
        return self._drop(store, changes, (priority, oldest[0], FULL), held)

    def _thin(
        self, store: Store, changes: Changes, priority: int, held: dict[int, int]
    ) -> bool:
        """Drop every second of the oldest half, one a call, then begin again."""
        low, high = store.ends(priority)
        ranges = (
            self._thinned_to.get(priority, (0, 0)),
            # Half of the range of numbers: counting rows would read them all.
            (low - 1, (low + high) // 2),
            # Few old ones, many new ones: all but the newest are the old half.
            (low - 1, high - 1),
        )
        for position, end in ranges:
            found = self._free(store, priority, position, end)
            if len(found) == 2:  # noqa: PLR2004 - one to keep and one to drop
                self._thinned_to[priority] = (found[1], end)
                return self._drop(store, changes, (priority, found[1], THINNED), held)
        return False

    def _free(self, store: Store, priority: int, after: int, to: int) -> list[int]:
        """The oldest two that nobody holds, in a range of numbers."""
        found: list[int] = []
        while len(found) < 2:  # noqa: PLR2004
            page = store.seqs(priority, after, to, LOOK_AT)
            if not page:
                break
            found += [seq for seq in page if not self._is_leased(seq)]
            after = page[-1]
        return found[:2]

    def _drop(
        self,
        store: Store,
        changes: Changes,
        victim: tuple[int, int, str],
        held: dict[int, int],
    ) -> bool:
        priority, seq, reason = victim
        cost = store.delete(priority, seq) or 0
        changes.dropped(priority, cost, reason)
        held[priority] -= cost
        return True


def held_bytes(store: Store, changes: Changes) -> dict[int, int]:
    """Bytes that each priority holds, with what is not on the disk yet."""
    held = store.held()
    for priority in held:
        held[priority] += changes.of(priority, "bytes")
    return held
