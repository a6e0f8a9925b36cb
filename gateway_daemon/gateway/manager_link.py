"""Link of a gateway to one Manager: announcements, broker tables, and load reports."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from gateway_daemon.gateway.egress import Egress
from spatial_mqtt.connection import Backoff
from spatial_mqtt.custody import COMPACT_FORM
from spatial_mqtt.directory import (
    MAX_CELLS,
    AreaSetting,
    BrokerEntry,
    BrokerInfo,
    BrokerTable,
    GatewayHeartbeat,
    GatewayLocation,
    GatewayNotice,
    GatewayReference,
    LaneLoad,
    LoadReport,
    decode_broker_table,
    decode_gateway_location,
    decode_gateways,
    decode_version,
    encode_directory_message,
)
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import (
    AREA_REQUEST_CONTENT,
    BROKER_READY,
    BROKER_TABLE,
    BROKER_UPDATE,
    COMPLETE,
    GATEWAY_AREA_REQUEST,
    GATEWAY_DOWN,
    GATEWAY_HEARTBEAT,
    GATEWAY_INFO,
    GATEWAY_LOAD,
    GATEWAY_LOCATIONS,
    GATEWAY_NOTICE,
    GATEWAY_SET,
    gateway_location_topic,
    matches,
    named_api_topic,
)
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    BaseConnectionHandler,
    Connect,
    IncomingMessage,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

UNLISTED_BASE_S = 2.0
UNLISTED_CAP_S = 600.0
"""Shortest and longest wait between announcements to a Manager without our entry."""

WHOLE_WORLD = "/"


IDLE, IOWAIT = 3, 4
"""Columns of ``cpu`` in /proc/stat after its name (proc(5))."""


class BrokerTableListener(Protocol):
    """Receives the broker tables of a Manager, in the network thread."""

    def on_table(self, table: BrokerTable, link: "ManagerLink") -> None:
        """A Manager published a broker table."""

    def on_complete(self, link: "ManagerLink", version: int | None) -> None:
        """Every gateway has subscribed by a version, or by the newest table (None)."""


class _Peers:
    """The other gateways, as one Manager's broker lists and describes them.

    Args:
        own: Address of this gateway.

    Attributes:
        are_compact: Whether the Manager is connected and all that it has listed in this
            run read `COMPACT_FORM`. One that is listed no longer can return, to
            messages that brokers have stored for it.
    """

    def __init__(self, own: BrokerInfo) -> None:
        self.are_compact = False
        self._own = own
        self._listed: set[BrokerInfo] = set()
        self._has_list = False
        self._locations: dict[str, GatewayLocation] = {}

    def on_up(self) -> None:
        self._has_list = False
        self._locations.clear()  # the broker does not state what was removed

    def on_down(self) -> None:
        self.are_compact = False

    def on_list(self, gateways: Sequence[BrokerEntry]) -> None:
        self._listed |= {each.broker_info for each in gateways} - {self._own}
        self._has_list = True
        self._compare()

    def on_location(self, message: IncomingMessage) -> None:
        self._locations.pop(message.topic, None)
        try:
            if message.payload:
                location = decode_gateway_location(message.payload)
                self._locations[message.topic] = location
        finally:
            self._compare()

    def _compare(self) -> None:
        here = self._locations.values()
        readers = {e.broker_info for e in here if COMPACT_FORM in e.reads}
        others = {e.broker_info for e in here if COMPACT_FORM not in e.reads}
        older = self._listed - (readers - others)
        if self.are_compact and older:
            names = ", ".join(map(str, sorted(older)))
            log.info("longer properties of messages are sent, for gateways %s", names)
        self.are_compact = self._has_list and not older


class ManagerLink(BaseConnectionHandler):
    """The gateway's side of Gamma's protocol between gateways and a Manager.

    Over a link with certificates it publishes below its name, which the broker checks.
    A broker whose rights are from an earlier version refuses that; then it publishes
    on Gamma's topics, as without certificates.

    Args:
        gateway_id: Name of the MQTT session, and of the certificate.
        request: Address where clients reach this gateway, and the areas to request;
            none leaves them to an administrator.
        connect: Makes the connection to the Manager's broker.
        listener: Receives broker tables, in the network thread.
        clock: Monotonic seconds.
        has_certificates: Whether the broker checks this gateway's certificate.

    Attributes:
        heartbeat_s: Interval between calls of `send_heartbeat`; 0 if there are none.
        location: What is published about this gateway.
        on_gateway_list: Called with the Manager's list of gateways, in the network
            thread.
        announces_ready: Whether the Manager publishes `BROKER_READY`; the original's
            does not.
    """

    def __init__(
        self,
        gateway_id: str,
        request: AreaSetting,
        connect: Connect,
        listener: BrokerTableListener,
        clock: Callable[[], float],
        *,
        has_certificates: bool,
    ) -> None:
        self.heartbeat_s = 0.0
        self.announces_ready = False
        self.location = GatewayLocation(request.broker_info)
        self._peers = _Peers(request.broker_info)
        self._id = gateway_id
        self._has_certificates = self._uses_name = has_certificates
        self._named: set[int] = set()
        self._location_topic = gateway_location_topic(gateway_id)
        self.on_gateway_list: Callable[[Sequence[BrokerEntry]], object] = len
        self._public = request.broker_info
        self._request, self._areas = request, request.topics or ()
        self._listener = listener
        self._clock = clock
        self._backoff = _new_backoff()
        self._again_s = 0.0
        self._listed: tuple[str, ...] | None = None
        self._applied: int | None = None
        self._has_set_areas = False
        self._reported_areas = self._areas
        topics = (BROKER_TABLE, BROKER_READY, GATEWAY_INFO, BROKER_UPDATE)
        filters = tuple((topic, 2) for topic in (*topics, GATEWAY_LOCATIONS))
        session = Session(
            f"{gateway_id}-presence", filters, will=self._down(), keepalive_s=10
        )
        self._connection = connect(session, self)

    @property
    def is_up(self) -> bool:
        """Whether the Manager's broker is connected."""
        return self._connection.is_up

    @property
    def has_compact_peers(self) -> bool:
        """Whether all other gateways are known to read `COMPACT_FORM`."""
        return self._peers.are_compact

    def __str__(self) -> str:
        """Address of the Manager's broker."""
        return str(self._connection.endpoint)

    def start(self) -> None:
        """Begin to connect."""
        self._connection.start()

    def stop(self) -> None:
        """Announce the end and disconnect."""
        self._connection.publish(self._down())
        self._connection.stop()

    def send_heartbeat(self) -> None:
        """Publish that the gateway is up, and repeat the notice of its start if due."""
        self._send_heartbeat()
        if self._listed == () and self.is_up:
            self._announce_again()
        if self._listed and set(self._listed) != set(self._reported_areas):
            self._reported_areas = self._listed
            if self._areas:
                log.info(
                    "manager %s: areas %s, not those of the settings (%s): a later "
                    "setting of an administrator is in force",
                    self._connection.endpoint,
                    ", ".join(self._listed),
                    ", ".join(self._areas),
                )

    def _send_heartbeat(self) -> None:
        here = encode_directory_message(
            GatewayHeartbeat(self._public, self.heartbeat_s)
        )
        self._publish(Publication(GATEWAY_HEARTBEAT, here))

    def publish_load(self, report: LoadReport) -> None:
        """Publish a load report, at QoS 0: the next one replaces it soon."""
        payload = msgspec.json.encode(report)
        self._publish(Publication(GATEWAY_LOAD, payload, qos=0))

    def report_applied(self, version: int) -> None:
        """Report that a table is in use."""
        self._applied = version
        self._notify(GatewayNotice(self._public, "complete", version))

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        log.info("connected to manager %s", self._connection.endpoint)
        self._uses_name = self._has_certificates
        self._named.clear()
        self._has_set_areas = False
        self._applied = None
        self._again_s = self._clock()
        self._peers.on_up()
        self._announce()

    def on_down(self, reason: str) -> None:
        self._peers.on_down()
        log.warning("manager %s is gone: %s", self._connection.endpoint, reason)

    def on_published(self, token: int, refused: str | None) -> None:
        is_named = token in self._named
        self._named.discard(token)
        if is_named and self._uses_name and refused not in {None, NO_SUBSCRIBERS}:
            log.warning(
                "manager %s: %s; its broker's rights are of an earlier version: write "
                "them again with gateway-daemon ca broker-config",
                self._connection.endpoint,
                refused,
            )
            self._uses_name = False
            self._announce()

    def on_message(self, message: IncomingMessage) -> None:
        try:
            if message.topic == GATEWAY_INFO:
                gateways = decode_gateways(message.payload)
                self._check_listed(gateways)
                self._peers.on_list(gateways)
                self.on_gateway_list(gateways)
            elif matches(GATEWAY_LOCATIONS, message.topic):
                self._peers.on_location(message)
            elif message.topic == BROKER_TABLE:
                self._listener.on_table(decode_broker_table(message.payload), self)
            elif message.topic == BROKER_READY:
                self.announces_ready = True
                self._listener.on_complete(self, decode_version(message.payload))
            elif message.payload == COMPLETE:
                self._listener.on_complete(self, None)
        except DirectoryError as error:
            log.warning("from manager %s: %s", self._connection.endpoint, error)

    def _check_listed(self, gateways: Sequence[BrokerEntry]) -> None:
        """Announce this gateway again to a Manager that does not list it.

        The broker stores no announcement for a Manager that starts after its gateways
        or lost its registry. An administrator may also have unlisted the gateway, and
        the original's Manager publishes its list after each announcement.
        """
        listed = tuple(e.topic for e in gateways if e.broker_info == self._public)
        self._listed = listed
        if not listed:
            self._announce_again()
            return
        self._backoff = _new_backoff()
        # A Manager that starts may have the stored notice, and no heartbeat yet.
        self._send_heartbeat()
        if listed == (WHOLE_WORLD,):
            self._set_areas()

    def _announce_again(self) -> None:
        now_s = self._clock()
        if now_s >= self._again_s:
            self._again_s = now_s + self._backoff.next_wait_s()
            self._announce()
            if self._applied is not None:  # "up" says that there is no table
                self.report_applied(self._applied)

    def _announce(self) -> None:
        # First: a gateway without heartbeats is taken for one of the original Gamma.
        self._send_heartbeat()
        self._notify(GatewayNotice(self._public, "up"))
        location = encode_directory_message(self.location)
        self._connection.publish(
            Publication(self._location_topic, location, retain=True)
        )
        if self._areas:
            request = encode_directory_message(self._request)
            self._publish(Publication(GATEWAY_AREA_REQUEST, request))

    def _set_areas(self) -> None:
        """Set the areas at the original's Manager, which knows no requests.

        It lists a new gateway under ``/``; any other area is an administrator's. Ours
        takes the content type for a request. With certificates only administrators may
        publish there.
        """
        is_needed = self._areas and self._areas != (WHOLE_WORLD,)
        if is_needed and not self._has_certificates and not self._has_set_areas:
            self._has_set_areas = True
            setting = encode_directory_message(self._request)
            self._publish(
                Publication(GATEWAY_SET, setting, content=AREA_REQUEST_CONTENT)
            )

    def _down(self) -> Publication:
        reference = encode_directory_message(GatewayReference(self._public))
        return self._with_name(Publication(GATEWAY_DOWN, reference))

    def _notify(self, notice: GatewayNotice) -> None:
        self._publish(Publication(GATEWAY_NOTICE, encode_directory_message(notice)))

    def _publish(self, publication: Publication) -> None:
        token = self._connection.publish(self._with_name(publication))
        if self._uses_name and token is not None and publication.qos:
            self._named.add(token)

    def _with_name(self, publication: Publication) -> Publication:
        if not self._uses_name:
            return publication
        topic = named_api_topic(publication.topic, self._id)
        return publication._replace(topic=topic)


