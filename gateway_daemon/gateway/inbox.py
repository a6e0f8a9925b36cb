"""What arrived from a network thread, taken in batches: one commit for many."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

BATCH = 500

APART_S = 0.010
"""Batches are taken no closer together, but for urgent messages. Alone, a message waits
for nothing; in a stream it waits as long as a memory card takes to commit, and to
commit every second message by itself would cost five times the CPU."""

MOST_APART_S = 0.1
ENOUGH = 100
"""A batch of so many needs no more company."""

URGENT_FROM = 4
"""Priorities that do not wait for company."""


class Inbox(Generic[T]):
    """A queue between a network thread and the thread that stores.

    Args:
        clock: Monotonic seconds.
        is_urgent: Whether something must not wait for company.
    """

    def __init__(
        self, clock: Callable[[], float], is_urgent: Callable[[T], bool]
    ) -> None:
        self._clock = clock
        self._is_urgent = is_urgent
        self._arrived: SimpleQueue[T | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._taken_at_s = clock() - APART_S
        self._took = 0

    def put(self, item: T) -> None:
        """Add what arrived."""
        self._arrived.put(item)
        if self._is_urgent(item):
            self._hurry.set()

    def close(self) -> None:
        """End the batches, after what has arrived."""
        self._arrived.put(None)
        self._hurry.set()

    def batch(self, wait_s: float) -> list[T] | None:
        """What has arrived; nothing when the wait is over; None when it is closed."""
        rests_until_s = self._taken_at_s + self._rest_s()
        try:
            first = self._arrived.get(timeout=wait_s)
        except Empty:
            return []
        if first is None:
            return None
        self._hurry.wait(max(0.0, rests_until_s - self._clock()))
        self._hurry.clear()  # before they are taken: later ones hurry the next batch
        self._taken_at_s = self._clock()
        batch = [first, *self._following()]
        self._took = len(batch)
        return batch

    def _rest_s(self) -> float:
        """How far apart the next batch is: a slow machine gathers longer.

        Half of the time at most is spent on batches, so that what they cost by
        themselves is shared by more messages where the machine is short of time.
        """
        busy_s = self._clock() - self._taken_at_s
        if self._took >= ENOUGH:
            return APART_S
        return max(APART_S, min(MOST_APART_S, 2 * busy_s))

    def _following(self) -> list[T]:
        batch: list[T] = []
        while len(batch) < BATCH - 1:
            try:
                following = self._arrived.get_nowait()
            except Empty:
                break
            if following is None:
                self._arrived.put(None)
                break
            batch.append(following)
        return batch
