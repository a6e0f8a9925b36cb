"""Announcement of a distributed broker to the Managers, beside the broker.

The program keeps a connection to its broker. While that is up, it sends heartbeats with
the requested areas to every Manager, which gives the broker the areas that no other one
has. Without heartbeats the areas are taken after three intervals; when the program
stops it announces that, and they are taken at once. There is no last will: a short
break of the link to a Manager must not move the messages of an area.

A Manager of the original Gamma ignores heartbeats. While it does not list the broker,
the program also requests the first area as the original's program beside a broker does.

Source: Gamma (seed 000) section 3.4 and the API table of the published system.
"""

import logging
import random
import threading
from collections.abc import Callable, Sequence

from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.connection import Backoff
from spatial_mqtt.directory import (
    BrokerEntry,
    BrokerHeartbeat,
    BrokerInfo,
    GatewayReference,
    decode_broker_table,
    encode_directory_message,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    AREA_REQUEST_CONTENT,
    BROKER_ADD,
    BROKER_DOWN,
    BROKER_HEARTBEAT,
    BROKER_TABLE,
    named_api_topic,
)
from spatial_mqtt.transport import (
    BaseConnectionHandler,
    Connect,
    IncomingMessage,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

KEEPALIVE_S = 10
SILENCE_S = 90.0
RETRY_BASE_S = 2.0
REQUEST_CAP_S = 600.0
"""Longest wait between requests to a Manager of the original Gamma."""


class ManagerBrokerLink(BaseConnectionHandler):
    """Link to one Manager.

    Args:
        name: Name of the MQTT session, and of the certificate.
        here: The heartbeat: address, requested areas and interval.
        connect: Makes the connection to the Manager's broker.
        clock: Monotonic seconds.
        has_certificates: Whether the broker checks our certificate.

    Attributes:
        listed: Requested areas that the Manager's table gives to this broker.
        taken: Requested areas that other brokers hold, with these.
        on_connected: Called in the network thread.
    """

    def __init__(
        self,
        name: str,
        here: BrokerHeartbeat,
        connect: Connect,
        clock: Callable[[], float],
        *,
        has_certificates: bool,
    ) -> None:
        self.listed: tuple[str, ...] = ()
        self.taken: dict[str, BrokerInfo] = {}
        self.on_connected: Callable[[], object] = lambda: None
        self._name, self._here, self._clock = name, here, clock
        self._has_certificates = has_certificates
        self._heartbeats = 0
        self._backoff = _new_backoff(REQUEST_CAP_S)
        self._request_s = 0.0
        session = Session(
            f"{name}-presence", ((BROKER_TABLE, 1),), keepalive_s=KEEPALIVE_S
        )
        self._connection = connect(session, self)

    def __str__(self) -> str:
        """What the Manager lists."""
        where = f"manager {self._connection.endpoint}"
        if not self._connection.is_up:
            return f"{where} DOWN"
        words = [f"{where} lists {', '.join(self.listed) or 'nothing'}"]
        words += [f"{area} is {holder}'s" for area, holder in self.taken.items()]
        return ", ".join(words)

    @property
    def is_settled(self) -> bool:
        """Whether every requested area has a broker, as far as can be known."""
        known = {*self.listed, *self.taken}
        return not self._connection.is_up or known == {*self._here.topics}

    def start(self) -> None:
        """Begin to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Announce that the broker stops, and disconnect."""
        reference = GatewayReference(self._here.broker_info)
        self._publish(BROKER_DOWN, encode_directory_message(reference))
        self._connection.stop()

    def send_heartbeat(self) -> None:
        """Announce that the broker is up."""
        if not self._connection.is_up:
            return
        self._publish(BROKER_HEARTBEAT, encode_directory_message(self._here))
        self._heartbeats += 1
        is_original = self._heartbeats > 1 and not self.listed
        if is_original and not self._has_certificates and self._is_free:
            self._request_as_original()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._heartbeats = 0
        log.info("connected to manager %s", self._connection.endpoint)
        self.on_connected()

    def on_down(self, reason: str) -> None:
        log.warning("manager %s is gone: %s", self._connection.endpoint, reason)

    def on_message(self, message: IncomingMessage) -> None:
        try:
            table = decode_broker_table(message.payload)
        except DirectoryError as error:
            log.warning("from manager %s: %s", self._connection.endpoint, error)
            return
        self._compare(table.brokers)

    def _compare(self, entries: Sequence[BrokerEntry]) -> None:
        mine = self._here.broker_info
        holders = {e.topic: e.broker_info for e in entries}
        wanted = {area: holders.get(area) for area in self._here.topics}
        before = self.listed, self.taken
        self.listed = tuple(area for area, at in wanted.items() if at == mine)
        self.taken = {a: at for a, at in wanted.items() if at not in {None, mine}}
        if before == (self.listed, self.taken):
            return
        log.info("%s", self)
        for area, holder in self.taken.items():
            log.warning(
                "%s has the area %s already: use another area in broker.areas, or stop "
                "that broker, or remove it with gateway-daemon admin remove-broker",
                holder,
                area,
            )
        if self.listed:
            self._backoff, self._request_s = _new_backoff(REQUEST_CAP_S), 0.0

    @property
    def _is_free(self) -> bool:
        return self._here.topics[0] not in self.taken

    def _request_as_original(self) -> None:
        """Request the first area: the original's gateways end at a second one."""
        now_s = self._clock()
        if now_s < self._request_s:
            return
        self._request_s = now_s + self._backoff.next_wait_s()
        entry = BrokerEntry(self._here.topics[0], self._here.broker_info)
        payload = encode_directory_message(entry)
        self._connection.publish(
            Publication(BROKER_ADD, payload, content=AREA_REQUEST_CONTENT)
        )

    def _publish(self, topic: str, payload: bytes) -> None:
        if self._has_certificates:
            topic = named_api_topic(topic, self._name)
        self._connection.publish(Publication(topic, payload))


class BrokerAnnouncement(BaseConnectionHandler):
    """Sends heartbeats to all Managers while the broker answers.

    Args:
        name: Name of the MQTT session at the broker.
        connect: Makes the connection to the broker.
        managers: Links to the Managers.
        every_s: Interval of heartbeats.
        watchdog: Supervises the loop.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        managers: Sequence[ManagerBrokerLink],
        every_s: float,
        watchdog: LoopWatchdog,
    ) -> None:
        self._managers = tuple(managers)
        self._every_s = every_s
        self._backoff = _new_backoff(every_s)
        self._watchdog = watchdog
        self._wake, self._is_stopping = threading.Event(), False
        for each in self._managers:
            each.on_connected = self._wake.set
        session = Session(f"{name}-watch", keepalive_s=KEEPALIVE_S)
        self._broker = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether the broker answers, and a Manager lists it."""
        return self._broker.is_up and any(each.listed for each in self._managers)

    def status(self) -> str:
        """One-line summary."""
        state = "up" if self._broker.is_up else "DOWN"
        return "; ".join([
            f"broker {self._broker.endpoint} {state}",
            *map(str, self._managers),
        ])

    def run(self) -> None:
        """Serve until `stop`."""
        self._broker.start()
        for each in self._managers:
            each.start()
        with self._watchdog.watch_loop("announcement", SILENCE_S) as heartbeat:
            while not self._is_stopping:
                heartbeat()
                self._send_heartbeats()
                self._wake.wait(self._wait_s())
                self._wake.clear()
        for each in self._managers:
            each.stop()
        self._broker.stop()

    def stop(self) -> None:
        """End `run`: the Managers take the areas from the broker."""
        self._is_stopping = True
        self._wake.set()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        log.info("broker %s is up", self._broker.endpoint)
        self._wake.set()

    def on_down(self, reason: str) -> None:
        log.warning(
            "broker %s is gone: %s; it is not announced until it is back",
            self._broker.endpoint,
            reason,
        )

    def _wait_s(self) -> float:
        """Time until the next heartbeat: shorter while an area has no broker.

        The Manager may have started after the last one.
        """
        if all(each.is_settled for each in self._managers):
            self._backoff = _new_backoff(self._every_s)
            return self._every_s
        return self._backoff.next_wait_s()

    def _send_heartbeats(self) -> None:
        if self._broker.is_up:
            for each in self._managers:
                each.send_heartbeat()


def _new_backoff(cap_s: float) -> Backoff:
    base_s = min(RETRY_BASE_S, cap_s)
    return Backoff(random.Random(), base_s, cap_s)  # noqa: S311 - jitter
