"""Puts the parts together: the one place that names clocks, files and randomness.

Puts a gateway's part of the overlay together.
"""

import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_agent.queue.base import WITH_NEXT_PUT, Draft, Queue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.in_flight import Custody
from edge_agent.uplink.publications import Sender
from edge_agent.uplink.rate_limit import Throttle
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.ca.authority import DAY_S
from gateway_daemon.ca.signer import Signer
from gateway_daemon.ca.store import Folder
from gateway_daemon.config import (
    GatewaySettings,
    ManagerSettings,
    SignerSettings,
    info_of,
)
from gateway_daemon.gateway.admission import Allowance, Impostors
from gateway_daemon.gateway.downstream import Deliveries
from gateway_daemon.gateway.egress import Lane, Lanes
from gateway_daemon.gateway.gateway import Gateway
from gateway_daemon.gateway.ingress import Front, Guards
from gateway_daemon.gateway.load_report import Burden, Cpu, Meter
from gateway_daemon.gateway.manager_link import Presence
from gateway_daemon.gateway.metrics import Measures as GatewayMeasures
from gateway_daemon.gateway.notice_relay import NoticeRelay
from gateway_daemon.gateway.overlay_fallback import Detour, Neighbours, Rules, store_in
from gateway_daemon.gateway.subscriptions import Watch
from gateway_daemon.gateway.update_server import PieceDesk
from gateway_daemon.manager import storage
from gateway_daemon.manager.autoscaler import Autoscaler, Scaler
from gateway_daemon.manager.broker_rates import Rates, run_apart
from gateway_daemon.manager.brokers import Ways
from gateway_daemon.manager.health_probes import Probes
from gateway_daemon.manager.manager import Clocks, Manager
from gateway_daemon.manager.metrics import Measures as ManagerMeasures
from gateway_daemon.overlay.gateway_node import Node
from gateway_daemon.overlay.keys import Name
from gateway_daemon.overlay.mqtt_transport import Connect, Post
from gateway_daemon.overlay.runner import Live, Surroundings, measures_of
from service_runtime.errors import FieldError
from service_runtime.files import write_best_effort
from service_runtime.lifecycle import Supervision
from service_runtime.metrics import Metric, serve_metrics
from service_runtime.periodic import Part, Repeat
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import Pulse
from spatial_mqtt.announcements import Opened, Verifier
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo, Entry, decode_gateways, encode
from spatial_mqtt.errors import DirectoryError
from spatial_mqtt.topics import ROLLOUTS
from spatial_mqtt.transport import ConnectionHandler, Session

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Overlay:
    """A gateway's part of the overlay; without peers there is none.

    Attributes:
        detour: The way round brokers.
        live: Runs beside the gateway.
        directory: Keeps what Managers say of where the others are; None without.
    """

    detour: Detour | None = None
    live: Live | None = None
    directory: Path | None = None

    @property
    def parts(self) -> Sequence[Part]:
        """What runs beside the gateway."""
        return [self.live] if self.live is not None else []

    def measures(self) -> Iterable[Metric]:
        """What it tells Prometheus."""
        if self.live is None or self.detour is None:
            return ()
        return measures_of(self.live.facts, self.detour.waiting)

    def listed(self, gateways: Sequence[Entry]) -> None:
        """A Manager says who is there."""
        if self.live is not None and self.directory is not None:
            self.live.listed([entry.broker_info for entry in gateways])
            write_best_effort(self.directory, encode(gateways))

    def also(
        self, listen: Callable[[frozenset[str]], None]
    ) -> Callable[[frozenset[str]], None]:
        """Tell the overlay, too, what our clients listen to."""

        def both(filters: frozenset[str]) -> None:
            listen(filters)
            if self.live is not None:
                self.live.listen(filters)

        return both


def detour_of(
    settings: GatewaySettings, queue: Callable[[], Queue], pulse: Pulse
) -> Detour | None:
    """The way round brokers, if the settings name peers."""
    section = settings.overlay
    if not section.peers and not section.from_managers:
        return None
    rules = Rules(
        settings.gateway.route == "overlay",
        section.from_priority,
        section.out_of_reach_s,
    )
    return Detour(queue(), rules, pulse.clock)


