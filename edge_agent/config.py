"""Settings of a node, read from TOML. Reading opens no other file or device."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from edge_agent.alarm_outputs import AlarmOutputSettings, find_alarm_problems
from edge_agent.queue.eviction import BaseQueueSection
from edge_agent.sensors.base import SensorConfig
from edge_agent.sensors.registry import parse_sensors
from edge_agent.triage.settings import CriteriaSection, TriageSection
from edge_agent.uplink.settings import LinkSection, PeriodSection
from service_runtime.errors import FieldError
from service_runtime.settings import (
    KeyRule,
    Problem,
    SettingsError,
    build_settings,
    key,
    read_toml,
)
from service_runtime.tls import Endpoint, TlsFiles, check_links
from spatial_mqtt.cells import LEAF_LEVEL, TOPIC_LEVEL
from spatial_mqtt.topics import check_node_id

NOT_UTF_8 = "the file must be text in UTF-8; save it so in your editor"
STORM_SHAPES = ("quiet", "uniform", "peaked")
"""Shapes of an invented storm of ``[simulation]``."""

URL_FORM = "mqtt://host:port or mqtts://host:port"

_SSH_KEY = re.compile(r"(ssh|ecdsa)-[a-z0-9-]+ [A-Za-z0-9+/=]+( [^\n]*)?")


def parse_time(text: str) -> datetime:
    """Parse an ISO time with a zone.

    Raises:
        FieldError: It has no zone, or is no time.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise FieldError(
            "time", "ISO, such as 2026-07-01T00:00:00+09:00", text
        ) from error
    if time.tzinfo is None:
        raise FieldError("time", "with a zone", text, "append +09:00 or Z")
    return time


@dataclass(frozen=True)
class NodeSection:
    """``[node]``."""

    id: str = key(
        KeyRule("Name of this node, unique in the system.", check=check_node_id)
    )
    latitude: float = key(
        KeyRule("Latitude of its position.", "degrees", low=-90, high=90)
    )
    longitude: float = key(
        KeyRule("Longitude of its position.", "degrees", low=-180, high=180)
    )
    cell_level: int = key(
        KeyRule(
            "S2 level of its topic; finer than any subscription.",
            low=13,
            high=LEAF_LEVEL,
        ),
        TOPIC_LEVEL,
    )


@dataclass(frozen=True)
class UplinkSection(LinkSection):
    """``[uplink]``: towards the nearest gateway."""

    managers: tuple[str, ...] = key(
        KeyRule(
            f"Managers that list the nearest gateways, each {URL_FORM}.",
            check=lambda urls: [Endpoint.parse(url) for url in urls],
        ),
        (),
    )
    gateway: str | None = key(
        KeyRule(
            f"The gateway to use when no managers are given, {URL_FORM}.",
            check=lambda url: url is None or Endpoint.parse(url),
        ),
        None,
    )
    gather_s: float = key(
        KeyRule(
            "Maximum time that messages of priority 1 and 2 wait to share a "
            "publication; 0 sends each at once.",
            "s",
            low=0,
            high=3600,
        ),
        180.0,
    )

    def __post_init__(self) -> None:
        """Refuse settings without a gateway, or with two sources of it."""
        if bool(self.managers) == bool(self.gateway):
            given = "both" if self.gateway else "neither"
            raise FieldError("managers or gateway", "given, and not both", given)


@dataclass(frozen=True)
class QueueSection(BaseQueueSection):
    """``[queue]``."""

    path: str = key(KeyRule("File of the queue."), "/var/lib/yamamori/queue.db")
    window_s: float = key(
        KeyRule(
            "Maximum time that a message of priority 1 to 3 is in memory before it is "
            "written to disk; 4 and 5 are always written at once, with 0 all are.",
            "s",
            low=0,
            high=60,
        ),
        2.0,
    )


@dataclass(frozen=True)
class SamplingSection:
    """``[sampling]``."""

    fast_interval_s: float = key(
        KeyRule(
            "Longest time between readings while the level is 3 or more.",
            "s",
            low=1,
            high=3600,
        ),
        60.0,
    )
    report_s: float = key(
        KeyRule(
            "Time between two reports of the node's own health (queue, gateway, "
            "battery), added to a pack that is sent anyway.",
            "s",
            low=60,
            high=86_400,
        ),
        1800.0,
    )


