"""Peer table: the known gateways, and which of them answer.

From inside one half of a partitioned overlay the ring looks intact. The only sign is
that a gateway that used to answer no longer does: it is down, or on the other side. So
all gateways are pinged in turn, starting with the one whose last frame is the oldest.
"""

import math
from dataclasses import dataclass
from heapq import nsmallest

MOST_CONTACTS = 1000

MOST_ASKED = 4
"""At once: each may be a connection more."""

CYCLE = 30
"""All are asked within so many beats, if that is not too many at once."""

FORGET_S = 86_400.0
"""Who keeps silent for so long is gone; its name will tell when it is back."""


@dataclass(frozen=True)
class Census:
    """What is known of the other gateways.

    Attributes:
        known: How many there are.
        silent: Those that did not answer when they were asked last, by name.
        returns: How often one of those has answered again, since the start.
    """

    known: int = 0
    silent: tuple[str, ...] = ()
    returns: int = 0

    def __str__(self) -> str:
        """In words."""
        if not self.silent:
            return f"all {self.known} others answer" if self.known else "nobody known"
        return f"{len(self.silent)} of {self.known} others do not answer"


NOBODY = Census()


@dataclass
class _Contact:
    """One gateway.

    Attributes:
        turn_s: When it was heard or asked last.
        asked_s: When it was asked first since it was heard; None when it owes nothing.
        is_silent: Whether it was given its time to answer.
    """

    turn_s: float = -math.inf
    asked_s: float | None = None
    is_silent: bool = False


class Contacts:
    """Who is known. It reads no clock.

    Args:
        own: Our own name.
        answer_s: So long an answer may take.
    """

    def __init__(self, own: str, answer_s: float) -> None:
        self._own = own
        self._answer_s = answer_s
        self._known: dict[str, _Contact] = {}
        self._returns = 0

    def names(self) -> list[str]:
        """All that are known."""
        return list(self._known)

    def add(self, name: str) -> bool:
        """Remember a gateway that need not be there; whether it was unknown."""
        if name == self._own or name in self._known:
            return False
        if len(self._known) >= MOST_CONTACTS:
            del self._known[next(iter(self._known))]
        self._known[name] = _Contact()
        return True

    def heard(self, name: str, now_s: float) -> None:
        """A frame of a gateway has come."""
        if name == self._own:
            return
        self.add(name)
        self._returns += self._known[name].is_silent
        self._known[name] = _Contact(now_s)

    def to_ask(self, now_s: float) -> list[str]:
        """Whom to ask now whether they are there; called at each beat."""
        for name, each in list(self._known.items()):
            waits_s = now_s - each.asked_s if each.asked_s is not None else 0.0
            each.is_silent = waits_s > self._answer_s
            if waits_s > FORGET_S:
                del self._known[name]
        share = min(MOST_ASKED, math.ceil(len(self._known) / CYCLE))
        asked = nsmallest(share, self._known, key=lambda n: self._known[n].turn_s)
        for name in asked:
            each = self._known[name]
            each.turn_s = now_s
            each.asked_s = now_s if each.asked_s is None else each.asked_s
        return asked

    def census(self) -> Census:
        """What is known now."""
        silent = (name for name, each in self._known.items() if each.is_silent)
        return Census(len(self._known), tuple(sorted(silent)), self._returns)
