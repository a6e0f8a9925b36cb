"""Settings of the gateway daemon, from TOML."""

from dataclasses import dataclass
from pathlib import Path

from edge_agent.queue.settings import StoreSection
from edge_agent.uplink.settings import LinkSection
from spatial_mqtt.endpoint import Endpoint, TlsFiles
from spatial_mqtt.priority import LADDER
from spatial_mqtt.settings import Rule, key, parse, read
from spatial_mqtt.topics import check_area, check_node_id

URL = "mqtt://host:port or mqtts://host:port"


@dataclass(frozen=True)
class GatewaySection:
    """``[gateway]``."""

    id: str = key(
        Rule("Name of this gateway, unique in the system.", check=check_node_id)
    )
    broker: str = key(Rule(f"The gateway's own broker, {URL}.", check=Endpoint.parse))
    public: str | None = key(
        Rule(
            "Where clients reach that broker, when not under the same address.",
            check=lambda url: url is None or Endpoint.parse(url),
        ),
        None,
    )
    managers: tuple[str, ...] = key(
        Rule(
            f"Brokers of the Managers, each {URL}.",
            check=lambda urls: [Endpoint.parse(u) for u in urls],
        )
    )
    areas: tuple[str, ...] = key(
        Rule(
            "Areas it asks for, such as /3/1/1; empty leaves it to an administrator.",
            check=lambda areas: [check_area(a) for a in areas],
        ),
        (),
    )
    data: str = key(Rule("Folder of the durable queues."), "/var/lib/yamamori/gateway")
    default_priority: int = key(
        Rule("Priority of a publication that carries none.", low=1, high=LADDER.top),
        LADDER.default,
    )


@dataclass(frozen=True)
class GatewaySettings:
    """The file of ``gateway-daemon run``."""

    gateway: GatewaySection
    queue: StoreSection
    uplink: LinkSection
    tls: TlsFiles


@dataclass(frozen=True)
class ManagerSection:
    """``[manager]``."""

    broker: str = key(Rule(f"The Manager's own broker, {URL}.", check=Endpoint.parse))
    data: str = key(Rule("Folder of the registry."), "/var/lib/yamamori/manager")


@dataclass(frozen=True)
class BrokerSection:
    """``[[broker]]``: a distributed broker."""

    topic: str = key(
        Rule("Area it is responsible for; / is everything.", check=check_area)
    )
    url: str = key(Rule(f"Where it listens, {URL}.", check=Endpoint.parse))


@dataclass(frozen=True)
class ManagerSettings:
    """The file of ``gateway-daemon manager``."""

    manager: ManagerSection
    tls: TlsFiles
    broker: tuple[BrokerSection, ...] = key(Rule("The distributed brokers."), ())


def read_gateway(path: Path) -> GatewaySettings:
    """Read a gateway's settings.

    Raises:
        SettingsError: Lists every mistake.
        OSError: The file cannot be read.
    """
    return read(GatewaySettings, parse(path.read_text(encoding="utf-8")))


def read_manager(path: Path) -> ManagerSettings:
    """Read a Manager's settings.

    Raises:
        SettingsError: Lists every mistake.
        OSError: The file cannot be read.
    """
    return read(ManagerSettings, parse(path.read_text(encoding="utf-8")))
