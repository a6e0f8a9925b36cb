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
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    ConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

MAX_HELD_FRAMES = 200
"""Frames that wait for a connection; older ones are repeated by their senders."""

IDLE_TIMEOUT_S = 300.0
"""A connection without traffic for this long is closed."""

UP_WITHIN_S = 15.0
"""Time in which a new connection comes up, before it makes room for another."""

MAX_LINKS = 256
"""Connections, each with two threads, of which the unit allows 1,024. In an overlay of
1,000 gateways, pings and probes use some hundreds within the idle timeout."""

Connect = Callable[[Endpoint, Session, ConnectionHandler], Connection]
RunInLoop = Callable[[Callable[[], None]], object]


class FrameHandler(Protocol):
    """Receiver of frames and names, in the loop of the overlay."""

    def on_frame(self, frame: bytes) -> None:
        """Handle a frame for one of our keys."""

    def on_name(self, name: str) -> None:
        """Handle the name of a gateway."""


class _OwnBroker(BaseConnectionHandler):
    """Handler of our own broker, where frames for us arrive."""

    def __init__(self, transport: "MqttTransport") -> None:
        self._transport = transport

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._transport.run_in_loop(self._transport.publish_name)

    def on_message(self, message: IncomingMessage) -> None:
        if message.retain:  # by no gateway: it would arrive at each connection
            return
        self._transport.run_in_loop(
            lambda: self._transport.handler.on_frame(message.payload)
        )


class _BrokerLink(BaseConnectionHandler):
    """Connection to one broker."""

    def __init__(
        self, transport: "MqttTransport", now_s: float, *, is_kept: bool
    ) -> None:
        self.is_kept = is_kept
        self.used_s = now_s
        self.connection: Connection | None = None
        self._opened_s = now_s
        self._transport = transport
        self._held: deque[Publication] = deque(maxlen=MAX_HELD_FRAMES)

    @property
    def is_up(self) -> bool:
        """Whether the broker has accepted the connection."""
        return self.connection is not None and self.connection.is_up

    def is_overdue(self, now_s: float) -> bool:
        """Whether the connection should be up, and is not."""
        return not self.is_up and now_s - self._opened_s >= UP_WITHIN_S

    def send(self, publication: Publication, now_s: float) -> None:
        """Send now, or when the connection is up."""
        self.used_s = now_s
        if self.connection is None or self.connection.publish(publication) is None:
            self._held.append(publication)

    def flush(self) -> None:
        """Send the held frames."""
        held = list(self._held)
        self._held.clear()
        for publication in held:
            self.send(publication, self.used_s)

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._transport.run_in_loop(self.flush)

    def on_down(self, reason: str) -> None:
        self._transport.run_in_loop(self._held.clear)

    def on_message(self, message: IncomingMessage) -> None:
        if message.topic.startswith(OVERLAY_NAMES):
            name = message.payload.decode(errors="replace")
            self._transport.run_in_loop(lambda: self._transport.handler.on_name(name))


class MqttTransport:
    """Carries frames between gateways. All methods belong to one loop.

    Args:
        gateway_id: Used in our client ids and our topic.
        own_broker: Our own broker.
        connect: Makes connections.
        run_in_loop: Runs a function in the loop of the overlay; callable from any
            thread.

    Attributes:
        handler: Receives frames and names; set before `start`.
    """

    handler: FrameHandler

    def __init__(
        self,
        gateway_id: str,
        own_broker: Endpoint,
        connect: Connect,
        run_in_loop: RunInLoop,
    ) -> None:
        self.run_in_loop = run_in_loop
        self._id = gateway_id
        self._name = ""
        self._own = own_broker
        self._connect = connect
        self._links: dict[BrokerInfo, _BrokerLink] = {}
        session = Session(f"{gateway_id}-overlay", ((overlay_topic(gateway_id), 0),))
        self._own_connection = connect(own_broker, session, _OwnBroker(self))

    def start(self, name: str, peers: Iterable[BrokerInfo], now_s: float) -> None:
        """Subscribe, and read names at the known brokers."""
        self._name = name
        self._own_connection.start()
        for peer in peers:
            self._open(peer, now_s, is_kept=True)

    def open_link(self, broker: BrokerInfo, now_s: float) -> None:
        """Connect to a broker to read its names, until the connection is idle."""
        if (way := self._open(broker, now_s)) is not None:
            way.used_s = now_s

    def publish_name(self) -> None:
        """Retain our name on our broker."""
        self._own_connection.publish(
            Publication(overlay_name_topic(self._id), self._name.encode(), retain=True)
        )

    def send(self, to: BrokerInfo, gateway_id: str, frame: bytes, now_s: float) -> None:
        """Send a frame to a gateway; drop it while there are too many connections."""
        publication = Publication(overlay_topic(gateway_id), frame, qos=0)
        if (way := self._open(to, now_s)) is not None:
            way.send(publication, now_s)

    def close_idle(self, now_s: float) -> None:
        """Close an idle connection, or one to make room for another.

        That is one that does not come up, or else the one not used for longest. One at
        a time, because its end may take seconds.
        """
        links = {each: way for each, way in self._links.items() if not way.is_kept}
        is_full = len(self._links) >= MAX_LINKS
        if not links:
            return
        _, used_s, broker = min(
            (is_full and not way.is_overdue(now_s), way.used_s, each)
            for each, way in links.items()
        )
        if is_full or now_s - used_s > IDLE_TIMEOUT_S:
            self._close(self._links.pop(broker))

    def stop(self) -> None:
        """Close all connections."""
        self._own_connection.stop()
        for way in self._links.values():
            self._close(way)

    def _open(
        self, to: BrokerInfo, now_s: float, *, is_kept: bool = False
    ) -> _BrokerLink | None:
        way = self._links.get(to)
        if way is None:
            if len(self._links) >= MAX_LINKS and not is_kept:
                return None
            way = self._links[to] = _BrokerLink(self, now_s, is_kept=is_kept)
            session = Session(
                f"{self._id}-overlay-out", ((OVERLAY_NAME_FILTER, 1),), keepalive_s=10
            )
            endpoint = Endpoint(to.host, to.port, self._own.tls)
            way.connection = self._connect(endpoint, session, way)
            way.connection.start()
        return way

    @staticmethod
    def _close(link: _BrokerLink) -> None:
        if link.connection is not None:
            link.connection.stop()
