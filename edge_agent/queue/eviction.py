"""Eviction: which messages are dropped when the queue's budget is exhausted.

Lower priorities go first: each is thinned, then dropped from the oldest message on. The
budgets, and the maximum ages, are settings that nodes and gateways share.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from edge_agent.queue.base import (
    ExpiryPolicy,
    MessageDraft,
    QueueFullError,
    QueueShareError,
)
from edge_agent.queue.shared_queue import FairShare, fair_share
from edge_agent.queue.store import (
    DROPPED_FULL,
    DROPPED_THINNED,
    CounterDeltas,
    QueueRow,
    Store,
    group_by_priority,
    total_cost_bytes,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.priority import LADDER

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Budget:
    """Limits in bytes, counted as in `cost_bytes`.

    Attributes:
        max_bytes: For all priorities together.
        top_share: Fraction of it reserved for the top priority.
        by_priority: Additional limits of single priorities.
        thin_below: A message below this priority may thin messages of its own
            priority.
        is_shared: Whether several nodes share the queue, each up to its fair share.
    """

    max_bytes: int
    top_share: float = 0.05
    by_priority: Mapping[int, int] = field(default_factory=dict)
    thin_below: int = LADDER.urgent_from
    is_shared: bool = False

    def limit_bytes(self, priority: int) -> int:
        """Maximum bytes of the whole queue after a put of this priority."""
        if priority == LADDER.top:
            return self.max_bytes
        return int(self.max_bytes * (1 - self.top_share))

    def excess_bytes(
        self, stored: Mapping[int, int], priority: int, cost_bytes: int
    ) -> int:
        """Bytes to evict before a message of `cost_bytes` bytes fits; <= 0 if it fits.

        Args:
            stored: Stored bytes by priority.
            priority: Of the message.
            cost_bytes: Its size.
        """
        return max(self._excesses(stored, priority, cost_bytes))

    def full_error(
        self, stored: Mapping[int, int], priority: int, cost_bytes: int
    ) -> QueueFullError:
        """Error of a message that does not fit, with the limit that it exceeds most.

        For the arguments see `excess_bytes`.
        """
        total, own = self._excesses(stored, priority, cost_bytes)
        if own >= total:
            own_limit = self.by_priority[priority]
            return QueueFullError(stored.get(priority, 0), own_limit, priority)
        return QueueFullError(sum(stored.values()), self.limit_bytes(priority))

    def _excesses(
        self, stored: Mapping[int, int], priority: int, cost_bytes: int
    ) -> tuple[int, int]:
        """Bytes above the limit of the queue, and above that of the priority."""
        total = sum(stored.values()) + cost_bytes - self.limit_bytes(priority)
        own_limit = self.by_priority.get(priority, 2**63)
        return total, stored.get(priority, 0) + cost_bytes - own_limit


MAX_DROPS = 1000
"""Messages that one transaction drops from a queue that was above its limit before, as
with a smaller limit in the settings. To drop all of them takes minutes, while an alarm
waits and the watchdog ends the program, each time anew."""

_SEARCH_ROWS = 64


class Evictor:
    """Evicts messages inside the caller's transaction.

    Args:
        store: The file.
        budget: The limits.
        is_leased: Whether a sequence number is leased; such messages are kept.
    """

    def __init__(
        self, store: Store, budget: Budget, is_leased: Callable[[int], bool]
    ) -> None:
        self._store = store
        self._budget = budget
        self._is_leased = is_leased
        self._thin_progress: dict[int, tuple[int, int]] = {}

    def fits(self, changes: CounterDeltas, rows: Iterable[QueueRow]) -> bool:
        """Whether messages fit without eviction.

        In a shared queue they must also fit if all stored messages were of one node.
        """
        held = self._stored_bytes(changes)
        groups = group_by_priority(rows)
        for priority, group in groups.items():
            held[priority] += total_cost_bytes(group)
        if any(self._budget.excess_bytes(held, p, 0) > 0 for p in groups):
            return False
        if not self._budget.is_shared:
            return True
        shares = [self._fair_share(held, priority) for priority in groups]
        return all(share.used_bytes <= share.node_bytes for share in shares)

    def check_share(
        self, changes: CounterDeltas, row: QueueRow, draft: MessageDraft
    ) -> None:
        """Check that a message is within the fair share of its node.

        Raises:
            QueueShareError: It is not.
        """
        if not self._budget.is_shared:
            return
        held = self._stored_bytes(changes)
        held[row.priority] += row.cost_bytes
        share = self._fair_share(held, row.priority)
        if share.used_bytes <= share.node_bytes:  # even if all of it is of this node
            return
        own_bytes = self._store.node_bytes(row.node, share.lowest) + row.cost_bytes
        if own_bytes > share.node_bytes:
            raise QueueShareError(row.node, draft, own_bytes, share.node_bytes)

    def _fair_share(self, held: Mapping[int, int], priority: int) -> FairShare:
        return fair_share(held, self._budget.limit_bytes(priority), priority)

    def evict_for(self, changes: CounterDeltas, priority: int, cost_bytes: int) -> None:
        """Evict messages until one of this priority and size fits.

        A queue that was above its limit before shrinks by `MAX_DROPS` messages only.

        Raises:
            QueueFullError: It cannot fit.
        """
        held = self._stored_bytes(changes)
        for lower in range(1, priority):
            while self._is_evictable_for(lower, held, priority, cost_bytes):
                if not self._lacks_space(changes, held, priority, cost_bytes):
                    return
                if not self._evict_one(changes, lower, held):
                    break
        while self._lacks_space(changes, held, priority, cost_bytes):
            may_thin = priority < self._budget.thin_below
            if not may_thin or not self._thin(changes, priority, held):
                raise self._budget.full_error(held, priority, cost_bytes)

    def _lacks_space(
        self, changes: CounterDeltas, held: Mapping[int, int], priority: int, cost: int
    ) -> bool:
        """Whether more must be evicted for a message of this priority and size."""
        if self._budget.excess_bytes(held, priority, cost) <= 0:
            return False
        if changes.drop_reasons.total() < MAX_DROPS:
            return True
        return sum(held.values()) + cost > sum(self._store.stored_bytes().values())

    def _is_evictable_for(
        self, lower: int, held: Mapping[int, int], priority: int, cost: int
    ) -> bool:
        """Whether evicting a lower priority helps: only against the total limit."""
        total = sum(held.values()) + cost
        return held.get(lower, 0) > 0 and total > self._budget.limit_bytes(priority)

    def _evict_one(
        self, changes: CounterDeltas, priority: int, held: dict[int, int]
    ) -> bool:
        if self._thin(changes, priority, held):
            return True
        oldest = self._oldest_unleased(priority, 0, 2**63 - 1)
        if not oldest:
            return False
        return self._drop(changes, (priority, oldest[0], DROPPED_FULL), held)

    def _thin(
        self, changes: CounterDeltas, priority: int, held: dict[int, int]
    ) -> bool:
        """Drop every second message of the oldest half, one per call, repeatedly."""
        low, high = self._store.seq_bounds(priority)
        ranges = (
            self._thin_progress.get(priority, (0, 0)),
            # Half of the sequence range: counting rows would read them all.
            (low - 1, (low + high) // 2),
            # When old messages are sparse, everything but the newest counts as old.
            (low - 1, high - 1),
        )
        for after, end in ranges:
            found = self._oldest_unleased(priority, after, end)
            if len(found) == 2:  # noqa: PLR2004 - one to keep and one to drop
                self._thin_progress[priority] = (found[1], end)
                return self._drop(changes, (priority, found[1], DROPPED_THINNED), held)
        return False

    def _stored_bytes(self, changes: CounterDeltas) -> dict[int, int]:
        """Bytes by priority, including changes that are not on disk yet."""
        held = self._store.stored_bytes()
        for priority in held:
            held[priority] += changes.get(priority, "bytes")
        return held

    def _oldest_unleased(self, priority: int, after: int, to: int) -> list[int]:
        """The oldest two unleased messages in a sequence range."""
        found: list[int] = []
        while len(found) < 2:  # noqa: PLR2004
            page = self._store.read_seqs(priority, after, to, _SEARCH_ROWS)
            if not page:
                break
            found += [seq for seq in page if not self._is_leased(seq)]
            after = page[-1]
        return found[:2]

    def _drop(
        self,
        changes: CounterDeltas,
        victim: tuple[int, int, str],
        held: dict[int, int],
    ) -> bool:
        priority, seq, reason = victim
        cost = self._store.delete(priority, seq) or 0
        changes.add_dropped(priority, cost, reason)
        held[priority] -= cost
        return True


def check_per_priority(values: tuple[float, ...]) -> None:
    """Check for one non-negative number per priority.

    Raises:
        FieldError: The count is wrong, or a number is negative.
    """
    if len(values) != LADDER.top or min(values) < 0:
        rule = f"{LADDER.top} numbers from 0 up, for priorities 1 to {LADDER.top}"
        raise FieldError("value", rule, list(values))


@dataclass(frozen=True)
class BaseQueueSection:
    """Settings in ``[queue]`` that every queue has."""

    max_bytes: int = key(
        KeyRule("Budget of the queue.", "bytes", low=10_000, high=1e12), 200_000_000
    )
    max_bytes_of: tuple[int, ...] = key(
        KeyRule(
            "Budgets of priorities 1 to 5 within it; 0 is no separate limit.",
            "bytes",
            check=check_per_priority,
        ),
        (0,) * LADDER.top,
    )
    ttl_s: tuple[float, ...] = key(
        KeyRule(
            "Maximum age of messages of priorities 1 to 5; 0 is no limit. Expired "
            "messages are dropped and counted.",
            "s",
            check=check_per_priority,
        ),
        (0.0,) * LADDER.top,
    )

    def budget(self) -> Budget:
        """Limits in bytes."""
        return Budget(self.max_bytes, by_priority=_nonzero(self.max_bytes_of))

    def expiry_policy(self, mono_s: Callable[[], float]) -> ExpiryPolicy:
        """Maximum age of messages.

        Args:
            mono_s: Monotonic seconds since the machine started.
        """
        return ExpiryPolicy(mono_s, _nonzero(self.ttl_s))


def _nonzero(values: tuple[Number, ...]) -> dict[int, Number]:
    return {p: value for p, value in enumerate(values, start=1) if value}
