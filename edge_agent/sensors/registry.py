"""Registry of sensor kinds: parsing, conflict checks and opening of a node's sensors.

A third-party package adds a kind with an entry point in the group
``yamamori.sensors``: its name is the kind, and it loads to a `SensorKind`.
"""

import dataclasses
import difflib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from edge_agent.sensors.ads1115 import (
    Ads1115Current,
    Ads1115CurrentSettings,
    Ads1115Voltage,
    Ads1115VoltageSettings,
)
from edge_agent.sensors.analog import (
    ExtensometerSensor,
    ExtensometerSettings,
    Piezometer,
    PiezometerSettings,
    SoilMoisture,
    SoilMoistureSettings,
)
from edge_agent.sensors.base import (
    Hardware,
    RetryingSensor,
    Sensor,
    SensorConfig,
    SensorSettings,
    check_sensor_name,
)
from edge_agent.sensors.bme280 import Bme280, Bme280Settings
from edge_agent.sensors.ds18b20 import Ds18b20, Ds18b20Settings
from edge_agent.sensors.generic_probe import ProbeSettings
from edge_agent.sensors.gnss import Gnss, GnssSettings
from edge_agent.sensors.machine import MachineHealth, MachineSettings
from edge_agent.sensors.modbus import ModbusProbe, ModbusSettings
from edge_agent.sensors.murata import Sca3300Settings, Scl3300Settings, open_murata
from edge_agent.sensors.rain_gauge_and_vibration import (
    RainGauge,
    RainGaugeSettings,
    Vibration,
    VibrationSettings,
)
from edge_agent.sensors.sdi12 import Sdi12Probe, Sdi12Settings
from edge_agent.sensors.tilt import (
    Adxl345Settings,
    Adxl355Settings,
    Lis3dh,
    Lis3dhSettings,
    open_adxl345,
    open_adxl355,
)
from edge_agent.sensors.trip_wire import (
    TripWire,
    TripWireEol,
    TripWireEolSettings,
    TripWireSettings,
)
from edge_agent.sensors.ultrasonic import Ultrasonic, UltrasonicSettings
from service_runtime.errors import FieldError
from service_runtime.settings import Problem, SettingsError, build_settings

_SPI0, _I2C1, _UART = (7, 11), (2, 3), (14, 15)
# An enabled bus takes all its pins: of SPI0 both chip selects, used or not.
_BUS_PINS: Mapping[str, tuple[int, int]] = {
    "SPI0.": _SPI0,
    "I2C1 ": _I2C1,
    "/dev/serial0 ": _UART,
    "/dev/ttyAMA0 ": _UART,
    "/dev/ttyS0 ": _UART,
}


def find_conflicts(sensors: Sequence[SensorConfig]) -> list[Problem]:
    """Find the sensors whose resources an earlier sensor already uses."""
    found = []
    for later, sensor in enumerate(sensors):
        earlier = itertools.product(sensor.claims, sensors[:later])
        for claim, other in earlier:
            taken = next((c for c in other.claims if _overlap(claim, c)), None)
            if taken is not None:
                found.append(_describe_conflict(sensor, claim, taken, other.name))
        found += _find_disagreements(sensor, sensors[:later])
    return found


def find_user(claim: str, sensors: Sequence[SensorConfig]) -> str | None:
    """Name of the sensor that uses a pin or chip, directly or by its bus; or None."""
    users = (s.name for s in sensors for c in s.claims if _overlap(claim, c))
    return next(users, None)


def _find_disagreements(
    sensor: SensorConfig, earlier: Sequence[SensorConfig]
) -> list[Problem]:
    """Find a shared place that an earlier sensor describes differently."""
    return [
        Problem(
            f"sensor.{sensor.name}",
            f"must give the same settings for {place} as sensor.{other.name}, "
            f"got {words} and not {other.shared_places[place]}",
            remedy="one place holds one chip or line",
        )
        for place, words in sensor.shared_places.items()
        for other in earlier
        if other.shared_places.get(place, words) != words
    ][:1]


def _overlap(one: str, other: str) -> bool:
    if one == other or one.startswith(other + " ") or other.startswith(one + " "):
        return True
    return _bus_pins(one, other) is not None or _bus_pins(other, one) is not None


def _bus_pins(bus: str, pin: str) -> tuple[int, int] | None:
    """First and last pin of a bus, if they include the pin."""
    number = pin.removeprefix("GPIO")
    if number == pin:
        return None
    for prefix, pins in _BUS_PINS.items():
        if bus.startswith(prefix) and pins[0] <= int(number) <= pins[1]:
            return pins
    return None


def _describe_conflict(
    sensor: SensorConfig, claim: str, taken: str, owner: str
) -> Problem:
    path = f"sensor.{sensor.name}"
    pins = _bus_pins(claim, taken)
    if claim.startswith("GPIO"):
        field, thing, value = "pin", "pin", claim.removeprefix("GPIO")
    elif pins is not None:
        bus = claim.partition(" ")[0].partition(".")[0]
        rule = f"needs {bus}, which owns GPIO {pins[0]} to {pins[1]}, "
        remedy = f"move sensor.{owner} to another pin"
        return Problem(path, f"{rule}but sensor.{owner} uses {taken}", remedy=remedy)
    elif claim == taken and " channel " in claim:
        field, thing, value = "channel", "channel", claim.rpartition(" ")[2]
    elif claim.startswith("SPI0."):
        field, thing, value = "device", "chip select", claim[5:6]
    else:
        rule = f"needs {claim}, which sensor.{owner} uses"
        return Problem(path, rule, remedy="choose another")
    rule = f"must be a {thing} of its own, got {value}, which sensor.{owner} uses"
    return Problem(f"{path}.{field}", rule, remedy=f"choose another {thing}")