def overlay_of(
    settings: GatewaySettings,
    detour: Detour | None,
    take: Callable[[Sequence[Draft]], bool],
    connect: Connect,
    pulse: Pulse,
) -> Overlay:
    """A part in the overlay for who has a detour.

    Args:
        settings: Of the gateway.
        detour: Where messages wait for the overlay.
        take: Stores what our clients are to hear.
        connect: Makes connections.
        pulse: Listens to our loop.
    """
    if detour is None:
        return Overlay()
    gateway, section = settings.gateway, settings.overlay
    public = info_of(gateway.public or gateway.broker)
    name = Name(section.place or "", public, gateway.id)
    # One list may serve all gateways. With certificates a link to our own public
    # address would take the session of our front: both have the certificate's name.
    peers = tuple(each for each in map(info_of, section.peers) if each != public)
    own = Endpoint.parse(gateway.broker)
    live = Live(
        Surroundings(name, peers, section.rate_bytes_per_s),
        Node(str(name), random.Random().choice),  # noqa: S311 - chance meetings
        lambda later: Post(gateway.id, own, connect, later),
        store_in(take),
        pulse=pulse,
    )
    Neighbours(live, detour)
    directory = Path(gateway.data) / "gateways.json" if section.from_managers else None
    if directory is not None:
        live.listed(entry.broker_info for entry in _recalled(directory))
    return Overlay(detour, live, directory)


def _recalled(path: Path) -> Sequence[Entry]:
    try:
        return decode_gateways(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, DirectoryError) as error:
        log.warning("the last list of gateways cannot be used: %s", error)
        return ()


PROBE_TIMEOUT_S = 3.0
RETRY_CAP_S = 3.0
"""Longest wait for our own broker: it is one connection, and clients wait behind it."""

PEER_RETRY_CAP_S = 10.0
"""Longest wait for another Manager's broker: administrators wait behind it."""

TABLE = "broker-table.json"
KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def gateway(settings: GatewaySettings) -> tuple[Gateway, Supervision]:
    """A gateway, ready to run, and who tells systemd how it is."""
    section = settings.gateway
    data = Path(section.data)
    data.mkdir(parents=True, exist_ok=True)
    link = _Links(settings.tls, Pulse(time.monotonic))
    meter = Meter(time.monotonic)
    detour = detour_of(settings, lambda: _queue(settings, data, "overlay"), link.pulse)
    lanes = _lanes(settings, link, meter, detour)
    front = _front(settings, link, lanes)
    deliveries = _deliveries(settings, data, link)
    overlay = overlay_of(settings, detour, deliveries.take, link.connect, link.pulse)
    made = Gateway(
        lanes, front, deliveries, data / TABLE, time.monotonic, pulse=link.pulse
    )
    presences = _presences(settings, link, made, overlay.listed)
    burden = _burden(settings, lanes, meter, presences)
    measures = GatewayMeasures(
        lanes, front, deliveries, presences, link.pulse, more=overlay.measures
    )
    watch = _watch(settings, link, overlay.also(deliveries.listen))
    made.attach(
        presences,
        *overlay.parts,
        watch,
        Repeat([each.beat for each in presences], section.beat_s, link.pulse),
        Repeat([burden.beat], section.beat_s, link.pulse),
        *_relays(settings, link),
        _desk(settings, link),
        *serve_metrics(settings.metrics, measures.collect, settings.tls),
    )
    return made, _supervision(
        link.pulse, made.status, lambda: made.is_up and watch.is_up
    )


def _front(settings: GatewaySettings, link: "_Links", lanes: Lanes) -> Front:
    section = settings.gateway
    return Front(
        section.id,
        link.to(Endpoint.parse(section.broker), RETRY_CAP_S),
        lanes,
        section.default_priority,
        time.monotonic,
        guards=_guards(settings),
    )


