"""Settings of gateway, Manager, announced broker and signer, read from TOML."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from edge_agent.queue.eviction import BaseQueueSection
from edge_agent.uplink.settings import LinkSection
from gateway_daemon.manager.autoscaler import AutoscaleMode, AutoscaleSettings
from gateway_daemon.manager.scaling_policy import ScalingLimits, ServerKind
from service_runtime.errors import FieldError
from service_runtime.metrics import MetricsSection
from service_runtime.settings import (
    KeyRule,
    build_settings,
    key,
    read_toml,
)
from service_runtime.tls import Endpoint, TlsFiles, check_links
from spatial_mqtt.custody import COMPACT_FORM
from spatial_mqtt.directory import (
    MAX_BEAT_S,
    BrokerInfo,
    GatewayLocation,
    check_areas,
)
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import check_area, check_node_id, parse_cell_topic

DEFAULT_MANAGER_ID = "manager"
URL_FORM = "mqtt://host:port or mqtts://host:port"
AUTOSCALE_MODES = ("off", "dry-run", "on")
ROUTES = ("brokers", "overlay")


def _check_urls(urls: tuple[str, ...]) -> None:
    for url in urls:
        Endpoint.parse(url)


def parse_broker_info(url: str) -> BrokerInfo:
    """Host and port of a URL in the settings."""
    endpoint = Endpoint.parse(url)
    return BrokerInfo(endpoint.host, endpoint.port)


@dataclass(frozen=True)
class GatewaySection:
    """``[gateway]``."""

    id: str = key(
        KeyRule("Name of this gateway, unique in the system.", check=check_node_id)
    )
    broker: str = key(
        KeyRule(f"The gateway's own broker, {URL_FORM}.", check=Endpoint.parse)
    )
    public: str | None = key(
        KeyRule(
            "Address where clients reach that broker, if it differs.",
            check=lambda url: url is None or Endpoint.parse(url),
        ),
        None,
    )
    managers: tuple[str, ...] = key(
        KeyRule(
            f"Brokers of the Managers, each {URL_FORM}.",
            check=_check_urls,
        )
    )
    areas: tuple[str, ...] = key(
        KeyRule(
            "Areas to request, such as /3/1/1; empty leaves them to an administrator.",
            check=check_areas,
        ),
        (),
    )
    latitude: float | None = key(
        KeyRule(
            "Location of the gateway for maps; absent: the middle of its area.",
            "degrees",
            low=-90,
            high=90,
        ),
        None,
    )
    longitude: float | None = key(
        KeyRule("Longitude; requires latitude.", "degrees", low=-180, high=180), None
    )
    data: str = key(
        KeyRule("Folder of the durable queues."), "/var/lib/yamamori/gateway"
    )
    beat_s: float = key(
        KeyRule(
            "Interval of heartbeats and load reports to the Managers.",
            "s",
            low=0.5,
            high=MAX_BEAT_S,
        ),
        10.0,
    )
    notice_keys: tuple[str, ...] = key(
        KeyRule(
            "Files of public Ed25519 keys (PEM); with any, only notices signed by one "
            "of them are relayed to the nodes."
        ),
        (),
    )
    node_per_s: float | None = key(
        KeyRule(
            "Rate limit per sender, separately for priorities 4 and 5 and for the "
            "others, with bursts of ten seconds. A message counts once for each 1,024 "
            "bytes. Messages above it get no receipt, and nodes send them again. "
            "Absent is no limit.",
            "1/s",
            low=1,
        ),
        1000.0,
    )
    default_priority: int = key(
        KeyRule("Priority of a publication that carries none.", low=1, high=LADDER.top),
        LADDER.default,
    )
    route: str = key(
        KeyRule(
            "Route of clients' messages: overlay forwards from gateway to gateway, "
            "without a broker.",
            choices=ROUTES,
        ),
        "brokers",
    )

    def __post_init__(self) -> None:
        """Require latitude and longitude together."""
        for name, other in (("latitude", "longitude"), ("longitude", "latitude")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                rule = f"given where gateway.{other} is"
                raise FieldError(name, rule, None, "give both or neither")

    @property
    def location(self) -> GatewayLocation:
        """What to publish about this gateway to the Managers."""
        public = parse_broker_info(self.public or self.broker)
        return GatewayLocation(public, self.latitude, self.longitude, (COMPACT_FORM,))


@dataclass(frozen=True)
class OverlaySection:
    """``[overlay]``."""

    peers: tuple[str, ...] = key(
        KeyRule(
            f"Brokers of other gateways, each {URL_FORM}; one that is up is enough to "
            "find "
            "all.",
            check=_check_urls,
        ),
        (),
    )
    from_managers: bool = key(
        KeyRule(
            "Find other gateways in the Managers' list too. Without this and without "
            "peers, the gateway is not part of the overlay."
        ),
        default=False,
    )
    place: str | None = key(
        KeyRule(
            "Topic of the gateway's cell, such as /3/1/2/0: gateways of one valley "
            "share a link.",
            check=lambda place: place is None or parse_cell_topic(place),
        ),
        None,
    )
    from_priority: int = key(
        KeyRule(
            "Lowest priority that takes the overlay while its broker is out of reach.",
            low=1,
            high=LADDER.top,
        ),
        LADDER.urgent_from,
    )
    out_of_reach_s: float = key(
        KeyRule(
            "Time without service after which a broker is out of reach.", "s", low=0.5
        ),
        5.0,
    )
    rate_bytes_per_s: float | None = key(
        KeyRule(
            "Maximum rate on the wire to other gateways; absent is no limit. "
            "Emergencies and control packets, about 450 bytes/s for each key, pass it.",
            "bytes/s",
            low=100,
        ),
        None,
    )


@dataclass(frozen=True)
class GatewaySettings:
    """Settings file of ``gateway-daemon run``."""

    gateway: GatewaySection
    queue: BaseQueueSection
    uplink: LinkSection
    tls: TlsFiles
    metrics: MetricsSection
    overlay: OverlaySection

    def __post_init__(self) -> None:
        """Require peers when the overlay is the route, and protected links."""
        check_links(
            self.tls,
            gateway__broker=self.gateway.broker,
            gateway__managers=self.gateway.managers,
            overlay__peers=self.overlay.peers,
        )
        if self.gateway.route == "overlay" and not self.overlay.peers:
            rule = "another gateway's broker when gateway.route is overlay"
            raise FieldError("overlay.peers", rule, list(self.overlay.peers))


@dataclass(frozen=True)
class ManagerSection:
    """``[manager]``."""

    id: str = key(
        KeyRule(
            "Name of this Manager, unique among several.",
            check=check_node_id,
        ),
        DEFAULT_MANAGER_ID,
    )
    peers: tuple[str, ...] = key(
        KeyRule(
            f"Brokers of the other Managers, each {URL_FORM}.",
            check=_check_urls,
        ),
        (),
    )
    broker: str = key(
        KeyRule(f"The Manager's own broker, {URL_FORM}.", check=Endpoint.parse)
    )
    data: str = key(KeyRule("Folder of the registry."), "/var/lib/yamamori/manager")

    def __post_init__(self) -> None:
        """Require a unique name beside other Managers."""
        if self.peers and self.id == DEFAULT_MANAGER_ID:
            raise FieldError("id", "a name of its own beside peers", self.id)


@dataclass(frozen=True)
class AutoscaleSection:
    """``[autoscale]``."""

    mode: str = key(
        KeyRule(
            "Whether hot areas are split; dry-run only reports.",
            choices=AUTOSCALE_MODES,
        ),
        "off",
    )
    brokers: tuple[str, ...] = key(
        KeyRule(f"Standby brokers, each {URL_FORM}.", check=_check_urls), ()
    )
    gateways: tuple[str, ...] = key(
        KeyRule(
            f"Standby gateways, each {URL_FORM} as clients reach it.", check=_check_urls
        ),
        (),
    )
    start_command: tuple[str, ...] = key(
        KeyRule(
            "Program and arguments that start another standby; broker or "
            "gateway and the area are appended; the last line it prints is the URL."
        ),
        (),
    )
    most_started: int = key(KeyRule("Maximum number of started standbys.", low=0), 4)
    stop_command: tuple[str, ...] = key(
        KeyRule(
            "Program and arguments that stop a started standby; broker or gateway and "
            "the URL are appended."
        ),
        (),
    )
    most_age_s: float = key(
        KeyRule("A broker is hot when messages wait longer.", "s", low=0.1), 5.0
    )
    most_per_s: float | None = key(
        KeyRule("A broker is hot above this message rate.", "1/s", low=0.1), None
    )
    most_cpu: float = key(
        KeyRule(
            "A gateway is hot above this busy share of its machine.", low=0.01, high=1
        ),
        0.85,
    )
    hold_s: float = key(
        KeyRule("Time an area must be hot before it is split.", "s", low=0), 30.0
    )
    rest_s: float = key(
        KeyRule("Time between two decisions, to observe the effect.", "s", low=0), 60.0
    )
    calm_s: float = key(
        KeyRule("Time an area must be calm before a split is undone.", "s", low=0),
        600.0,
    )
    calm_ratio: float = key(
        KeyRule(
            "An area is calm below this share of the limits and of its own peak.",
            low=0,
            high=1,
        ),
        0.3,
    )

    def to_scaling(self) -> AutoscaleSettings:
        """Parameters of the autoscaler."""
        standby: dict[ServerKind, tuple[BrokerInfo, ...]] = {
            "broker": tuple(map(parse_broker_info, self.brokers)),
            "gateway": tuple(map(parse_broker_info, self.gateways)),
        }
        limits = ScalingLimits(
            self.most_age_s,
            self.most_per_s,
            self.most_cpu,
            self.hold_s,
            self.rest_s,
            self.calm_s,
            self.calm_ratio,
        )
        mode = cast("AutoscaleMode", self.mode)
        return AutoscaleSettings(
            mode,
            limits,
            standby,
            self.start_command,
            self.most_started,
            self.stop_command,
        )


@dataclass(frozen=True)
class DistributedBrokerSection:
    """``[[broker]]``: a distributed broker."""

    topic: str = key(KeyRule("Area of the broker; / is everything.", check=check_area))
    url: str = key(KeyRule(f"Address of the broker, {URL_FORM}.", check=Endpoint.parse))


@dataclass(frozen=True)
class ManagerSettings:
    """Settings file of ``gateway-daemon manager``."""

    manager: ManagerSection
    tls: TlsFiles
    autoscale: AutoscaleSection
    metrics: MetricsSection
    broker: tuple[DistributedBrokerSection, ...] = key(
        KeyRule("The distributed brokers."), ()
    )

    def __post_init__(self) -> None:
        """Require one broker for each area, and protected links."""
        check_links(
            self.tls,
            manager__broker=self.manager.broker,
            manager__peers=self.manager.peers,
            autoscale__brokers=self.autoscale.brokers,
            broker__url=[each.url for each in self.broker],
        )
        areas = [each.topic for each in self.broker]
        twice = sorted({area for area in areas if areas.count(area) > 1})
        if twice:
            raise FieldError("broker.topic", "an area without another broker", twice)


@dataclass(frozen=True)
class AnnouncedBrokerSection:
    """``[broker]``."""

    id: str = key(
        KeyRule(
            "Name of this broker, unique in the system; that of its certificate.",
            check=check_node_id,
        )
    )
    local: str = key(
        KeyRule(
            f"The broker as its own machine reaches it, {URL_FORM}.",
            check=Endpoint.parse,
        )
    )
    public: str | None = key(
        KeyRule(
            "Address where gateways reach it, if it differs.",
            check=lambda url: url is None or Endpoint.parse(url),
        ),
        None,
    )
    managers: tuple[str, ...] = key(
        KeyRule(f"Brokers of the Managers, each {URL_FORM}.", check=_check_urls)
    )
    areas: tuple[str, ...] = key(
        KeyRule(
            "Areas to request, such as /3/1; / is everything that no other broker has.",
            check=check_areas,
        )
    )
    beat_s: float = key(
        KeyRule(
            "Interval of heartbeats; after three missed ones the broker loses its "
            "areas.",
            "s",
            low=0.5,
            high=MAX_BEAT_S,
        ),
        10.0,
    )

    def __post_init__(self) -> None:
        """Require a Manager and an area."""
        for name in ("managers", "areas"):
            if not getattr(self, name):
                raise FieldError(name, "one or more", [])


@dataclass(frozen=True)
class AnnouncedBrokerSettings:
    """Settings file of ``gateway-daemon broker``."""

    broker: AnnouncedBrokerSection
    tls: TlsFiles

    def __post_init__(self) -> None:
        """Require protected links."""
        check_links(
            self.tls,
            broker__local=self.broker.local,
            broker__managers=self.broker.managers,
        )


@dataclass(frozen=True)
class SignerSection:
    """``[signer]``."""

    id: str = key(
        KeyRule("Name in its own certificate.", check=check_node_id), "signer"
    )
    broker: str = key(KeyRule(f"A Manager's broker, {URL_FORM}.", check=Endpoint.parse))
    life_days: float = key(
        KeyRule("Validity of a renewed certificate.", "days", low=0.0001, high=825),
        398.0,
    )


@dataclass(frozen=True)
class SignerSettings:
    """Settings file of ``gateway-daemon ca sign``."""

    signer: SignerSection
    tls: TlsFiles
    metrics: MetricsSection

    def __post_init__(self) -> None:
        """Require a protected link."""
        check_links(self.tls, signer__broker=self.signer.broker)


def read_gateway_settings(path: Path) -> GatewaySettings:
    """Read a gateway's settings.

    Raises:
        SettingsError: The settings are not valid; it lists every mistake.
        OSError: The file cannot be read.
    """
    return build_settings(GatewaySettings, read_toml(path))


def read_manager_settings(path: Path) -> ManagerSettings:
    """Read a Manager's settings; raises like `read_gateway_settings`."""
    return build_settings(ManagerSettings, read_toml(path))


def read_broker_settings(path: Path) -> AnnouncedBrokerSettings:
    """Read an announced broker's settings; raises like `read_gateway_settings`."""
    return build_settings(AnnouncedBrokerSettings, read_toml(path))


def read_signer_settings(path: Path) -> SignerSettings:
    """Read a signer's settings; raises like `read_gateway_settings`."""
    return build_settings(SignerSettings, read_toml(path))
