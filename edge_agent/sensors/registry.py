"""Which kinds of sensors there are, and a node's sensors from its settings.

A package of someone else adds a kind with an entry point in the group
``yamamori.sensors``: its name is the kind, it loads to a `Kind`.
"""

import dataclasses
import difflib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from edge_agent.sensors.ads1115_current import Ads1115Current, Ads1115CurrentSettings
from edge_agent.sensors.ads1115_voltage import Ads1115Voltage, Ads1115VoltageSettings
from edge_agent.sensors.adxl345 import Adxl345Settings, open_adxl345
from edge_agent.sensors.adxl355 import Adxl355Settings, open_adxl355
from edge_agent.sensors.base import (
    Claiming,
    Hardware,
    Sensor,
    SensorSettings,
    check_name,
)
from edge_agent.sensors.bme280 import Bme280, Bme280Settings
from edge_agent.sensors.claims import clashes
from edge_agent.sensors.ds18b20 import Ds18b20, Ds18b20Settings
from edge_agent.sensors.extensometer import Extensometer, ExtensometerSettings
from edge_agent.sensors.gnss import Gnss, GnssSettings
from edge_agent.sensors.lis3dh import Lis3dh, Lis3dhSettings
from edge_agent.sensors.modbus_probe import ModbusProbe, ModbusSettings
from edge_agent.sensors.murata import Sca3300Settings, Scl3300Settings, open_murata
from edge_agent.sensors.node_health import NodeHealth, NodeSettings
from edge_agent.sensors.pending import PendingSensor
from edge_agent.sensors.piezometer import Piezometer, PiezometerSettings
from edge_agent.sensors.probe import ProbeSettings
from edge_agent.sensors.rain_gauge import RainGauge, RainGaugeSettings
from edge_agent.sensors.sdi12_probe import Sdi12Probe, Sdi12Settings
from edge_agent.sensors.soil_moisture import SoilMoisture, SoilMoistureSettings
from edge_agent.sensors.ultrasonic import Ultrasonic, UltrasonicSettings
from edge_agent.sensors.vibration import Vibration, VibrationSettings
from edge_agent.sensors.wire import Wire, WireSettings
from edge_agent.sensors.wire_eol import WireEol, WireEolSettings
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import SettingsError, read

GROUP = "yamamori.sensors"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """A kind of sensor.

    Attributes:
        settings: Its keys; also says quantity, unit and claims.
        opener: Opens one. Raises `SensorError`, or what the pin library raises.
    """

    settings: type[SensorSettings]
    opener: Callable[[Any, Hardware], Sensor]


KINDS: Mapping[str, Kind] = {
    "adxl345": Kind(Adxl345Settings, open_adxl345),
    "ads1115-current": Kind(Ads1115CurrentSettings, Ads1115Current),
    "ads1115-voltage": Kind(Ads1115VoltageSettings, Ads1115Voltage),
    "bme280": Kind(Bme280Settings, Bme280),
    "ds18b20": Kind(Ds18b20Settings, Ds18b20),
    "extensometer": Kind(ExtensometerSettings, Extensometer),
    "gnss": Kind(GnssSettings, Gnss),
    "lis3dh": Kind(Lis3dhSettings, Lis3dh),
    "modbus": Kind(ModbusSettings, ModbusProbe),
    "node": Kind(NodeSettings, NodeHealth),
    "piezometer": Kind(PiezometerSettings, Piezometer),
    "rain-gauge": Kind(RainGaugeSettings, RainGauge),
    "sca3300": Kind(Sca3300Settings, open_murata),
    "scl3300": Kind(Scl3300Settings, open_murata),
    "sdi12": Kind(Sdi12Settings, Sdi12Probe),
    "soil-moisture": Kind(SoilMoistureSettings, SoilMoisture),
    "tilt": Kind(Adxl355Settings, open_adxl355),
    "ultrasonic": Kind(UltrasonicSettings, Ultrasonic),
    "vibration": Kind(VibrationSettings, Vibration),
    "wire": Kind(WireSettings, Wire),
    "wire-eol": Kind(WireEolSettings, WireEol),
}


def find_kind(name: object) -> Kind:
    """The kind of that name, ours or one of an installed package.

    Raises:
        FieldError: There is none; the message knows the nearest.
    """
    foreign = {point.name: point for point in entry_points(group=GROUP)}
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    if isinstance(name, str) and name in foreign:
        kind: Kind = foreign[name].load()
        return kind
    known = sorted({*KINDS, *foreign})
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else "install its package"
    raise FieldError("kind", f"one of {', '.join(map(repr, known))}", name, remedy)


def parse_sensors(tables: Sequence[Mapping[str, Any]]) -> tuple[Claiming, ...]:
    """Make the settings of a node's sensors from the ``[[sensor]]`` tables.

    Raises:
        SettingsError: Lists every mistake in every table.
    """
    problems: list[str] = []
    parsed = [_parse(table, at, problems) for at, table in enumerate(tables, 1)]
    settings = tuple(s for s in parsed if s is not None)
    named = Counter(str(table["name"]) for table in tables if "name" in table)
    problems += [
        f"sensor.{name} must be named once, got {count} sensors of that name; "
        "rename all but one"
        for name, count in named.items()
        if count > 1
    ]
    problems += clashes(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def open_sensors(settings: Sequence[Claiming], hardware: Hardware) -> list[Sensor]:
    """Open a node's sensors; one that fails never stops the others.

    Returns:
        One for each of the settings, in their order. What did not open is a
        `PendingSensor`, whose reading tries again.
    """
    return [_open(each, hardware) for each in settings]


def _open(settings: Claiming, hardware: Hardware) -> Sensor:
    kind = find_kind(settings.kind)
    pending = PendingSensor(settings, lambda: kind.opener(settings, hardware))
    if pending.opened is not None:
        return pending.opened
    _log.warning("%s; it will be tried again", pending.error)
    return pending


def _parse(table: Mapping[str, Any], at: int, problems: list[str]) -> Claiming | None:
    path = f"sensor[{at}]"
    try:
        check_name(str(table["name"]))
        path = f"sensor.{table['name']}"
        kind = find_kind(table["kind"])
    except KeyError as error:
        known = ", ".join(map(repr, sorted(KINDS)))
        hint = f"one of {known}" if error.args == ("kind",) else "text"
        problems.append(f"{path}.{error.args[0]} must be given: {hint}")
        return None
    except FieldError as error:
        problems.append(f"{path}.{error}")
        return None
    problems += _wrong_unit(kind, table, path)
    try:
        return read(kind.settings, table, path)  # type: ignore[return-value]
    except SettingsError as error:
        problems += error.problems
        return _guess(kind, table)


def _guess(kind: Kind, table: Mapping[str, Any]) -> Claiming | None:
    """Settings without the unknown keys, to find the pins that clash as well."""
    known = {field.name for field in dataclasses.fields(kind.settings)}
    try:
        return read(  # type: ignore[return-value]
            kind.settings, {k: v for k, v in table.items() if k in known}
        )
    except SettingsError:
        return None


def _wrong_unit(kind: Kind, table: Mapping[str, Any], path: str) -> list[str]:
    unit = kind.settings.senml_unit
    if "unit" not in table or table["unit"] == unit:
        return []
    if issubclass(kind.settings, ProbeSettings):
        return []  # the installer chooses, among the units that its key allows
    rule = "left out" if unit is None else repr(unit)
    remedy = (
        "the readings are true or false"
        if unit is None
        else "the driver converts; give its other keys in the units they name"
    )
    return [str(FieldError(f"{path}.unit", rule, table["unit"], remedy))]
