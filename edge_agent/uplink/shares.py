"""Whose turn it is: strict for the urgent, fair shares by weight below. No I/O.

Strict order alone would starve routine readings for as long as a storm of
priority 3 lasts. Below `STRICT_FROM` each priority has a share of the bytes by its
weight, whatever the sizes of its messages, so everything that waits moves on.

Source: weighted fair queueing (Demers, Keshav, Shenker 1989), with a virtual time.
"""

from collections.abc import Collection, Mapping

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
