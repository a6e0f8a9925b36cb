"""Composition of the gateway, the Manager and the signer of certificates.

Only this module reads clocks, randomness and the environment.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_agent.queue.base import WITH_NEXT_PUT, Queue
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
from gateway_daemon.gateway.overlay_fallback import (
    Detour,
    Neighbours,
    OverlayMembership,
    Rules,
    store_in,
)
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
from gateway_daemon.overlay.mqtt_transport import Post
from gateway_daemon.overlay.runner import Live, Surroundings
from service_runtime.errors import FieldError
from service_runtime.lifecycle import Supervision
from service_runtime.metrics import serve_metrics
from service_runtime.periodic import Repeat
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import Pulse
from spatial_mqtt.announcements import Opened, Verifier
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo, Entry
from spatial_mqtt.topics import ROLLOUTS
from spatial_mqtt.transport import ConnectionHandler, Session

PROBE_TIMEOUT_S = 3.0
RETRY_CAP_S = 3.0
"""Longest retry interval for the own broker: one connection, and clients wait."""

PEER_RETRY_CAP_S = 10.0
"""Longest retry interval for another Manager's broker: administrators wait."""

TABLE = "broker-table.json"
KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def build_gateway(settings: GatewaySettings) -> tuple[Gateway, Supervision]:
    """Build a gateway and its systemd supervision.

    Raises:
        SettingsError: A file or address in the settings cannot be used.
    """
    section = settings.gateway
    data = Path(section.data)
    data.mkdir(parents=True, exist_ok=True)
    links = _Links(settings.tls, Pulse(time.monotonic))
    meter = Meter(time.monotonic)
    fallback = _fallback(settings, data, links)
    egress = _egress(settings, data, links, meter, fallback)
    ingress = _ingress(settings, data, links, egress)
    downstream = _downstream(settings, data, links)
    overlay = _overlay(settings, data, links, fallback, downstream)
    gateway = Gateway(
        egress,
        ingress,
        downstream,
        data / TABLE,
        time.monotonic,
        watchdog=links.watchdog,
    )
    managers = _manager_links(settings, links, gateway, overlay)
    load = Burden(
        _public(settings),
        egress,
        meter,
        Cpu(),
        [each.publish_load for each in managers],
    )
    metrics = GatewayMeasures(
        egress, ingress, downstream, managers, links.watchdog, extra=overlay.metrics
    )
    discovery = _discovery(settings, data, links, downstream, overlay)
    gateway.attach(
        managers,
        *overlay.services,
        discovery,
        Repeat(
            [each.send_heartbeat for each in managers], section.beat_s, links.watchdog
        ),
        Repeat([load.publish_report], section.beat_s, links.watchdog),
        *_relays(settings, links),
        PieceDesk(
            section.id, data / "updates", links.to_own(section.broker), links.watchdog
        ),
        *serve_metrics(settings.metrics, metrics.collect, settings.tls),
    )
    return gateway, _supervision(
        links.watchdog, gateway.status, lambda: gateway.is_up and discovery.is_up
    )


def build_manager(settings: ManagerSettings) -> tuple[Manager, Supervision]:
    """Build a Manager and its systemd supervision.

    Raises:
        SettingsError: An address in the settings cannot be used.
        RegistryFileError: The registry file is damaged.
    """
    section = settings.manager
    brokers = [Entry(b.topic, info_of(b.url)) for b in settings.broker]
    path = Path(section.data) / "registry.json"
    registry = storage.load(path, section.id, _wall_ms()).with_configured_brokers(
        brokers, _wall_ms()
    )
    links = _Links(settings.tls, Pulse(time.monotonic))
    tls = Endpoint.parse(section.broker).tls
    rates = Rates(
        section.id,
        lambda broker, session, handler: links.connect(
            Endpoint(broker.host, broker.port, tls), session, handler
        ),
        time.monotonic,
    )
    autoscaler = Autoscaler(settings.autoscale.to_scaling(), section.id)
    manager = Manager(
        Ways(
            links.to_own(section.broker),
            [links.to(url, PEER_RETRY_CAP_S) for url in section.peers],
        ),
        path,
        registry,
        Clocks(links.watchdog, _wall_ms),
        probes=Probes(_accepts_connection, links.watchdog),
        autoscaler=Scaler(autoscaler, rates, run_apart),
    )
    metrics = ManagerMeasures(manager, links.watchdog)
    manager.attach(*serve_metrics(settings.metrics, metrics.collect, settings.tls))
    return manager, _supervision(links.watchdog, manager.status, lambda: manager.is_up)


