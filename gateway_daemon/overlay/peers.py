"""Peers: how long each may take for an answer, and which gateways answer at all.

A fixed timeout is too long on a fast network, where a crashed node delays an emergency,
and too short on a slow radio, where a live node is suspected, so it is measured.

From inside one half of a partitioned overlay the ring looks intact. The only sign is
that a gateway that used to answer no longer does: it is down, or on the other side. So
`PeerTable` has all gateways pinged in turn, starting with the one whose last frame is
the oldest.

Source: RFC 6298 (smoothed round trip and its deviation, timeout doubled after silence).
Counting late answers as well is ours: packets have numbers here, so it is certain which
one was answered.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Generic, TypeVar

K = TypeVar("K")

GAIN, DEVIATION_GAIN, MARGIN = 1 / 8, 1 / 4, 4
MAX_PEERS = 1000
"""Of whom times, or the last frame, are kept."""

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


MAX_PINGED = 4
"""Limit at once: each may need another connection."""

CYCLE_ROUNDS = 30
"""Rounds within which all are pinged, as far as the limit permits."""

FORGET_AFTER_S = 86_400.0
"""A gateway that is silent for this long is dropped; its name reappears with it."""


@dataclass(frozen=True)
class PeerSummary:
    """Summary of the other gateways.

    Attributes:
        known: Their number.
        silent: Names of those that did not answer the last ping.
        return_count: How often a silent one has answered again, since the start.
    """

    known: int = 0
    silent: tuple[str, ...] = ()
    return_count: int = 0

    def __str__(self) -> str:
        """Format for the log."""
        if not self.silent:
            return (
                f"all {self.known} others answer" if self.known else "no others known"
            )
        return f"{len(self.silent)} of {self.known} others do not answer"


NO_PEERS = PeerSummary()


@dataclass
class _Contact:
    """One gateway.

    Attributes:
        turn_s: Time of its last frame or of the last ping.
        asked_s: First unanswered ping; None without one.
        is_silent: Whether the timeout of that ping has passed.
    """

    turn_s: float = -math.inf
    asked_s: float | None = None
    is_silent: bool = False


class PeerTable:
    """Table of known gateways. It reads no clock.

    Args:
        own_name: Our own name.
        answer_timeout_s: Longest wait for an answer.
    """

    def __init__(self, own_name: str, answer_timeout_s: float) -> None:
        self._own = own_name
        self._answer_s = answer_timeout_s
        self._known: dict[str, _Contact] = {}
        self._returns = 0

    def names(self) -> list[str]:
        """Return all known names."""
        return list(self._known)

    def add(self, name: str) -> bool:
        """Add a gateway, which need not be running; return whether it was unknown."""
        if name == self._own or name in self._known:
            return False
        if len(self._known) >= MAX_PEERS:
            del self._known[next(iter(self._known))]
        self._known[name] = _Contact()
        return True

    def mark_alive(self, name: str, now_s: float) -> None:
        """Record a frame of a gateway."""
        if name == self._own:
            return
        self.add(name)
        self._returns += self._known[name].is_silent
        self._known[name] = _Contact(now_s)

    def next_to_ping(self, now_s: float) -> list[str]:
        """Return the gateways to ping now; call it once per round."""
        for name, each in list(self._known.items()):
            waits_s = now_s - each.asked_s if each.asked_s is not None else 0.0
            each.is_silent = waits_s > self._answer_s
            if waits_s > FORGET_AFTER_S:
                del self._known[name]
        share = min(MAX_PINGED, math.ceil(len(self._known) / CYCLE_ROUNDS))
        asked = nsmallest(share, self._known, key=lambda n: self._known[n].turn_s)
        for name in asked:
            each = self._known[name]
            each.turn_s = now_s
            each.asked_s = now_s if each.asked_s is None else each.asked_s
        return asked

    def summary(self) -> PeerSummary:
        """Return the current summary."""
        silent = (name for name, each in self._known.items() if each.is_silent)
        return PeerSummary(len(self._known), tuple(sorted(silent)), self._returns)
