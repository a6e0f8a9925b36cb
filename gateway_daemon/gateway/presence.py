"""A gateway's presence at one Manager: says that it is up, hears the broker table."""

import logging
from collections.abc import Callable, Sequence

from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerInfo,
    BrokerTable,
    GatewayNotice,
    decode_table,
    encode,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.link import Handler, Incoming, Publication, Session
from spatial_mqtt.topics import BROKER_TABLE, GATEWAY_NOTICE, GATEWAY_SET

log = logging.getLogger(__name__)

Connect = Callable[[Session, Handler], Connection]


class Presence:
    """Speaks Gamma's gateway part to a Manager.

    Args:
        gateway_id: Names the MQTT session.
        public: Where clients reach this gateway.
        areas: Areas to ask for; empty leaves them to an administrator.
        connect: Makes the connection to the Manager's broker.
        on_table: Called with each broker table, in the network thread.
    """

    def __init__(
        self,
        gateway_id: str,
        public: BrokerInfo,
        areas: Sequence[str],
        connect: Connect,
        on_table: Callable[[BrokerTable, "Presence"], None],
    ) -> None:
        self._public = public
        self._areas = tuple(areas)
        self._on_table = on_table
        session = Session(f"{gateway_id}-presence", ((BROKER_TABLE, 2),))
        self._connection = connect(session, self)

    def start(self) -> None:
        """Begin to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._connection.stop()

    def applied(self, version: int) -> None:
        """Report that a table is in use."""
        self._notify(GatewayNotice(self._public, "complete", version))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """See `Handler`."""
        log.info("manager %s is reached", self._connection.endpoint)
        self._notify(GatewayNotice(self._public, "up"))
        if self._areas:
            setting = AreaSetting(self._public, topics=self._areas)
            self._connection.publish(Publication(GATEWAY_SET, encode(setting)))

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        log.warning("manager %s is gone: %s", self._connection.endpoint, reason)

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""
        try:
            table = decode_table(message.payload)
        except DirectoryError as error:
            log.warning("from manager %s: %s", self._connection.endpoint, error)
            return
        self._on_table(table, self)

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""

    def on_subscribed(self) -> None:
        """See `Handler`."""

    def _notify(self, notice: GatewayNotice) -> None:
        self._connection.publish(Publication(GATEWAY_NOTICE, encode(notice)))