def _watch(
    settings: GatewaySettings,
    link: "_Links",
    listen: Callable[[frozenset[str]], object],
) -> Watch:
    section = settings.gateway
    return Watch(
        section.id,
        link.to(Endpoint.parse(section.broker), RETRY_CAP_S),
        Path(section.data) / "subscriptions.json",
        listen,
    )


def _guards(settings: GatewaySettings) -> Guards:
    section = settings.gateway
    path = Path(section.data) / "impostors.jsonl"
    has_names = Endpoint.parse(section.broker).tls
    impostors = Impostors(path, time.time, has_names=has_names)
    return Guards(Allowance(section.node_per_s), impostors)


def _deliveries(settings: GatewaySettings, data: Path, link: "_Links") -> Deliveries:
    return Deliveries(
        settings.gateway.id,
        link.connect,
        _local(settings, data, link),
        Endpoint.parse(settings.gateway.broker),
        default_priority=settings.gateway.default_priority,
        pulse=link.pulse,
    )


def _relays(settings: GatewaySettings, link: "_Links") -> list[NoticeRelay]:
    """What is said of areas; of rollouts a node checks the signature itself."""
    section = settings.gateway
    managers = [link.to(Endpoint.parse(url)) for url in section.managers]
    own = link.to(Endpoint.parse(section.broker), RETRY_CAP_S)
    opened = _opened(section.notice_keys)
    notices, updates = f"{section.id}-notices", f"{section.id}-updates"
    return [
        NoticeRelay(notices, managers, own, link.pulse, opened=opened),
        NoticeRelay(updates, managers, own, link.pulse, filter_=ROLLOUTS),
    ]


def _desk(settings: GatewaySettings, link: "_Links") -> PieceDesk:
    """Bundles of updates for our nodes."""
    section = settings.gateway
    own = link.to(Endpoint.parse(section.broker), RETRY_CAP_S)
    return PieceDesk(section.id, Path(section.data) / "updates", own, link.pulse)


def _opened(keys: Sequence[str]) -> Opened | None:
    if not keys:
        return None
    try:
        return Verifier(keys).opened
    except FieldError as error:
        raise SettingsError([Problem.of(error, "gateway.notice_keys")]) from error


def _lanes(
    settings: GatewaySettings, link: "_Links", meter: Meter, detour: Detour | None
) -> Lanes:
    data = Path(settings.gateway.data)
    return Lanes(
        make_queue=lambda broker: _queue(settings, data, _file_of(broker)),
        make_uplink=lambda _broker, queue: _uplink(settings, queue, link),
        tls=Endpoint.parse(settings.gateway.broker).tls,
        pulse=link.pulse,
        count=meter.count,
        detour=detour,
    )


def _supervision(
    pulse: Pulse, status: Callable[[], str], serves: Callable[[], bool]
) -> Supervision:
    return Supervision.of(os.environ, os.getpid(), pulse, status, serves=serves)


def _burden(
    settings: GatewaySettings, lanes: Lanes, meter: Meter, presences: list[Presence]
) -> Burden:
    public = info_of(settings.gateway.public or settings.gateway.broker)
    return Burden(public, lanes, meter, Cpu(), [each.tell_load for each in presences])


def _presences(
    settings: GatewaySettings,
    link: "_Links",
    made: Gateway,
    listed: Callable[[Sequence[Entry]], None],
) -> list[Presence]:
    """One for each Manager."""
    section = settings.gateway
    public = info_of(section.public or section.broker)
    presences = [
        Presence(
            section.id,
            public,
            section.areas,
            link.to(Endpoint.parse(url)),
            made,
            beat_s=section.beat_s,
        )
        for url in section.managers
    ]
    for each in presences:
        each.on_listed = listed
        each.place = section.place
    return presences


