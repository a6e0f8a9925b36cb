"""Composition of the gateway, the Manager and the announcement of a broker.

Only this module reads clocks, randomness and the environment.
"""

import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from edge_agent.queue.base import COMMIT_PUTS_DEFER_ACKS, ExpiryPolicy, Queue
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.in_flight import CustodyMode
from edge_agent.uplink.link_rate import RateLimiter
from edge_agent.uplink.offer_memory import KnownStores
from edge_agent.uplink.scheduler import SenderProfile
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.broker_announcement import BrokerAnnouncement, ManagerBrokerLink
from gateway_daemon.config import (
    AnnouncedBrokerSettings,
    GatewaySettings,
    ManagerSettings,
    parse_broker_info,
)
from gateway_daemon.gateway.downstream import (
    DeliveryParser,
    Downstream,
    make_store,
    receiving_session,
)
from gateway_daemon.gateway.egress import ArrivalTimes, Egress, Lane
from gateway_daemon.gateway.gateway import Gateway
from gateway_daemon.gateway.incoming import IdentityCheck, SenderRateLimit
from gateway_daemon.gateway.ingress import AdmissionChecks, Ingress
from gateway_daemon.gateway.manager_link import (
    CpuMeter,
    LoadReporter,
    ManagerLink,
    TopicMeter,
)
from gateway_daemon.gateway.notices_and_updates import NoticeRelay, UpdateServer
from gateway_daemon.gateway.overlay_fallback import (
    FallbackRules,
    OverlayFallback,
    OverlayMembership,
)
from gateway_daemon.gateway.subscriptions import SubscriptionDiscovery
from gateway_daemon.manager import storage
from gateway_daemon.manager.autoscaler import (
    AutoscaleExecutor,
    Autoscaler,
    run_command_in_thread,
)
from gateway_daemon.manager.brokers import BrokerConnectors
from gateway_daemon.manager.manager import Manager, ManagerClocks
from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.server_probes import BrokerRateMonitor, HealthProbes
from gateway_daemon.metrics import GatewayMetrics, ManagerMetrics
from gateway_daemon.overlay.gateway_node import OverlayNode
from gateway_daemon.overlay.keys import GatewayName
from gateway_daemon.overlay.mqtt_transport import MqttTransport
from gateway_daemon.overlay.runner import OverlayConfig, OverlayRunner
from service_runtime.crash_guard import KERNEL_BOOT_ID, make_crash_guard
from service_runtime.errors import FieldError
from service_runtime.lifecycle import PeriodicCaller, SystemdSupervisor
from service_runtime.metrics import make_metrics_servers
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import LoopWatchdog
from spatial_mqtt.announcements import NoticeVerifier, OpenNotice
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import (
    AreaSetting,
    BrokerEntry,
    BrokerHeartbeat,
    BrokerInfo,
)
from spatial_mqtt.shared_connection import ConnectionPool
from spatial_mqtt.topics import DRILL_FILTER, NOTICE_FILTER, ROLLOUT_FILTER
from spatial_mqtt.transport import ConnectionHandler, Session

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 3.0
RETRY_CAP_S = 3.0
"""Longest retry interval for the own broker: one connection, and clients wait."""

PEER_RETRY_CAP_S = 10.0
"""Longest retry interval for another Manager's broker: administrators wait."""

TABLE = "broker-table.json"


def build_gateway(settings: GatewaySettings) -> tuple[Gateway, SystemdSupervisor]:
    """Build a gateway and its systemd supervision.

    Raises:
        SettingsError: A file or address in the settings cannot be used.
    """
    section = settings.gateway
    data = Path(section.data)
    data.mkdir(parents=True, exist_ok=True)
    links = _GatewayLinks(settings.tls, LoopWatchdog(time.monotonic), section.id)
    meter = TopicMeter(time.monotonic)
    fallback = _fallback(settings, data, links)
    managers: list[ManagerLink] = []
    egress = _egress(settings, data, links, meter, fallback, managers=managers)
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
    managers += _manager_links(settings, links, gateway, overlay)
    load = _load_reporter(settings, egress, meter, managers)
    metrics = GatewayMetrics(
        egress, ingress, downstream, managers, links.watchdog, extra=overlay.metrics
    )
    discovery = _discovery(settings, data, links, downstream, overlay)
    gateway.attach(
        managers,
        *overlay.services,
        discovery,
        _periodic(links, section.beat_s, *(m.send_heartbeat for m in managers)),
        _periodic(links, section.beat_s, load.publish_report),
        *_relays(settings, links),
        UpdateServer(
            section.id, data / "updates", links.to_own(section.broker), links.watchdog
        ),
        *make_metrics_servers(settings.metrics, metrics.collect, settings.tls),
    )
    return gateway, supervision(
        links.watchdog, gateway.status, lambda: gateway.is_up and discovery.is_up
    )


