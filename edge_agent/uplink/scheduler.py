"""Scheduling: which message is sent next.

Urgent priorities are strict. The others share the bytes by weight, so that a storm of
priority 3 does not starve routine readings. Within a priority that has a backlog,
current readings and late ones share the bytes in the same way, 3 to 1.

Source: weighted fair queueing (Demers, Keshav, Shenker 1989), with a virtual time.
"""

from collections.abc import Collection, Mapping

from edge_agent.queue.base import Queue, QueuedMessage
from spatial_mqtt.priority import LADDER

STRICT_FROM = LADDER.urgent_from
WEIGHTS: Mapping[int, float] = {3: 8.0, 2: 4.0, 1: 1.0}


class WeightedFairQueue:
    """Weighted fair queueing below `STRICT_FROM`, strict priority from there up.

    Args:
        weights: Weights of the priorities below `STRICT_FROM`.
    """

    def __init__(self, weights: Mapping[int, float] = WEIGHTS) -> None:
        self._weights = dict(weights)
        self._virtual_time = dict.fromkeys(self._weights, 0.0)
        self._previous: frozenset[int] = frozenset()

    def choose(self, waiting: Collection[int]) -> int | None:
        """The priority to serve next; None when none is waiting."""
        strict = [priority for priority in waiting if priority >= STRICT_FROM]
        if strict:
            return max(strict)
        self._advance_idle(frozenset(waiting))
        return min(waiting, key=lambda p: (self._virtual_time[p], -p), default=None)

    def charge(self, priority: int, size_bytes: int) -> None:
        """Charge a message that was sent."""
        if priority in self._weights:
            self._virtual_time[priority] += size_bytes / self._weights[priority]

    def _advance_idle(self, waiting: frozenset[int]) -> None:
        """Advance priorities that were idle: they have no credit for that time."""
        times = [self._virtual_time[p] for p in waiting & self._previous]
        if times:
            for priority in waiting - self._previous:
                time = self._virtual_time[priority]
                self._virtual_time[priority] = max(time, min(times))
        self._previous = waiting


LATE_AFTER_S = 60.0
"""A message that waited longer is late and is sent with its age."""

MAX_GATHER_PRIORITY = 2
"""Highest priority whose messages may wait to share a publication."""

FULL_BATCH_BYTES = 6000
FULL_BATCH_MESSAGES = 64
"""What fills a batch, and so a segment, waits no longer. Our readings are deflated to
about a quarter; others take several segments."""

FULL_CHECK_INTERVAL_S = 1.0

_LIVE, _LATE = 1, 0
_LIVE_WEIGHTS = {_LIVE: 3.0, _LATE: 1.0}