SENSOR_ENTRY_POINTS = "yamamori.sensors"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SensorKind:
    """A kind of sensor.

    Attributes:
        settings: Settings class; it also gives quantity, unit and claims.
        opener: Opens a sensor. Raises `SensorError` or an error of the pin library.
    """

    settings: type[SensorSettings]
    opener: Callable[[Any, Hardware], Sensor]


SENSOR_KINDS: Mapping[str, SensorKind] = {
    "adxl345": SensorKind(Adxl345Settings, open_adxl345),
    "ads1115-current": SensorKind(Ads1115CurrentSettings, Ads1115Current),
    "ads1115-voltage": SensorKind(Ads1115VoltageSettings, Ads1115Voltage),
    "bme280": SensorKind(Bme280Settings, Bme280),
    "ds18b20": SensorKind(Ds18b20Settings, Ds18b20),
    "extensometer": SensorKind(ExtensometerSettings, ExtensometerSensor),
    "gnss": SensorKind(GnssSettings, Gnss),
    "lis3dh": SensorKind(Lis3dhSettings, Lis3dh),
    "modbus": SensorKind(ModbusSettings, ModbusProbe),
    "node": SensorKind(MachineSettings, MachineHealth),
    "piezometer": SensorKind(PiezometerSettings, Piezometer),
    "rain-gauge": SensorKind(RainGaugeSettings, RainGauge),
    "sca3300": SensorKind(Sca3300Settings, open_murata),
    "scl3300": SensorKind(Scl3300Settings, open_murata),
    "sdi12": SensorKind(Sdi12Settings, Sdi12Probe),
    "soil-moisture": SensorKind(SoilMoistureSettings, SoilMoisture),
    "tilt": SensorKind(Adxl355Settings, open_adxl355),
    "ultrasonic": SensorKind(UltrasonicSettings, Ultrasonic),
    "vibration": SensorKind(VibrationSettings, Vibration),
    "wire": SensorKind(TripWireSettings, TripWire),
    "wire-eol": SensorKind(TripWireEolSettings, TripWireEol),
}


def find_sensor_kind(name: object) -> SensorKind:
    """Find a kind by name, built in or from an installed package.

    Raises:
        FieldError: There is none; the message suggests the nearest name.
    """
    if isinstance(name, str) and name in SENSOR_KINDS:
        return SENSOR_KINDS[name]
    foreign = {point.name: point for point in entry_points(group=SENSOR_ENTRY_POINTS)}
    if isinstance(name, str) and name in foreign:
        kind: SensorKind = foreign[name].load()
        return kind
    known = sorted({*SENSOR_KINDS, *foreign})
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else "install its package"
    raise FieldError("kind", f"one of {', '.join(map(repr, known))}", name, remedy)


def parse_sensors(tables: Sequence[Mapping[str, Any]]) -> tuple[SensorConfig, ...]:
    """Parse the settings of a node's sensors from the ``[[sensor]]`` tables.

    Raises:
        SettingsError: Lists every mistake in every table.
    """
    problems: list[Problem] = []
    parsed = [_parse(table, at, problems) for at, table in enumerate(tables, 1)]
    settings = tuple(s for s in parsed if s is not None)
    named = Counter(str(table["name"]) for table in tables if "name" in table)
    problems += [
        Problem(
            f"sensor.{name}",
            f"must be named once, got {count} sensors of that name",
            remedy="rename all but one",
        )
        for name, count in named.items()
        if count > 1
    ]
    problems += find_conflicts(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def open_sensors(settings: Sequence[SensorConfig], hardware: Hardware) -> list[Sensor]:
    """Open a node's sensors; one that fails never stops the others.

    Returns:
        One for each of the settings, in order. A sensor that did not open is a
        `RetryingSensor`, whose reads try again.
    """
    return [_open(each, hardware) for each in settings]


def _open(settings: SensorConfig, hardware: Hardware) -> Sensor:
    kind = find_sensor_kind(settings.kind)
    pending = RetryingSensor(settings, lambda: kind.opener(settings, hardware))
    if pending.open_sensor is not None:
        return pending.open_sensor
    _log.warning("%s; it will be tried again", pending.error)
    return pending


def _parse(
    table: Mapping[str, Any], at: int, problems: list[Problem]
) -> SensorConfig | None:
    path = f"sensor[{at}]"
    try:
        check_sensor_name(str(table["name"]))
        path = f"sensor.{table['name']}"
        kind = find_sensor_kind(table["kind"])
    except KeyError as error:
        known = ", ".join(map(repr, sorted(SENSOR_KINDS)))
        hint = f"one of {known}" if error.args == ("kind",) else "text"
        problems.append(Problem(f"{path}.{error.args[0]}", f"must be given: {hint}"))
        return None
    except FieldError as error:
        problems.append(Problem.of(error).under(path))
        return None
    problems += _wrong_unit(kind, table, path)
    try:
        return build_settings(kind.settings, table, path)  # type: ignore[return-value]
    except SettingsError as error:
        problems += error.problems
        return _parse_known_keys(kind, table)


def _parse_known_keys(
    kind: SensorKind, table: Mapping[str, Any]
) -> SensorConfig | None:
    """Settings without the unknown keys, so that conflicts are found as well."""
    known = {field.name for field in dataclasses.fields(kind.settings)}
    try:
        return build_settings(  # type: ignore[return-value]
            kind.settings, {k: v for k, v in table.items() if k in known}
        )
    except SettingsError:
        return None


def _wrong_unit(kind: SensorKind, table: Mapping[str, Any], path: str) -> list[Problem]:
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
    return [Problem(f"{path}.unit", f"must be {rule}", table["unit"], remedy)]