def build_manager(settings: ManagerSettings) -> tuple[Manager, SystemdSupervisor]:
    """Build a Manager and its systemd supervision.

    Raises:
        SettingsError: An address in the settings cannot be used.
        RegistryFileError: The registry file is damaged.
    """
    section = settings.manager
    path = Path(section.data) / storage.REGISTRY_FILE
    registry = _load_registry(path, settings)
    links = Links(settings.tls, LoopWatchdog(time.monotonic))
    tls = Endpoint.parse(section.broker).tls
    rates = BrokerRateMonitor(
        section.id,
        lambda broker, session, handler: links.connect(
            Endpoint(broker.host, broker.port, tls), session, handler
        ),
        time.monotonic,
    )
    autoscaler = Autoscaler(settings.autoscale.to_scaling(), section.id)
    manager = Manager(
        BrokerConnectors(
            links.to_own(section.broker),
            [links.to(url, PEER_RETRY_CAP_S) for url in section.peers],
            None if tls else links.to_own(section.broker),
        ),
        path,
        registry,
        ManagerClocks(links.watchdog, _wall_ms),
        probes=HealthProbes(accepts_connection, links.watchdog),
        autoscaler=AutoscaleExecutor(autoscaler, rates, run_command_in_thread),
    )
    metrics = ManagerMetrics(manager, links.watchdog)
    manager.attach(
        *make_metrics_servers(settings.metrics, metrics.collect, settings.tls)
    )
    return manager, supervision(links.watchdog, manager.status, lambda: manager.is_up)


def _load_registry(path: Path, settings: ManagerSettings) -> Registry:
    """Load the registry and apply the brokers of the settings."""
    brokers = [BrokerEntry(b.topic, parse_broker_info(b.url)) for b in settings.broker]
    saved = storage.load_registry(path, settings.manager.id, _wall_ms())
    registry = saved.with_configured_brokers(brokers, _wall_ms())
    for entry in brokers:
        named = f"[[broker]] {entry.topic} -> {entry.broker_info}"
        if entry not in registry.brokers:
            log.warning("%s is not in the table: a later change overrides it", named)
        elif entry not in saved.brokers:
            log.info("%s is now in the table, from the settings", named)
    return registry


def build_broker(
    settings: AnnouncedBrokerSettings,
) -> tuple[BrokerAnnouncement, SystemdSupervisor]:
    """Build the announcement of a distributed broker, and its systemd supervision."""
    section = settings.broker
    links = Links(settings.tls, LoopWatchdog(time.monotonic))
    here = BrokerHeartbeat(
        parse_broker_info(section.public or section.local),
        section.areas,
        section.beat_s,
    )
    managers = [
        ManagerBrokerLink(
            section.id,
            here,
            links.to(url, PEER_RETRY_CAP_S),
            time.monotonic,
            has_certificates=Endpoint.parse(url).tls,
        )
        for url in section.managers
    ]
    program = BrokerAnnouncement(
        section.id, links.to_own(section.local), managers, here.every_s, links.watchdog
    )
    return program, supervision(links.watchdog, program.status, lambda: program.is_up)


class Links:
    """Makes connections with one set of TLS files and one watchdog."""

    def __init__(self, tls: TlsFiles, watchdog: LoopWatchdog) -> None:
        self._tls = tls
        self.watchdog = watchdog

    def to(
        self, url: str, cap_s: float | None = None
    ) -> Callable[[Session, ConnectionHandler], Connection]:
        """Make connections to a broker, with at most `cap_s` between attempts."""
        endpoint = Endpoint.parse(url)

        def connect(session: Session, handler: ConnectionHandler) -> Connection:
            connection = self.connect(endpoint, session, handler)
            if cap_s is not None:
                connection.backoff.cap_s = cap_s
            return connection

        return connect

    def to_own(self, url: str) -> Callable[[Session, ConnectionHandler], Connection]:
        """Make connections to the own broker."""
        return self.to(url, RETRY_CAP_S)

    def pool(self, template: Session) -> ConnectionPool:
        """A pool of connections with one session at each broker."""
        return ConnectionPool(template, self.connect, time.monotonic)

    def connect(
        self, endpoint: Endpoint, session: Session, handler: ConnectionHandler
    ) -> Connection:
        return Connection(endpoint, session, handler, self._tls, watchdog=self.watchdog)


class _GatewayLinks(Links):
    """Connections of a gateway; one session at each broker of other machines."""

    def __init__(self, tls: TlsFiles, watchdog: LoopWatchdog, gateway_id: str) -> None:
        super().__init__(tls, watchdog)
        self.to_brokers = self.pool(receiving_session(gateway_id)).connect
        presence = Session(f"{gateway_id}-presence", keepalive_s=10)
        self.to_managers = self.pool(presence).connect


