"""Client of a spatial system: publish and subscribe by position on the earth.

A client asks a Manager for the gateways, and connects to the broker of the nearest one
only. When it moves, its subscriptions move along, and its gateway changes if another
one is nearer, without missing messages.

    with Client(["mqtt://manager:1883"], "analyst") as client:
        client.connect(33.5588, 133.5312)
        client.subscribe_around(33.5588, 133.5312, radius_km=2.0)
        for message in client.messages():
            print(message.topic, message.priority, message.payload)

`fetch_retained` and `fetch_all_retained` read retained messages of a broker without it.

Source: Gamma (seed 000) sections 3.2 to 3.4.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Self

from service_runtime.tls import Endpoint, TlsFiles, check_link
from spatial_mqtt.cells import TOPIC_LEVEL, Cell, cover_circle
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerEntry, decode_gateways, rank_gateways
from spatial_mqtt.errors import BrokerError, DirectoryError, EnvelopeError
from spatial_mqtt.senml import MessageId, decode_message_id
from spatial_mqtt.topics import (
    GATEWAY_INFO,
    REGISTER,
    UNREGISTER,
    ForwardTopic,
    cell_filter,
    cell_topic,
    matches,
)
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
)

TIMEOUT_S = 10.0
OVERLAP_S = 5.0
"""After a move both gateways stay subscribed for this time: the new one confirms a
subscription before it is in force at the brokers, and gives no signal when it is."""

MAX_SEEN_IDS = 10_000
"""Ids kept to drop duplicates: two gateways may deliver a message during a move."""

COLLECT_S: Final = 1.0
"""Time to wait for further retained messages."""


@dataclass(frozen=True)
class SpatialMessage:
    """A received message.

    Attributes:
        topic: Topic of its cell.
        payload: Payload as published.
        priority: Priority set by the sender; None without one.
        age_s: Age at the last hop; None when it was not late.
    """

    topic: str
    payload: bytes
    priority: int | None = None
    age_s: int | None = None


class Client:
    """A client at a position; use it as a context manager, or `close` it.

    Args:
        managers: Addresses of Managers, tried in turn within one time-out.
        client_id: Fixed name, unique in the system.
        on_message: Called with each message in the network thread; without it,
            `messages` returns them.
        tls: Files for ``mqtts`` endpoints.
        shuffle: Distributes clients over gateways with the same area.
    """

    def __init__(
        self,
        managers: Sequence[str | Endpoint],
        client_id: str,
        on_message: Callable[[SpatialMessage], object] | None = None,
        *,
        tls: TlsFiles | None = None,
        shuffle: Callable[[list[BrokerEntry]], None] = random.shuffle,
    ) -> None:
        self._managers = [
            m if isinstance(m, Endpoint) else Endpoint.parse(m) for m in managers
        ]
        for endpoint in self._managers:
            check_link(endpoint, tls)
        self._id = client_id
        self._inbox: SimpleQueue[SpatialMessage | None] = SimpleQueue()
        self._on_message = on_message or self._inbox.put
        self._tls = tls
        self._shuffle = shuffle
        self._seen: OrderedDict[object, None] = OrderedDict()
        self._lock = threading.Lock()
        self._filters: frozenset[str] = frozenset()
        self._radius_km: float | None = None
        self._link: _Link | None = None
        self._previous: list[_Link] = []

    def __enter__(self) -> Self:
        """Return the client, not yet connected."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def gateway(self) -> Endpoint | None:
        """Gateway in use."""
        return self._link.endpoint if self._link else None

    @property
    def filters(self) -> frozenset[str]:
        """Current subscriptions."""
        return self._filters

    def connect(
        self, latitude_deg: float, longitude_deg: float, timeout_s: float = TIMEOUT_S
    ) -> Endpoint:
        """Connect to the nearest gateway, or to the next one if it does not answer.

        Raises:
            PositionError: The position is not on the earth.
            BrokerError: No Manager or no gateway answers in time.
        """
        ranked = self._rank_gateways(latitude_deg, longitude_deg, timeout_s)
        if self._link is not None and self._link.endpoint == ranked[0]:
            return ranked[0]
        for gateway in ranked:
            link = _Link(self, gateway, self._filters)
            if link.is_ready.wait(timeout_s):
                self._switch_to(link)
                return gateway
            link.close(frozenset())
        raise BrokerError(str(ranked[0]), "no gateway answers")

    def publish_at(
        self,
        latitude_deg: float,
        longitude_deg: float,
        payload: bytes,
        priority: int | None = None,
        *,
        qos: int = 1,
        level: int = TOPIC_LEVEL,
    ) -> bool:
        """Publish a message at a position.

        Args:
            latitude_deg: Latitude, -90 to 90.
            longitude_deg: Longitude, -180 to 180.
            payload: Any bytes.
            priority: Priority on the ladder; None leaves it to the gateway.
            qos: 0, 1 or 2.
            level: S2 level of the topic, 0 to 30; no coarser than subscribers' cells.

        Returns:
            False when the connection is down; the message was not sent.
        """
        topic = cell_topic(Cell.at(latitude_deg, longitude_deg, level))
        link = self._link
        if link is None:
            return False
        # As a property: a Gamma gateway drops a message with a priority in its topic.
        forward = str(ForwardTopic(topic))
        return link.publish(Publication(forward, payload, qos, priority=priority))

    def flush(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Wait for all acknowledgements; returns whether they came in time."""
        return self._link is not None and self._link.flush(timeout_s)

    def subscribe_around(
        self, latitude_deg: float, longitude_deg: float, radius_km: float
    ) -> frozenset[str]:
        """Subscribe to a circle only; returns its filters.

        Raises:
            PositionError: The circle is not on the earth.
        """
        cells = cover_circle(latitude_deg, longitude_deg, radius_km)
        self._radius_km = radius_km
        self._subscribe_to(cell_filter(cell) for cell in cells)
        return self._filters

    def move(
        self, latitude_deg: float, longitude_deg: float, timeout_s: float = TIMEOUT_S
    ) -> Endpoint:
        """Move the circle, and change the gateway if another one is nearer.

        New subscriptions are made before old ones are removed; a message that arrives
        twice is delivered once.

        Raises:
            PositionError: The position is not on the earth.
            BrokerError: No Manager or gateway answers in time; the old one stays.
        """
        if self._radius_km is not None:
            cells = cover_circle(latitude_deg, longitude_deg, self._radius_km)
            self._subscribe_to(cell_filter(cell) for cell in cells)
        return self.connect(latitude_deg, longitude_deg, timeout_s)

    def unsubscribe(self) -> None:
        """Remove all subscriptions."""
        self._radius_km = None
        self._subscribe_to(())

    def messages(self, timeout_s: float | None = None) -> Iterator[SpatialMessage]:
        """Iterate over messages until `close`, or until none came for ``timeout_s``."""
        while True:
            try:
                message = self._inbox.get(timeout=timeout_s)
            except Empty:
                return
            if message is None:
                return
            yield message

    def close(self) -> None:
        """Remove the subscriptions and disconnect."""
        link, self._link = self._link, None
        for each in (*self._previous, *([link] if link else [])):
            each.close(self._filters)
        self._inbox.put(None)

    def receive(self, incoming: IncomingMessage) -> None:
        """Deliver a message, unless it is a duplicate."""
        if self._is_new(incoming):
            self._on_message(
                SpatialMessage(
                    incoming.topic, incoming.payload, incoming.priority, incoming.age_s
                )
            )

    def _subscribe_to(self, filters: Iterable[str]) -> None:
        self._filters = frozenset(filters)
        if self._link is not None:
            self._link.set_filters(self._filters)

    def _switch_to(self, link: "_Link") -> None:
        old, self._link = self._link, link
        link.set_filters(self._filters)
        if old is not None:
            filters = self._filters
            timer = threading.Timer(OVERLAP_S, lambda: old.close(filters))
            timer.daemon = True
            timer.start()
            self._previous.append(old)

    def _rank_gateways(
        self, latitude_deg: float, longitude_deg: float, timeout_s: float
    ) -> list[Endpoint]:
        topic = cell_topic(Cell.at(latitude_deg, longitude_deg))
        error = BrokerError("managers", "none was given")
        share_s = timeout_s / max(len(self._managers), 1)
        for manager in tuple(self._managers):
            try:
                payload = fetch_retained(
                    manager, GATEWAY_INFO, f"{self._id}-asks", share_s, self._tls
                )
                ranked = rank_gateways(decode_gateways(payload), topic, self._shuffle)
            except (BrokerError, DirectoryError) as caught:
                error = BrokerError(str(manager), str(caught))
                continue
            if ranked:
                # The Manager that answered comes first next time: others may be down.
                self._managers.sort(key=lambda other: other != manager)
                return [Endpoint(g.host, g.port, manager.tls) for g in ranked]
            error = BrokerError(str(manager), "it knows no gateway")
        raise error

    def _is_new(self, incoming: IncomingMessage) -> bool:
        try:
            if incoming.message_id is not None:
                message_id = MessageId.parse(incoming.message_id)
            else:
                message_id, _ = decode_message_id(incoming.payload)
        except EnvelopeError:
            return True  # without an id it cannot be recognised
        with self._lock:
            is_new = message_id not in self._seen
            self._seen[message_id] = None
            self._seen.move_to_end(message_id)
            if len(self._seen) > MAX_SEEN_IDS:
                self._seen.popitem(last=False)
        return is_new


class _Link(BaseConnectionHandler):
    """Connection to one gateway, which restores its subscriptions on reconnect."""

    def __init__(
        self, client: Client, endpoint: Endpoint, filters: frozenset[str]
    ) -> None:
        self.endpoint = endpoint
        self.is_ready = threading.Event()
        self._client = client
        self._filters = filters
        self._is_closed = threading.Event()
        self._pending = 0
        self._changed = threading.Condition()
        session = Session(client._id)  # noqa: SLF001 - same module
        self.connection = Connection(endpoint, session, self, client._tls)  # noqa: SLF001
        self.connection.start()

    def set_filters(self, filters: frozenset[str]) -> None:
        """Replace the subscriptions: the new ones first, then remove the others."""
        new, gone = filters - self._filters, self._filters - filters
        self._filters = filters
        self._subscribe(new)
        self.connection.unsubscribe(sorted(gone))
        self._announce(UNREGISTER, gone)

    def publish(self, publication: Publication) -> bool:
        """Publish a message; False when the connection is down."""
        self._count(1)
        # Without the lock: paho calls back under a lock that publishing acquires.
        is_sent = self.connection.publish(publication) is not None
        if not is_sent:
            self._count(-1)
        return is_sent

    def flush(self, timeout_s: float) -> bool:
        """Wait until every publication is acknowledged."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending == 0, timeout_s)

    def close(self, filters: frozenset[str]) -> None:
        """Remove the subscriptions and disconnect."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._announce(UNREGISTER, filters)
            self.connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._subscribe(self._filters)
        if not self._filters:
            self.is_ready.set()

    def on_message(self, message: IncomingMessage) -> None:
        self._client.receive(message)

    def on_published(self, token: int, refused: str | None) -> None:
        self._count(-1)

    def on_subscribed(self) -> None:
        self.is_ready.set()

    def _count(self, by: int) -> None:
        with self._changed:
            self._pending += by
            self._changed.notify_all()

    def _subscribe(self, filters: frozenset[str]) -> None:
        self.connection.subscribe([(each, 1) for each in sorted(filters)])
        self._announce(REGISTER, filters)

    def _announce(self, topic: str, filters: frozenset[str]) -> None:
        """Repeat it on the topic that Gamma's gateways read."""
        for each in sorted(filters):
            self.publish(Publication(topic, each.encode()))


def fetch_retained(
    endpoint: Endpoint,
    topic: str,
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> bytes:
    """Connect, read one retained message of a topic or filter, disconnect.

    Raises:
        BrokerError: The broker is not reachable, or has no such message.

    Source:
        Gamma (seed 000) section 3.2, steps 1-3.
    """
    return _fetch(endpoint, (topic,), client_id, timeout_s, tls).first


def fetch_all_retained(
    endpoint: Endpoint,
    filters: tuple[str, ...],
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> dict[str, bytes]:
    """Read a required retained message, and all others that arrive within a second.

    Args:
        endpoint: Address of the broker.
        filters: Topic of the required message, and filters of the others.
        client_id: Client id of the session.
        timeout_s: Limit for the required message.
        tls: Files for an ``mqtts`` endpoint.

    Raises:
        BrokerError: The broker is not reachable, or does not have the message.
    """
    return _fetch(
        endpoint, filters, client_id, timeout_s, tls, more_s=COLLECT_S
    ).payloads


def _fetch(
    endpoint: Endpoint,
    filters: tuple[str, ...],
    client_id: str,
    timeout_s: float,
    tls: TlsFiles | None,
    *,
    more_s: float = 0.0,
) -> "_RetainedReader":
    reader = _RetainedReader(filters[0])
    subscriptions = tuple((each, 1) for each in filters)
    session = Session(client_id, filters=subscriptions, keepalive_s=10)
    connection = Connection(endpoint, session, reader, tls)
    connection.start()
    try:
        if not reader.is_received.wait(timeout_s):
            connection.report_missing_answer()
            reason = connection.last_reason or f"no retained message on {filters[0]}"
            raise BrokerError(str(endpoint), f"{reason} within {timeout_s:g} s")
        if more_s:
            threading.Event().wait(more_s)
    finally:
        connection.stop()
    return reader


class _RetainedReader(BaseConnectionHandler):
    """Stores the first message of each topic, and of the required filter."""

    def __init__(self, required: str) -> None:
        self.is_received = threading.Event()
        self.first = b""
        self.payloads: dict[str, bytes] = {}
        self._required = required

    def on_message(self, message: IncomingMessage) -> None:
        self.payloads.setdefault(message.topic, message.payload)
        is_required = matches(self._required, message.topic)
        if is_required and not self.is_received.is_set():
            self.first = message.payload
            self.is_received.set()