def manager(settings: ManagerSettings) -> tuple[Manager, Supervision]:
    """A Manager, ready to run, and who tells systemd how it is."""
    section = settings.manager
    brokers = [Entry(b.topic, info_of(b.url)) for b in settings.broker]
    path = Path(section.data) / "registry.json"
    registry = storage.load(path, section.id, _wall_ms()).with_settings(
        brokers, _wall_ms()
    )
    pulse = Pulse(time.monotonic)
    link = _Links(settings.tls, pulse)
    own = Endpoint.parse(section.broker)
    rates = Rates(
        section.id,
        lambda broker, session, ear: link.connect(
            Endpoint(broker.host, broker.port, own.tls), session, ear
        ),
        time.monotonic,
    )
    autoscaler = Autoscaler(settings.autoscale.scaling(), section.id)
    made = Manager(
        Ways(
            link.to(own, RETRY_CAP_S),
            [link.to(Endpoint.parse(url), PEER_RETRY_CAP_S) for url in section.peers],
        ),
        path,
        registry,
        Clocks(pulse, _wall_ms),
        probes=Probes(_answers, pulse),
        scaler=Scaler(autoscaler, rates, run_apart),
    )
    measures = ManagerMeasures(made, pulse)
    made.attach(*serve_metrics(settings.metrics, measures.collect, settings.tls))
    return made, _supervision(pulse, made.status, lambda: made.is_up)


def signer(settings: SignerSettings, folder: Folder) -> tuple[Signer, Supervision]:
    """A signer of certificates, ready to run, and who tells systemd how it is."""
    section, pulse = settings.signer, Pulse(time.monotonic)
    made = Signer(
        folder,
        section.id,
        _Links(settings.tls, pulse).to(Endpoint.parse(section.broker), RETRY_CAP_S),
        time.time,
        life_s=section.life_days * DAY_S,
        pulse=pulse,
    )
    return made, _supervision(pulse, made.status, lambda: made.is_up)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _answers(who: BrokerInfo) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((who.host, who.port), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


class _Links:
    """Makes connections with one set of TLS files, which one pulse listens to."""

    def __init__(self, tls: TlsFiles, pulse: Pulse) -> None:
        self._tls = tls
        self.pulse = pulse

    def to(
        self, endpoint: Endpoint, cap_s: float | None = None
    ) -> Callable[[Session, ConnectionHandler], Connection]:
        def connect(session: Session, handler: ConnectionHandler) -> Connection:
            made = self.connect(endpoint, session, handler)
            if cap_s is not None:
                made.backoff.cap_s = cap_s
            return made

        return connect

    def connect(
        self, endpoint: Endpoint, session: Session, handler: ConnectionHandler
    ) -> Connection:
        return Connection(endpoint, session, handler, self._tls, pulse=self.pulse)


def _file_of(broker: BrokerInfo | None) -> str:
    return f"{broker.host}-{broker.port}" if broker else "nowhere"


def _local(settings: GatewaySettings, data: Path, link: _Links) -> Lane:
    """The lane to our own broker: no link to spare, and no store behind it."""
    queue = _queue(settings, data, "local")
    sender = Sender(
        f"{settings.gateway.id}-local",
        is_relay=True,
        custody=Custody.PUBACK,
        names_all=True,
    )
    return Lane(queue, Uplink(queue, sender, link.connect, Throttle(), time.monotonic))


def _queue(settings: GatewaySettings, data: Path, name: str) -> Queue:
    return SqliteQueue(
        data / "lanes" / f"{name}.db",
        settings.gateway.id,
        KERNEL_BOOT_ID.read_text().strip(),
        settings.queue.budget(),
        durability=WITH_NEXT_PUT,
        ageing=settings.queue.ageing(_boot_s),
    )


def _boot_s() -> float:
    """Seconds since the machine started, also those it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _uplink(settings: GatewaySettings, queue: Queue, link: _Links) -> Uplink:
    return Uplink(
        queue,
        settings.uplink.sender(settings.gateway.id, is_relay=True),
        link.connect,
        settings.uplink.throttle(_minute),
        time.monotonic,
    )


def _minute() -> int:
    """Local minute of the day; a gateway's clock is looked after."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min