def _load_reporter(
    settings: GatewaySettings,
    egress: Egress,
    meter: TopicMeter,
    managers: Sequence[ManagerLink],
) -> LoadReporter:
    publish = [each.publish_load for each in managers]
    return LoadReporter(_public(settings), egress, meter, CpuMeter(), publish)


def _periodic(
    links: Links, interval_s: float, *calls: Callable[[], object]
) -> PeriodicCaller:
    return PeriodicCaller(calls, interval_s, links.watchdog)


def _fallback(
    settings: GatewaySettings, data: Path, links: Links
) -> OverlayFallback | None:
    """The fallback to the overlay, if the settings name peers."""
    section = settings.overlay
    if not section.peers and not section.from_managers:
        return None
    rules = FallbackRules(
        settings.gateway.route == "overlay",
        section.from_priority,
        section.out_of_reach_s,
        _expiry(settings).ttl_s,
    )
    return OverlayFallback(
        _queue(settings, data, "overlay"), rules, links.watchdog.clock
    )


def _overlay(
    settings: GatewaySettings,
    data: Path,
    links: Links,
    fallback: OverlayFallback | None,
    downstream: Downstream,
) -> OverlayMembership:
    if fallback is None:
        return OverlayMembership()
    gateway, section = settings.gateway, settings.overlay
    public = _public(settings)
    name = GatewayName(section.place or "", public, gateway.id)
    # One list may serve all gateways. With certificates, a connection to the own public
    # address would take over the ingress session: both use the certificate's name.
    peers = tuple(
        each for each in map(parse_broker_info, section.peers) if each != public
    )
    own = Endpoint.parse(gateway.broker)
    chance = random.Random()  # noqa: S311 - picks peers and numbers, no secrets
    runner = OverlayRunner(
        OverlayConfig(name, peers, section.rate_bytes_per_s),
        OverlayNode(str(name), chance.choice, numbers=count(chance.getrandbits(32))),
        lambda later: MqttTransport(gateway.id, own, links.connect, later),
        make_store(downstream.store),
        watchdog=links.watchdog,
    )
    runner.source = fallback
    fallback.set_overlay(runner)
    directory = data / "gateways.json" if section.from_managers else None
    membership = OverlayMembership(fallback, runner, directory)
    membership.recall_gateways()
    return membership


def _ingress(
    settings: GatewaySettings, data: Path, links: Links, egress: Egress
) -> Ingress:
    section = settings.gateway
    has_certificates = Endpoint.parse(section.broker).tls
    identity_check = IdentityCheck(
        data / "impostors.jsonl", time.time, has_certificates=has_certificates
    )
    return Ingress(
        section.id,
        links.to_own(section.broker),
        egress,
        section.default_priority,
        time.monotonic,
        checks=AdmissionChecks(
            SenderRateLimit(section.node_per_s),
            identity_check,
            make_crash_guard(data, "ingress").open(),
        ),
    )


def _downstream(
    settings: GatewaySettings, data: Path, links: _GatewayLinks
) -> Downstream:
    section = settings.gateway
    # Refused deliveries would block those of all nodes behind them.
    queue = _queue(settings, data, "local", is_shared=False)
    sender = SenderProfile(
        f"{section.id}-local",
        is_relay=True,
        custody=CustodyMode.PUBACK,
        always_sends_ids=True,
    )
    uplink = Uplink(queue, sender, links.connect, RateLimiter(), time.monotonic)
    return Downstream(
        section.id,
        links.to_brokers,
        Lane(queue, ArrivalTimes(time.monotonic()), uplink),
        Endpoint.parse(section.broker),
        parser=DeliveryParser(
            section.default_priority, make_crash_guard(data, "downstream").open()
        ),
        watchdog=links.watchdog,
    )


def _discovery(
    settings: GatewaySettings,
    data: Path,
    links: Links,
    downstream: Downstream,
    overlay: OverlayMembership,
) -> SubscriptionDiscovery:
    def on_change(filters: frozenset[str]) -> None:
        downstream.set_filters(filters)
        overlay.set_filters(filters)

    section = settings.gateway
    return SubscriptionDiscovery(
        section.id,
        links.to_own(section.broker),
        data / "subscriptions.json",
        on_change,
        time.monotonic,
    )


