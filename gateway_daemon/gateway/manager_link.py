"""A gateway's presence at one Manager: says that it is up, hears the broker table."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gateway_daemon.gateway.load_report import Load
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerInfo,
    BrokerTable,
    Entry,
    GatewayNotice,
    Here,
    Named,
    Place,
    decode_gateways,
    decode_table,
    encode,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    BROKER_TABLE,
    BROKER_UPDATE,
    COMPLETE,
    GATEWAY_DOWN,
    GATEWAY_HERE,
    GATEWAY_INFO,
    GATEWAY_LOAD,
    GATEWAY_NOTICE,
    GATEWAY_SET,
    GATEWAY_WISH,
    WISH,
    gateway_place_topic,
)
from spatial_mqtt.transport import ConnectionHandler, Incoming, Publication, Session

log = logging.getLogger(__name__)

Connect = Callable[[Session, ConnectionHandler], Connection]


class Hears(Protocol):
    """Who hears what a Manager says of broker tables."""

    def on_table(self, table: BrokerTable, presence: "Presence") -> None:
        """A Manager published a broker table."""

    def on_complete(self, presence: "Presence") -> None:
        """A Manager says that every gateway listens by its newest table."""


class Presence:
    """Speaks Gamma's gateway part to a Manager.

    Args:
        gateway_id: Names the MQTT session.
        public: Where clients reach this gateway.
        areas: Areas to ask for; empty leaves them to an administrator.
        connect: Makes the connection to the Manager's broker.
        hears: Told of broker tables, in the network thread.
        beat_s: How often `beat` will be called.

    Attributes:
        place: Where it stands; None is not known.
        on_listed: Told which gateways the Manager lists, in the network thread.
    """

    def __init__(
        self,
        gateway_id: str,
        public: BrokerInfo,
        areas: Sequence[str],
        connect: Connect,
        hears: "Hears",
        *,
        beat_s: float,
    ) -> None:
        self._beat_s = beat_s
        self.place: Place | None = None
        self._place_topic = gateway_place_topic(gateway_id)
        self.on_listed: Callable[[Sequence[Entry]], object] = len
        self._public = public
        self._areas = tuple(areas)
        self._hears = hears
        filters = ((BROKER_TABLE, 2), (GATEWAY_INFO, 2), (BROKER_UPDATE, 2))
        session = Session(
            f"{gateway_id}-presence", filters, will=self._goodbye(), keepalive_s=10
        )
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether the Manager's broker is reached now."""
        return self._connection.is_up

    def __str__(self) -> str:
        """Where the Manager's broker is."""
        return str(self._connection.endpoint)

    def start(self) -> None:
        """Begin to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Say goodbye and disconnect."""
        self._connection.publish(self._goodbye())
        self._connection.stop()

    def beat(self) -> None:
        """Say that we are still there."""
        here = Publication(GATEWAY_HERE, encode(Here(self._public, self._beat_s)))
        self._connection.publish(here)

    def tell_load(self, load: Load) -> None:
        """Say what we carry; it is old soon, so nobody keeps it."""
        told = Publication(GATEWAY_LOAD, msgspec.json.encode(load), qos=0)
        self._connection.publish(told)

    def applied(self, version: int) -> None:
        """Report that a table is in use."""
        self._notify(GatewayNotice(self._public, "complete", version))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        log.info("manager %s is reached", self._connection.endpoint)
        self._announce()

    def on_down(self, reason: str) -> None:
        log.warning("manager %s is gone: %s", self._connection.endpoint, reason)

    def on_message(self, message: Incoming) -> None:
        try:
            if message.topic == GATEWAY_INFO:
                listed = decode_gateways(message.payload)
                self._check_listed(listed)
                self.on_listed(listed)
            elif message.topic == BROKER_TABLE:
                self._hears.on_table(decode_table(message.payload), self)
            elif message.payload == COMPLETE:
                self._hears.on_complete(self)
        except DirectoryError as error:
            log.warning("from manager %s: %s", self._connection.endpoint, error)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `ConnectionHandler`."""

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""

    def _check_listed(self, entries: Sequence[Entry]) -> None:
        """Announce ourselves again to a Manager that does not know us.

        A broker passes on what is published, but keeps nothing for a Manager that
        starts after its gateways, or that has lost its registry.
        """
        if all(entry.broker_info != self._public for entry in entries):
            self._announce()

    def _announce(self) -> None:
        self._notify(GatewayNotice(self._public, "up"))
        # An empty one takes back what an earlier start retained.
        place = encode(self.place) if self.place else b""
        self._connection.publish(Publication(self._place_topic, place, retain=True))
        self.beat()
        if self._areas:
            wish = encode(AreaSetting(self._public, topics=self._areas))
            # Behind certificates only administrators write where Gamma's gateways do.
            has_rights = self._connection.endpoint.tls
            topic = GATEWAY_WISH if has_rights else GATEWAY_SET
            self._connection.publish(Publication(topic, wish, content=WISH))

    def _goodbye(self) -> Publication:
        return Publication(GATEWAY_DOWN, encode(Named(self._public)))

    def _notify(self, notice: GatewayNotice) -> None:
        self._connection.publish(Publication(GATEWAY_NOTICE, encode(notice)))
