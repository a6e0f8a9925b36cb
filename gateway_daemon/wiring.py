"""Puts the parts together: the one place that names clocks, files and randomness."""

import time
from collections.abc import Callable
from pathlib import Path

from edge_agent.queue.base import Queue
from edge_agent.queue.sqlite import SqliteQueue
from edge_agent.uplink.uplink import Uplink
from gateway_daemon.config import GatewaySettings, ManagerSettings
from gateway_daemon.gateway.front import Front
from gateway_daemon.gateway.gateway import Gateway
from gateway_daemon.gateway.lanes import Lanes
from gateway_daemon.gateway.presence import Presence
from gateway_daemon.manager.manager import Manager
from spatial_mqtt.connection import Connection
from spatial_mqtt.directory import BrokerInfo, Entry
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.link import Handler, Session

KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def gateway(settings: GatewaySettings) -> tuple[Gateway, list[Presence]]:
    """A gateway and its presences, ready to run."""
    section = settings.gateway
    data = Path(section.data)
    data.mkdir(parents=True, exist_ok=True)
    link = _Links(settings.tls)
    own = Endpoint.parse(section.broker)
    lanes = Lanes(
        make_queue=lambda broker: _queue(settings, data, broker),
        make_uplink=lambda _broker, queue: _uplink(settings, queue, link),
        tls=own.tls,
    )
    front = Front(
        section.id, link.to(own), lanes, section.default_priority, time.monotonic
    )
    made = Gateway(lanes, front, data / "broker-table.json")
    public = Endpoint.parse(section.public) if section.public else own
    presences = [
        Presence(
            section.id,
            BrokerInfo(public.host, public.port),
            section.areas,
            link.to(Endpoint.parse(url)),
            made.on_table,
        )
        for url in section.managers
    ]
    return made, presences


def manager(settings: ManagerSettings) -> Manager:
    """A Manager, ready to run."""
    brokers = [Entry(b.topic, _info(Endpoint.parse(b.url))) for b in settings.broker]
    endpoint = Endpoint.parse(settings.manager.broker)
    path = Path(settings.manager.data) / "registry.json"
    return Manager(_Links(settings.tls).to(endpoint), path, brokers)


class _Links:
    """Makes connections with one set of TLS files."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls

    def to(self, endpoint: Endpoint) -> Callable[[Session, Handler], Connection]:
        return lambda session, handler: self.connect(endpoint, session, handler)

    def connect(
        self, endpoint: Endpoint, session: Session, handler: Handler
    ) -> Connection:
        return Connection(endpoint, session, handler, self._tls)


def _queue(settings: GatewaySettings, data: Path, broker: BrokerInfo | None) -> Queue:
    name = f"{broker.host}-{broker.port}" if broker else "nowhere"
    return SqliteQueue(
        data / "lanes" / f"{name}.db",
        settings.gateway.id,
        KERNEL_BOOT_ID.read_text().strip(),
        settings.queue.budget(),
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


def _info(endpoint: Endpoint) -> BrokerInfo:
    return BrokerInfo(endpoint.host, endpoint.port)