@dataclass(frozen=True)
class PowerSection:
    """``[power]`` of a node on a battery."""

    battery: str = key(KeyRule("Name of the sensor of the battery's voltage."))
    low_v: float = key(
        KeyRule("Voltage below which the node saves power.", "V", low=1, high=60), 11.8
    )
    well_v: float = key(
        KeyRule("Voltage from which it stops saving power.", "V", low=1, high=60), 12.4
    )
    stretch: float = key(
        KeyRule(
            "Factor of the sampling intervals while it saves power.", low=1, high=60
        ),
        5.0,
    )

    def __post_init__(self) -> None:
        """Refuse an upper voltage below the lower one."""
        if self.well_v < self.low_v:
            rule = f"at least low_v ({self.low_v:g} V)"
            raise FieldError("well_v", rule, self.well_v)


@dataclass(frozen=True)
class NoticesSection:
    """``[notices]``: levels and criteria from analysts."""

    keys: tuple[str, ...] = key(
        KeyRule(
            "Files of public Ed25519 keys (PEM); with one or more, only notices signed "
            "by one of them count, without any all do."
        ),
        (),
    )
    unknown_s: float = key(
        KeyRule(
            "How long the level is unknown after a notice of level 3 or more expired "
            "without withdrawal, unless a new notice for its area comes.",
            "s",
            0,
            2_592_000,
        ),
        604_800.0,
    )


def check_ssh_keys(keys: tuple[str, ...]) -> None:
    """Check public keys for OpenSSH.

    Raises:
        FieldError: One is not a public key.
    """
    for each in keys:
        if _SSH_KEY.fullmatch(each) is None:
            rule = "a public key's line, such as ssh-ed25519 AAAA... name"
            shown = "a private key" if "PRIVATE" in each else each
            raise FieldError("ssh_keys", rule, shown, "take the file that ends in .pub")


@dataclass(frozen=True)
class AccessSection:
    """``[access]``: logins on a node that was installed from the image."""

    ssh_keys: tuple[str, ...] = key(
        KeyRule(
            "Public keys that may log in as root with ssh; without any, no login is "
            "possible. Passwords are never accepted.",
            check=check_ssh_keys,
        ),
        (),
    )


@dataclass(frozen=True)
class UpdateSection:
    """``[update]``: updates of the image over the node's link."""

    keys: tuple[str, ...] = key(
        KeyRule(
            "Files of public Ed25519 keys (PEM): a rollout counts when one of them "
            "signed it; without any, the node takes updates only from its card."
        ),
        (),
    )
    rate_bytes_per_s: float | None = key(
        KeyRule(
            "Bytes to fetch per second at most; absent is the rate of [uplink].",
            "bytes/s",
            low=100,
        ),
        None,
    )
    period: tuple[PeriodSection, ...] = key(
        KeyRule("Times of day with another rate; empty takes those of [uplink]."),
        (),
    )


