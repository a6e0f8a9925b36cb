"""Adaptive timeouts: how long to wait for an answer, from measured round trips.

A fixed timeout is too long on a fast network, where a crashed node delays an emergency,
and too short on a slow radio, where a live node is suspected.

Source: RFC 6298 (smoothed round trip and its deviation, timeout doubled after silence).
Counting late answers as well is ours: packets have numbers here, so it is certain which
one was answered.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")

GAIN, DEVIATION_GAIN, MARGIN = 1 / 8, 1 / 4, 4
MOST_KNOWN = 1000

STRANGER = 2
"""Who has never answered gets so many times the wait for all the others."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for answers.

    Attributes:
        receipt_s: Longest wait for the receipt of a copy; before anybody has
            answered it is the wait.
        least_s: Shortest wait for it: a busy machine pauses so long.
        child_s: Longer for each copy that leaves before it.
        report_s: For a sign that the receiver still works on its range; it gives
            one three times as often.
        suspect_s: A silent node is left out for so long.
    """

    receipt_s: float = 3.0
    least_s: float = 0.25
    child_s: float = 0.01
    report_s: float = 10.0
    suspect_s: float = 60.0


PATIENCE = Patience()


@dataclass
class _Trip:
    """Round trips of one node, or of all, in s."""

    mean_s: float
    deviation_s: float
    silences: int = 0

    def add(self, took_s: float) -> None:
        off_s = abs(took_s - self.mean_s)
        self.deviation_s += DEVIATION_GAIN * (off_s - self.deviation_s)
        self.mean_s += GAIN * (took_s - self.mean_s)
        self.silences = 0

    @property
    def wait_s(self) -> float:
        return (self.mean_s + MARGIN * self.deviation_s) * float(1 << self.silences)


def _itself(key: Hashable) -> Hashable:
    return key


class RoundTrips(Generic[K]):
    """Round trips by who answered. It reads no clock.

    Args:
        patience: Bounds of the wait.
        whose: What of a key answers: all keys of one gateway do so alike.

    Attributes:
        silences: How often nobody answered in time, since the start.
    """

    def __init__(
        self, patience: Patience = PATIENCE, whose: Callable[[K], Hashable] = _itself
    ) -> None:
        self.silences = 0
        self._patience = patience
        self._whose = whose
        self._all: _Trip | None = None
        self._trips: dict[Hashable, _Trip] = {}

    def answered(self, key: K, took_s: float) -> None:
        """Somebody answered, in time or late."""
        self._all = _added(self._all, took_s)
        who = self._whose(key)
        known = self._trips.pop(who, None)
        if len(self._trips) >= MOST_KNOWN:
            del self._trips[next(iter(self._trips))]
        self._trips[who] = _added(known, took_s)

    def silent(self, key: K) -> None:
        """Somebody did not answer in time: next time he gets twice as long."""
        self.silences += 1
        if trip := self._trips.get(self._whose(key)):
            trip.silences = min(trip.silences + 1, 10)

    def wait_s(self, key: K) -> float:
        """How long to wait for an answer."""
        patience = self._patience
        if trip := self._trips.get(self._whose(key)):
            wait_s = trip.wait_s
        elif self._all is not None:
            wait_s = STRANGER * self._all.wait_s
        else:
            return patience.receipt_s
        return min(patience.receipt_s, max(patience.least_s, wait_s))

    @property
    def mean_s(self) -> float | None:
        """Mean round trip of all; None before the first."""
        return self._all.mean_s if self._all is not None else None


def _added(known: _Trip | None, took_s: float) -> _Trip:
    if known is None:
        return _Trip(took_s, took_s / 2)
    known.add(took_s)
    return known
