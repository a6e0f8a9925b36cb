"""What an uplink hears: the events of its connections, and what else it listens for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from spatial_mqtt.link import Incoming


@dataclass(frozen=True)
class Ear:
    """What else is listened for on the link.

    Attributes:
        filters: MQTT filters.
        hear: Called in the uplink's loop with each message; must not block.
    """

    filters: tuple[str, ...] = ()
    hear: Callable[[Incoming], object] = lambda _: None


class Answer(NamedTuple):
    """What the broker said of a publication, and when."""

    link: "Link"
    token: int
    refused: str | None
    at_s: float


class Loop(Protocol):
    """Who runs events in its own loop."""

    def post(self, event: Callable[[], None], link: "Link") -> None:
        """Run an event of a link, unless that link is history."""

    def answered(self, answer: Answer) -> None:
        """The broker acknowledged or refused a publication."""

    def on_ready(self, receive_maximum: int, round_trip_s: float) -> None:
        """The link is up and our receipts are subscribed."""

    def on_lost(self, reason: str) -> None:
        """The link is gone."""

    def on_message(self, incoming: Incoming) -> None:
        """Something arrived."""


class Link:
    """Handler of one connection: hands its events to the uplink's loop."""

    def __init__(self, loop: Loop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._receive_maximum = 0
        self._up_at_s = 0.0

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""
        self._receive_maximum = receive_maximum
        self._up_at_s = self._clock()

    def on_subscribed(self) -> None:
        """See `Handler`."""
        limit, trip_s = self._receive_maximum, self._clock() - self._up_at_s
        self._loop.post(lambda: self._loop.on_ready(limit, trip_s), self)

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        self._loop.post(lambda: self._loop.on_lost(reason), self)

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        self._loop.post(lambda: self._loop.on_message(message), self)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""
        self._loop.answered(Answer(self, token, refused, self._clock()))