def _relays(settings: GatewaySettings, links: _GatewayLinks) -> list[NoticeRelay]:
    """Relays of notices, drills and rollouts; nodes verify rollouts themselves."""
    section = settings.gateway
    managers = [
        partial(links.to_managers, Endpoint.parse(url)) for url in section.managers
    ]
    own = links.to_own(section.broker)
    verify = _verifier(section.notice_keys)
    relays = (
        ("notices", NOTICE_FILTER, verify),
        ("drills", DRILL_FILTER, verify),
        ("updates", ROLLOUT_FILTER, None),
    )
    return [
        NoticeRelay(
            f"{section.id}-{name}",
            managers,
            own,
            links.watchdog,
            filter_=filter_,
            verify=check,
        )
        for name, filter_, check in relays
    ]


def _verifier(keys: Sequence[str]) -> OpenNotice | None:
    if not keys:
        return None
    try:
        return NoticeVerifier(keys).verify
    except FieldError as error:
        raise SettingsError([Problem.of(error, "gateway.notice_keys")]) from error


def _egress(
    settings: GatewaySettings,
    data: Path,
    links: _GatewayLinks,
    meter: TopicMeter,
    fallback: OverlayFallback | None,
    *,
    managers: Sequence[ManagerLink],
) -> Egress:
    """The egress; the links to the Managers may be added before it is used."""
    nowhere = _queue(settings, data, _lane_file(None))  # the lane that is never closed
    sender = replace(
        settings.uplink.sender_profile(settings.gateway.id, is_relay=True),
        stores=KnownStores(nowhere, time.monotonic),
        has_compact_peers=lambda: all(each.has_compact_peers for each in managers),
    )
    # Of the link, which all lanes share. A gateway's clock is synchronised.
    limiter = settings.uplink.rate_limiter(
        lambda: settings.uplink.local_minute(time.time())
    )
    egress = Egress(
        make_queue=lambda broker: (
            _queue(settings, data, _lane_file(broker)) if broker else nowhere
        ),
        make_uplink=lambda _broker, queue: Uplink(
            queue, sender, links.to_brokers, limiter, time.monotonic
        ),
        tls=Endpoint.parse(settings.gateway.broker).tls,
        watchdog=links.watchdog,
        count_topics=meter.count,
        fallback=fallback,
    )
    egress.adopt(_stored_lanes(data))
    return egress


def _manager_links(
    settings: GatewaySettings,
    links: _GatewayLinks,
    gateway: Gateway,
    overlay: OverlayMembership,
) -> list[ManagerLink]:
    section = settings.gateway
    managers = [
        ManagerLink(
            section.id,
            AreaSetting(_public(settings), topics=tuple(section.areas)),
            partial(links.to_managers, Endpoint.parse(url)),
            gateway,
            time.monotonic,
            has_certificates=Endpoint.parse(url).tls,
        )
        for url in section.managers
    ]
    for each in managers:
        each.on_gateway_list = overlay.on_gateway_list
        each.location = section.location
        each.heartbeat_s = section.beat_s
    return managers


def _public(settings: GatewaySettings) -> BrokerInfo:
    return parse_broker_info(settings.gateway.public or settings.gateway.broker)


def _lane_file(broker: BrokerInfo | None) -> str:
    return f"{broker.host}-{broker.port}" if broker else "nowhere"


def _stored_lanes(data: Path) -> Iterator[BrokerInfo]:
    """Brokers whose lanes have a file, only its log, or only its salvaged content."""
    found = (data / "lanes").glob("*-*.db*")
    names = {p.name.removesuffix("-wal").removesuffix(".salvaged") for p in found}
    for name in sorted(each for each in names if each.endswith(".db")):
        host, _, port = name.removesuffix(".db").rpartition("-")
        if port.isdecimal():
            yield BrokerInfo(host, int(port))


def _queue(
    settings: GatewaySettings, data: Path, name: str, *, is_shared: bool = True
) -> Queue:
    return SqliteQueue(
        data / "lanes" / f"{name}.db",
        settings.gateway.id,
        KERNEL_BOOT_ID.read_text().strip(),
        replace(settings.queue.budget(), is_shared=is_shared),
        durability=COMMIT_PUTS_DEFER_ACKS,
        expiry=_expiry(settings),
    )


def _expiry(settings: GatewaySettings) -> ExpiryPolicy:
    return settings.queue.expiry_policy(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    )


def supervision(
    watchdog: LoopWatchdog, status: Callable[[], str], serves: Callable[[], bool]
) -> SystemdSupervisor:
    """Supervision of a program by systemd, from its environment."""
    return SystemdSupervisor.from_environment(
        os.environ, os.getpid(), watchdog, status, is_serving=serves
    )


def accepts_connection(broker: BrokerInfo) -> bool:
    """Whether an address accepts connections."""
    try:
        address = (broker.host, broker.port)
        socket.create_connection(address, PROBE_TIMEOUT_S).close()
    except (OSError, UnicodeError):  # the latter for an empty or a long label
        return False
    return True


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
