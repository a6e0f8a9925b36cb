"""Peer table: the known gateways, and which of them answer.

From inside one half of a partitioned overlay the ring looks intact. The only sign is
that a gateway that used to answer no longer does: it is down, or on the other side. So
all gateways are pinged in turn, starting with the one whose last frame is the oldest.
"""

import math
from dataclasses import dataclass
from heapq import nsmallest

MAX_PEERS = 1000

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