def build_signer(
    settings: SignerSettings, folder: Folder
) -> tuple[Signer, Supervision]:
    """Build a signer of certificates and its systemd supervision."""
    section = settings.signer
    links = _Links(settings.tls, Pulse(time.monotonic))
    signer = Signer(
        folder,
        section.id,
        links.to_own(section.broker),
        time.time,
        lifetime_s=section.life_days * DAY_S,
        watchdog=links.watchdog,
    )
    return signer, _supervision(links.watchdog, signer.status, lambda: signer.is_up)


class _Links:
    """Makes connections with one set of TLS files and one watchdog."""

    def __init__(self, tls: TlsFiles, watchdog: Pulse) -> None:
        self._tls = tls
        self.watchdog = watchdog

    def to(
        self, url: str, cap_s: float | None = None
    ) -> Callable[[Session, ConnectionHandler], Connection]:
        endpoint = Endpoint.parse(url)

        def connect(session: Session, handler: ConnectionHandler) -> Connection:
            connection = self.connect(endpoint, session, handler)
            if cap_s is not None:
                connection.backoff.cap_s = cap_s
            return connection

        return connect

    def to_own(self, url: str) -> Callable[[Session, ConnectionHandler], Connection]:
        return self.to(url, RETRY_CAP_S)

    def connect(
        self, endpoint: Endpoint, session: Session, handler: ConnectionHandler
    ) -> Connection:
        return Connection(endpoint, session, handler, self._tls, watchdog=self.watchdog)


def _fallback(settings: GatewaySettings, data: Path, links: _Links) -> Detour | None:
    """The fallback to the overlay, if the settings name peers."""
    section = settings.overlay
    if not section.peers and not section.from_managers:
        return None
    rules = Rules(
        settings.gateway.route == "overlay",
        section.from_priority,
        section.out_of_reach_s,
    )
    return Detour(_queue(settings, data, "overlay"), rules, links.watchdog.clock)


def _overlay(
    settings: GatewaySettings,
    data: Path,
    links: _Links,
    fallback: Detour | None,
    downstream: Deliveries,
) -> OverlayMembership:
    if fallback is None:
        return OverlayMembership()
    gateway, section = settings.gateway, settings.overlay
    public = _public(settings)
    name = Name(section.place or "", public, gateway.id)
    # One list may serve all gateways. With certificates, a connection to the own public
    # address would take over the ingress session: both use the certificate's name.
    peers = tuple(each for each in map(info_of, section.peers) if each != public)
    own = Endpoint.parse(gateway.broker)
    runner = Live(
        Surroundings(name, peers, section.rate_bytes_per_s),
        Node(str(name), random.Random().choice),  # noqa: S311 - picks peers, no secrets
        lambda later: Post(gateway.id, own, links.connect, later),
        store_in(downstream.store),
        watchdog=links.watchdog,
    )
    Neighbours(runner, fallback)
    directory = data / "gateways.json" if section.from_managers else None
    membership = OverlayMembership(fallback, runner, directory)
    membership.recall_gateways()
    return membership


def _ingress(
    settings: GatewaySettings, data: Path, links: _Links, egress: Lanes
) -> Front:
    section = settings.gateway
    has_certificates = Endpoint.parse(section.broker).tls
    identity_check = Impostors(
        data / "impostors.jsonl", time.time, has_certificates=has_certificates
    )
    return Front(
        section.id,
        links.to_own(section.broker),
        egress,
        section.default_priority,
        time.monotonic,
        checks=Guards(Allowance(section.node_per_s), identity_check),
    )