def _new_backoff() -> Backoff:
    return Backoff(random.Random(), UNLISTED_BASE_S, UNLISTED_CAP_S)  # noqa: S311 - jitter


@dataclass(frozen=True)
class TopicRates:
    """Message rates since the last reading.

    Attributes:
        per_s: Messages per second.
        cells: Topics with the most messages, each with messages per second.
    """

    per_s: float
    cells: tuple[tuple[str, float], ...]


class TopicMeter:
    """Counts messages by topic between two readings.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._counts: Counter[str] = Counter()

    def count(self, topics: Iterable[str]) -> None:
        """Count one message for each topic."""
        with self._lock:
            self._counts.update(topics)

    def read(self) -> TopicRates:
        """Return the rates since the last call and restart the counts."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            since_s, self._since_s = self._since_s, self._clock()
            elapsed_s = max(self._since_s - since_s, 1e-3)
        cells = tuple(
            (topic, round(count / elapsed_s, 3))
            for topic, count in counts.most_common(MAX_CELLS)
        )
        return TopicRates(round(counts.total() / elapsed_s, 3), cells)


class CpuMeter:
    """Busy share of the machine between two readings.

    Args:
        stat: The kernel's tick counters.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._ticks()

    def read(self) -> float:
        """Busy share since the last call, 0 to 1."""
        before, self._before = self._before, self._ticks()
        ticks = [now - then for now, then in zip(self._before, before, strict=True)]
        idle = ticks[IDLE] + ticks[IOWAIT]
        return round(1.0 - idle / max(sum(ticks), 1), 3)

    def _ticks(self) -> list[int]:
        first, _, _ = self._stat.read_text(encoding="ascii").partition("\n")
        return [int(tick) for tick in first.split()[1:9]]


class LoadReporter:
    """Builds and publishes the load report of a gateway.

    Args:
        gateway: Its public address.
        egress: The lanes to report.
        meter: Message rates.
        cpu: Busy share of the machine.
        publishers: Functions that publish the report.
    """

    def __init__(
        self,
        gateway: BrokerInfo,
        egress: Egress,
        meter: TopicMeter,
        cpu: CpuMeter,
        publishers: Sequence[Callable[[LoadReport], object]],
    ) -> None:
        self._gateway = gateway
        self._lanes = egress
        self._meter = meter
        self._cpu = cpu
        self._publishers = tuple(publishers)

    def publish_report(self) -> None:
        """Publish a report."""
        rates = self._meter.read()
        lanes = tuple(
            LaneLoad(
                broker,
                sum(depth.rows for depth in lane.stats.depth.values()),
                round(max(lane.waits_s.values(), default=0.0), 3),
            )
            for broker, lane in self._lanes.lane_status().items()
            if broker is not None
        )
        report = LoadReport(
            self._gateway, rates.per_s, self._cpu.read(), rates.cells, lanes
        )
        for publish in self._publishers:
            publish(report)
