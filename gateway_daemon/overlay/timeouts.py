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
MAX_PEERS = 1000

UNKNOWN_PEER_FACTOR = 2
"""Factor on the common timeout for a node that has never answered."""


@dataclass(frozen=True)
class ReplyTimeouts:
    """Bounds of the timeouts.

    Attributes:
        receipt_timeout_s: Longest wait for the receipt of a copy, used unchanged before
            the first answer.
        min_timeout_s: Shortest wait for it: a busy machine pauses this long.
        per_copy_s: Added for each copy that is sent before it.
        report_timeout_s: Wait for a sign of progress; the receiver sends three in it.
        suspect_s: How long a silent node is left out.
    """

    receipt_timeout_s: float = 3.0
    min_timeout_s: float = 0.25
    per_copy_s: float = 0.01
    report_timeout_s: float = 10.0
    suspect_s: float = 60.0


DEFAULT_TIMEOUTS = ReplyTimeouts()


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


class RoundTripTimes(Generic[K]):
    """Round-trip times by peer. It reads no clock.

    Args:
        timeouts: Bounds of the timeout.
        peer_of: Maps a key to the peer that answers for it.

    Attributes:
        timeout_count: Answers that did not arrive in time, since the start.
    """

    def __init__(
        self,
        timeouts: ReplyTimeouts = DEFAULT_TIMEOUTS,
        peer_of: Callable[[K], Hashable] = _itself,
    ) -> None:
        self.timeout_count = 0
        self._timeouts = timeouts
        self._peer_of = peer_of
        self._all: _Trip | None = None
        self._trips: dict[Hashable, _Trip] = {}

    def on_answer(self, key: K, took_s: float) -> None:
        """Record an answer, in time or late."""
        self._all = _added(self._all, took_s)
        peer = self._peer_of(key)
        known = self._trips.pop(peer, None)
        if len(self._trips) >= MAX_PEERS:
            del self._trips[next(iter(self._trips))]
        self._trips[peer] = _added(known, took_s)

    def on_timeout(self, key: K) -> None:
        """Record a missing answer: the next timeout of that peer doubles."""
        self.timeout_count += 1
        if trip := self._trips.get(self._peer_of(key)):
            trip.silences = min(trip.silences + 1, 10)

    def timeout_s(self, key: K) -> float:
        """Return how long to wait for an answer."""
        timeouts = self._timeouts
        if trip := self._trips.get(self._peer_of(key)):
            wait_s = trip.wait_s
        elif self._all is not None:
            wait_s = UNKNOWN_PEER_FACTOR * self._all.wait_s
        else:
            return timeouts.receipt_timeout_s
        return min(timeouts.receipt_timeout_s, max(timeouts.min_timeout_s, wait_s))

    @property
    def mean_s(self) -> float | None:
        """Mean round trip of all peers; None before the first."""
        return self._all.mean_s if self._all is not None else None


def _added(known: _Trip | None, took_s: float) -> _Trip:
    if known is None:
        return _Trip(took_s, took_s / 2)
    known.add(took_s)
    return known