def _downstream(settings: GatewaySettings, data: Path, links: _Links) -> Deliveries:
    section = settings.gateway
    queue = _queue(settings, data, "local")
    sender = Sender(
        f"{section.id}-local",
        is_relay=True,
        custody=Custody.PUBACK,
        always_sends_ids=True,
    )
    uplink = Uplink(queue, sender, links.connect, Throttle(), time.monotonic)
    return Deliveries(
        section.id,
        links.connect,
        Lane(queue, uplink),
        Endpoint.parse(section.broker),
        default_priority=section.default_priority,
        watchdog=links.watchdog,
    )


def _discovery(
    settings: GatewaySettings,
    data: Path,
    links: _Links,
    downstream: Deliveries,
    overlay: OverlayMembership,
) -> Watch:
    def on_change(filters: frozenset[str]) -> None:
        downstream.set_filters(filters)
        overlay.set_filters(filters)

    section = settings.gateway
    return Watch(
        section.id,
        links.to_own(section.broker),
        data / "subscriptions.json",
        on_change,
    )


def _relays(settings: GatewaySettings, links: _Links) -> list[NoticeRelay]:
    """Relays of notices and of rollouts; nodes verify the rollouts themselves."""
    section = settings.gateway
    managers = [links.to(url) for url in section.managers]
    own = links.to_own(section.broker)
    verify = _verifier(section.notice_keys)
    notices, updates = f"{section.id}-notices", f"{section.id}-updates"
    return [
        NoticeRelay(notices, managers, own, links.watchdog, verify=verify),
        NoticeRelay(updates, managers, own, links.watchdog, filter_=ROLLOUTS),
    ]


def _verifier(keys: Sequence[str]) -> Opened | None:
    if not keys:
        return None
    try:
        return Verifier(keys).verify
    except FieldError as error:
        raise SettingsError([Problem.of(error, "gateway.notice_keys")]) from error


def _egress(
    settings: GatewaySettings,
    data: Path,
    links: _Links,
    meter: Meter,
    fallback: Detour | None,
) -> Lanes:
    return Lanes(
        make_queue=lambda broker: _queue(settings, data, _lane_file(broker)),
        make_uplink=lambda _broker, queue: _uplink(settings, queue, links),
        tls=Endpoint.parse(settings.gateway.broker).tls,
        watchdog=links.watchdog,
        count_topics=meter.count,
        fallback=fallback,
    )


def _manager_links(
    settings: GatewaySettings,
    links: _Links,
    gateway: Gateway,
    overlay: OverlayMembership,
) -> list[Presence]:
    section = settings.gateway
    managers = [
        Presence(
            section.id,
            _public(settings),
            section.areas,
            links.to(url),
            gateway,
            heartbeat_s=section.beat_s,
        )
        for url in section.managers
    ]
    for each in managers:
        each.on_gateway_list = overlay.on_gateway_list
        each.location = section.location
    return managers


def _public(settings: GatewaySettings) -> BrokerInfo:
    return info_of(settings.gateway.public or settings.gateway.broker)


def _lane_file(broker: BrokerInfo | None) -> str:
    return f"{broker.host}-{broker.port}" if broker else "nowhere"


def _queue(settings: GatewaySettings, data: Path, name: str) -> Queue:
    return SqliteQueue(
        data / "lanes" / f"{name}.db",
        settings.gateway.id,
        KERNEL_BOOT_ID.read_text().strip(),
        settings.queue.budget(),
        durability=WITH_NEXT_PUT,
        expiry=settings.queue.expiry_policy(_boot_s),
    )


def _uplink(settings: GatewaySettings, queue: Queue, links: _Links) -> Uplink:
    return Uplink(
        queue,
        settings.uplink.sender_profile(settings.gateway.id, is_relay=True),
        links.connect,
        settings.uplink.rate_limiter(_minute),
        time.monotonic,
    )


def _supervision(
    watchdog: Pulse, status: Callable[[], str], serves: Callable[[], bool]
) -> Supervision:
    return Supervision.from_environment(
        os.environ, os.getpid(), watchdog, status, is_serving=serves
    )


def _accepts_connection(broker: BrokerInfo) -> bool:
    try:
        address = (broker.host, broker.port)
        socket.create_connection(address, PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_s() -> float:
    """Seconds since the machine started, including suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _minute() -> int:
    """Local minute of the day; a gateway's clock is synchronised."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min