@dataclass(frozen=True)
class SimulationSection:
    """``[simulation]``: a simulated slope instead of real pins."""

    start: str = key(KeyRule("Time at which the simulation begins.", check=parse_time))
    epoch_unix_s: float | None = key(
        KeyRule(
            "Unix time of that moment; absent: the start of the agent.", "s", low=0
        ),
        None,
    )
    speedup: float = key(
        KeyRule("Simulated seconds for each real one.", low=1, high=10_000), 1.0
    )
    storm: str = key(
        KeyRule("Shape of an invented storm.", choices=STORM_SHAPES), "peaked"
    )
    duration_h: float = key(
        KeyRule("Duration of the rain.", "h", low=0.2, high=2000), 24.0
    )
    total_mm: float = key(
        KeyRule("Rain of the whole storm.", "mm", low=0, high=3000), 200.0
    )
    rain_csv: str | None = key(
        KeyRule("File of recorded rain, instead of a storm."), None
    )
    rain_column: str = key(KeyRule("Column of that file with the depths."), "rain_mm")
    first_date: str | None = key(KeyRule("First date of the record to use."), None)
    last_date: str | None = key(KeyRule("Last date of the record to use."), None)
    failure_after_h: float | None = key(
        KeyRule(
            "Time until the slope fails; absent: it does not.", "h", low=0, high=10_000
        ),
        None,
    )
    onset_h: float = key(
        KeyRule(
            "Time before the failure in which the creep accelerates.",
            "h",
            low=0.1,
            high=10_000,
        ),
        12.0,
    )
    wire_break_after_h: float | None = key(
        KeyRule(
            "Time until the wire is cut; absent: at the failure.",
            "h",
            low=0,
            high=10_000,
        ),
        None,
    )
    stop_after_h: float | None = key(
        KeyRule(
            "Time until sampling stops; the uplink keeps sending.",
            "h",
            low=0,
            high=10_000,
        ),
        None,
    )
    seed: int = key(KeyRule("Seed of the noise.", low=0, high=2**31), 1)
    ledger: str | None = key(
        KeyRule("File that lists every id put on the queue, for tests."), None
    )


@dataclass(frozen=True)
class NodeSections:
    """A node's settings without its sensors."""

    node: NodeSection
    uplink: UplinkSection
    queue: QueueSection
    sampling: SamplingSection
    criteria: CriteriaSection
    triage: TriageSection
    tls: TlsFiles
    notices: NoticesSection
    update: UpdateSection
    access: AccessSection
    alarm: tuple[AlarmOutputSettings, ...] = key(KeyRule("Alarm outputs."), ())
    simulation: SimulationSection | None = None
    power: PowerSection | None = None

    def __post_init__(self) -> None:
        """Require protected links."""
        check_links(
            self.tls,
            uplink__managers=self.uplink.managers,
            uplink__gateway=self.uplink.gateway,
        )


@dataclass(frozen=True)
class NodeSettings:
    """All settings of a node.

    Attributes:
        settings: All sections except the sensors.
        sensors: One for each ``[[sensor]]``, at least one.
    """

    settings: NodeSections
    sensors: tuple[SensorConfig, ...]


def read_node_settings(path: Path) -> NodeSettings:
    """Read a node's settings.

    Raises:
        SettingsError: The file has mistakes; lists all of them.
        OSError: The file cannot be read.
    """
    return parse_node_settings(read_toml(path))


def parse_node_settings(table: Mapping[str, Any]) -> NodeSettings:
    """Make a node's settings from a TOML table.

    Raises:
        SettingsError: The table has mistakes; lists all of them.
    """
    rest = {name: value for name, value in table.items() if name != "sensor"}
    problems: list[Problem] = []
    settings = sensors = None
    try:
        settings = build_settings(NodeSections, rest)
    except SettingsError as error:
        problems += error.problems
    try:
        sensors = parse_sensors(_sensor_tables(table))
    except SettingsError as error:
        problems += error.problems
    if settings and sensors:
        problems += _unknown_battery(settings, sensors)
        problems += settings.triage.find_problems(sensors)
        problems += find_alarm_problems(settings.alarm, sensors)
    if settings is None or sensors is None or problems:
        raise SettingsError(problems)
    return NodeSettings(settings, sensors)


def _unknown_battery(
    settings: NodeSections, sensors: Sequence[SensorConfig]
) -> list[Problem]:
    known = {sensor.name: sensor for sensor in sensors}
    if settings.power is None:
        return []
    sensor = known.get(settings.power.battery)
    if sensor is not None and sensor.senml_unit == "V":
        return []
    volts = [name for name, each in known.items() if each.senml_unit == "V"]
    rule = f"must be a sensor in V; this node has {', '.join(volts) or 'none'}"
    return [Problem("power.battery", rule, settings.power.battery)]


def _sensor_tables(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tables = table.get("sensor", [])
    is_array = isinstance(tables, list) and all(isinstance(t, Mapping) for t in tables)
    if not is_array or not tables:
        rule = "must be given: one [[sensor]] table or more, with kind and name"
        raise SettingsError([Problem("sensor", rule)])
    return list(tables)