class PriorityScheduler:
    """Leases messages from a queue in the order in which they should be sent.

    Args:
        queue: The queue; nothing else may lease from it.
        gather_s: How long routine messages wait to share a publication, if they do
            not fill one before.
    """

    def __init__(self, queue: Queue, gather_s: float = 0.0) -> None:
        self._queue = queue
        self._gather_s = gather_s
        # Messages held back for batching do not count as late.
        self._late_after_s = LATE_AFTER_S + gather_s
        self._fair_queue = WeightedFairQueue()
        self._live_queues: dict[int, WeightedFairQueue] = {}
        self._waiting_since: dict[int, float] = {}
        self._next_check_s: dict[int, float] = {}

    def next_priority(self, now_s: float, lowest: int) -> int | None:
        """The priority to serve next; None when no message may be sent.

        Args:
            now_s: Monotonic time.
            lowest: Lowest priority that the rate limit permits now; one below it only
                if no other waits.
        """
        waiting = self._queue.waiting_priorities()
        for priority in self._waiting_since.keys() - waiting:
            del self._waiting_since[priority]
        for priority in waiting:
            self._waiting_since.setdefault(priority, now_s)
        ripe = [p for p in waiting if self._is_ripe(p, now_s)]
        permitted = [p for p in ripe if p >= lowest]
        if ripe and not permitted:
            return max(ripe)  # without a turn: it is not sent now
        return self._fair_queue.choose(permitted)

    def lease(
        self, priority: int, limit: int, max_bytes: int, *, is_mixed: bool = False
    ) -> list[QueuedMessage]:
        """Lease the next messages of a priority.

        Args:
            priority: On the ladder.
            limit: Maximum number.
            max_bytes: Maximum payload bytes in total; the first always fits.
            is_mixed: Whether they may have different topics.

        Returns:
            The messages; empty when the queue has none, or when an urgent one of a
            higher priority was put since this priority was chosen. What was put after
            that one would otherwise be leased as well, and be sent before it.
        """
        batch = self._lease(priority, limit, max_bytes, is_mixed=is_mixed)
        if batch and self._has_urgent_above(priority):
            self._queue.release([m.seq for m in batch])
            return []
        return batch

    def _lease(
        self, priority: int, limit: int, max_bytes: int, *, is_mixed: bool
    ) -> list[QueuedMessage]:
        keep = list if is_mixed else self._of_one_topic
        batch = self._queue.lease(limit, max_bytes, priority=priority)
        if priority >= STRICT_FROM or not batch or not self.lateness_s(batch[0]):
            return keep(batch)
        live_queue = self._live_queues.setdefault(
            priority, WeightedFairQueue(_LIVE_WEIGHTS)
        )
        kept: list[QueuedMessage] = []
        turn = live_queue.choose((_LIVE, _LATE))
        if turn == _LIVE:
            self._queue.release([m.seq for m in batch])
            kept = keep(self._newest(priority, limit, max_bytes))[::-1]
            batch = kept or self._queue.lease(limit, max_bytes, priority=priority)
        if not kept:
            kept, turn = keep(batch), _LATE
        live_queue.charge(turn or _LATE, sum(len(m.payload) for m in kept))
        return kept

    def charge(self, priority: int, size_bytes: int) -> None:
        """Charge a publication that was sent."""
        self._fair_queue.charge(priority, size_bytes)

    def lateness_s(self, message: QueuedMessage) -> int | None:
        """Age of a late message in seconds; None when it is not late."""
        age_s = self._queue.age_s(message)
        return int(age_s) if age_s is not None and age_s > self._late_after_s else None

    def _has_urgent_above(self, priority: int) -> bool:
        """Whether an urgent message of a higher priority waits."""
        highest = max(self._queue.waiting_priorities(), default=0)
        return highest > priority and highest >= STRICT_FROM

    def _is_ripe(self, priority: int, now_s: float) -> bool:
        if priority > MAX_GATHER_PRIORITY:
            return True
        waited_s = now_s - self._waiting_since[priority]
        return waited_s >= self._gather_s or self._fills_batch(priority, now_s)

    def _fills_batch(self, priority: int, now_s: float) -> bool:
        """Whether enough waits for a full batch; looked up once in a second if not."""
        if now_s < self._next_check_s.get(priority, 0.0):
            return False
        batch = self._queue.lease(
            FULL_BATCH_MESSAGES, FULL_BATCH_BYTES, priority=priority
        )
        self._queue.release([m.seq for m in batch])
        size_bytes = sum(len(m.payload) for m in batch)
        is_full = len(batch) == FULL_BATCH_MESSAGES
        if is_full or size_bytes > FULL_BATCH_BYTES * 3 // 4:
            return True
        self._next_check_s[priority] = now_s + FULL_CHECK_INTERVAL_S
        return False

    def _newest(self, priority: int, limit: int, max_bytes: int) -> list[QueuedMessage]:
        """The newest messages that are not late, newest first."""
        batch = self._queue.lease(limit, max_bytes, priority=priority, newest=True)
        late = [m.seq for m in batch if self.lateness_s(m) is not None]
        self._queue.release(late)
        return [m for m in batch if m.seq not in late]

    def _of_one_topic(self, batch: list[QueuedMessage]) -> list[QueuedMessage]:
        """The messages with the topic of the first; release the others."""
        others = [m.seq for m in batch if m.topic != batch[0].topic]
        self._queue.release(others)
        return [m for m in batch if m.topic == batch[0].topic]
