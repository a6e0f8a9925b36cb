"""MQTT transport of the overlay: frames are publications on the receiver's broker.

A gateway subscribes at its own broker and publishes at the receiver's broker. These are
the brokers that serve clients, with their TLS and accounts, so no other port is needed.
Frames use QoS 0, since every packet of the overlay is acknowledged or repeated. Each
gateway retains its name on its broker, so a node that knows only the address can find
it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from service_runtime.tls import Endpoint
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.topics import (
    OVERLAY_NAME_FILTER,
    OVERLAY_NAMES,
    overlay_name_topic,
    overlay_topic,
)
from spatial_mqtt.transport import ConnectionHandler, Incoming, Publication, Session

log = logging.getLogger(__name__)

MOST_HELD = 200
"""Frames that wait for a link to come up; older ones are repeated by who sent them."""

IDLE_S = 300.0
"""A link that carried nothing for so long is closed."""

Connect = Callable[[Endpoint, Session, ConnectionHandler], Connection]
Later = Callable[[Callable[[], None]], object]


class Hears(Protocol):
    """Who hears of the post, in the loop of the overlay."""

    def on_frame(self, frame: bytes) -> None:
        """A frame for one of our keys."""

    def on_name(self, name: str) -> None:
        """A gateway's name was found."""


class _Box:
    """Our own broker, where frames for us arrive. Callbacks only note events."""

    def __init__(self, post: "Post") -> None:
        self._post = post

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._post.later(self._post.tell_name)

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: Incoming) -> None:
        self._post.later(lambda: self._post.hears.on_frame(message.payload))

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


class _Way:
    """The way to one broker."""

    def __init__(self, post: "Post", now_s: float, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.used_s = now_s
        self.connection: Connection | None = None
        self._post = post
        self._held: deque[Publication] = deque(maxlen=MOST_HELD)

    def send(self, publication: Publication, now_s: float) -> None:
        """Send, now or when the link is up."""
        self.used_s = now_s
        if self.connection is None or self.connection.publish(publication) is None:
            self._held.append(publication)

    def flush(self) -> None:
        """Send what has waited."""
        held = list(self._held)
        self._held.clear()
        for publication in held:
            self.send(publication, self.used_s)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._post.later(self.flush)

    def on_down(self, reason: str) -> None:
        self._post.later(self._held.clear)

    def on_message(self, message: Incoming) -> None:
        if message.topic.startswith(OVERLAY_NAMES):
            name = message.payload.decode(errors="replace")
            self._post.later(lambda: self._post.hears.on_name(name))

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


class Post:
    """Carries frames between gateways. All methods belong to one loop.

    Args:
        gateway_id: Names our sessions and our topic.
        own: Our own broker.
        connect: Makes connections.
        later: Runs an event in the loop of the overlay; may be called from anywhere.

    Attributes:
        hears: Who hears of frames and names; set before `start`.
    """

    hears: Hears

    def __init__(
        self, gateway_id: str, own: Endpoint, connect: Connect, later: Later
    ) -> None:
        self.later = later
        self._id = gateway_id
        self._name = ""
        self._own = own
        self._connect = connect
        self._ways: dict[BrokerInfo, _Way] = {}
        session = Session(f"{gateway_id}-overlay", ((overlay_topic(gateway_id), 0),))
        self._box = connect(own, session, _Box(self))

    def start(self, name: str, peers: Iterable[BrokerInfo], now_s: float) -> None:
        """Listen, and look for names at brokers that are known."""
        self._name = name
        self._box.start()
        for peer in peers:
            self._way(peer, now_s, is_kept=True)

    def look_at(self, broker: BrokerInfo, now_s: float) -> None:
        """Look for names at a broker, for as long as a link is kept."""
        self._way(broker, now_s).used_s = now_s

    def tell_name(self) -> None:
        """Retain our name on our broker."""
        self._box.publish(
            Publication(overlay_name_topic(self._id), self._name.encode(), retain=True)
        )

    def send(self, to: BrokerInfo, gateway_id: str, frame: bytes, now_s: float) -> None:
        """Send a frame to a gateway."""
        publication = Publication(overlay_topic(gateway_id), frame, qos=0)
        self._way(to, now_s).send(publication, now_s)

    def rest(self, now_s: float) -> None:
        """Close links that carry nothing."""
        for broker, way in list(self._ways.items()):
            if not way.is_kept and now_s - way.used_s > IDLE_S:
                del self._ways[broker]
                self._close(way)

    def stop(self) -> None:
        """Disconnect from everybody."""
        self._box.stop()
        for way in self._ways.values():
            self._close(way)

    def _way(self, to: BrokerInfo, now_s: float, *, is_kept: bool = False) -> _Way:
        way = self._ways.get(to)
        if way is None:
            way = self._ways[to] = _Way(self, now_s, is_kept=is_kept)
            session = Session(
                f"{self._id}-overlay-out", ((OVERLAY_NAME_FILTER, 1),), keepalive_s=10
            )
            endpoint = Endpoint(to.host, to.port, self._own.tls)
            way.connection = self._connect(endpoint, session, way)
            way.connection.start()
        return way

    @staticmethod
    def _close(way: _Way) -> None:
        if way.connection is not None:
            way.connection.stop()
