"""Which message goes next: priority first, then fair shares, then live before late.

Strict for the urgent. Below, each priority has its share, and within one that has
a backlog, what is measured now goes before what was measured long ago, for which
a share is kept as well: an analyst wants to see the slope as it is, and then the
rest of the story.

Whose turn it is: strict for the urgent, fair shares by weight below. No I/O.

Strict order alone would starve routine readings for as long as a storm of
priority 3 lasts. Below `STRICT_FROM` each priority has a share of the bytes by its
weight, whatever the sizes of its messages, so everything that waits moves on.

Source: weighted fair queueing (Demers, Keshav, Shenker 1989), with a virtual time.
"""

from collections.abc import Collection, Mapping

from edge_agent.queue.base import Message, Queue

STRICT_FROM = 4
WEIGHTS: Mapping[int, float] = {3: 8.0, 2: 4.0, 1: 1.0}


class Shares:
    """Keeps the account of what each priority has been given.

    Args:
        weights: Shares of the priorities below `STRICT_FROM`.
    """

    def __init__(self, weights: Mapping[int, float] = WEIGHTS) -> None:
        self._weights = dict(weights)
        self._given = dict.fromkeys(self._weights, 0.0)
        self._was_waiting: frozenset[int] = frozenset()

    def choose(self, waiting: Collection[int]) -> int | None:
        """The priority whose oldest message goes next; None when none waits."""
        strict = [priority for priority in waiting if priority >= STRICT_FROM]
        if strict:
            return max(strict)
        self._welcome(frozenset(waiting))
        fair = sorted(waiting, key=lambda p: (self._given[p], -p))
        return fair[0] if fair else None

    def spend(self, priority: int, size_bytes: int) -> None:
        """Account for a message that was sent."""
        if priority in self._weights:
            self._given[priority] += size_bytes / self._weights[priority]

    def _welcome(self, waiting: frozenset[int]) -> None:
        """Who was idle has saved nothing up: it joins where the others are."""
        others = [self._given[p] for p in waiting & self._was_waiting]
        if others:
            for priority in waiting - self._was_waiting:
                self._given[priority] = max(self._given[priority], min(others))
        self._was_waiting = waiting


LATE_AFTER_S = 60.0
"""A message that waited longer is late, and says so."""

GATHER_UP_TO = 2
"""Priorities that may wait for company."""

_LIVE, _LATE = 1, 0
_LIVE_SHARES = {_LIVE: 3.0, _LATE: 1.0}


class Order:
    """Takes messages out of a queue in the order in which they should travel.

    Args:
        queue: Where they wait; this is its only leaser.
        gather_s: How long routine messages wait for company, to share a publication.
    """

    def __init__(self, queue: Queue, gather_s: float = 0.0) -> None:
        self._queue = queue
        self._gather_s = gather_s
        # Who waited for company on purpose is not late.
        self._late_after_s = LATE_AFTER_S + gather_s
        self._shares = Shares()
        self._live_shares: dict[int, Shares] = {}
        self._waiting_since: dict[int, float] = {}

    def next(self, now_s: float) -> int | None:
        """The priority whose message goes next; None when none may go."""
        waiting = self._queue.waiting()
        for priority in self._waiting_since.keys() - waiting:
            del self._waiting_since[priority]
        for priority in waiting:
            self._waiting_since.setdefault(priority, now_s)
        return self._shares.choose([p for p in waiting if self._is_ripe(p, now_s)])

    def take(
        self, priority: int, limit: int, max_bytes: int, *, is_mixed: bool = False
    ) -> list[Message]:
        """Lease the next messages of a priority.

        Args:
            priority: On the ladder.
            limit: How many at most.
            max_bytes: Of their payloads together; the first always fits.
            is_mixed: Whether they may be of several topics.

        Returns:
            None of them only when the queue has none after all.
        """
        keep = list if is_mixed else self._of_one_topic
        batch = self._queue.lease(limit, max_bytes, priority=priority)
        if priority >= STRICT_FROM or not batch or not self.lateness_s(batch[0]):
            return keep(batch)
        shares = self._live_shares.setdefault(priority, Shares(_LIVE_SHARES))
        kept: list[Message] = []
        turn = shares.choose((_LIVE, _LATE))
        if turn == _LIVE:
            self._queue.release([m.seq for m in batch])
            kept = keep(self._newest(priority, limit, max_bytes))[::-1]
            batch = kept or self._queue.lease(limit, max_bytes, priority=priority)
        if not kept:
            kept, turn = keep(batch), _LATE
        shares.spend(turn or _LATE, sum(len(m.payload) for m in kept))
        return kept

    def spend(self, priority: int, size_bytes: int) -> None:
        """Account for what was sent."""
        self._shares.spend(priority, size_bytes)

    def lateness_s(self, message: Message) -> int | None:
        """How many seconds late a message is; None when it is not."""
        age_s = self._queue.age_s(message)
        return int(age_s) if age_s is not None and age_s > self._late_after_s else None

    def _is_ripe(self, priority: int, now_s: float) -> bool:
        waited_s = now_s - self._waiting_since[priority]
        return priority > GATHER_UP_TO or waited_s >= self._gather_s

    def _newest(self, priority: int, limit: int, max_bytes: int) -> list[Message]:
        """The newest messages that are not late, the newest first."""
        batch = self._queue.lease(limit, max_bytes, priority=priority, newest=True)
        late = [m.seq for m in batch if self.lateness_s(m) is not None]
        self._queue.release(late)
        return [m for m in batch if m.seq not in late]

    def _of_one_topic(self, batch: list[Message]) -> list[Message]:
        """Those of the topic of the first; the others go back."""
        others = [m.seq for m in batch if m.topic != batch[0].topic]
        self._queue.release(others)
        return [m for m in batch if m.topic == batch[0].topic]
