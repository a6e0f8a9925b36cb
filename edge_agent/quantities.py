"""Quantities: the names of what sensors measure, and their units, here and as sent.

Triage groups readings by sensor into samples, in the units of its rules.

A driver declares its quantity, or the installer gives one as `measures`; triage
chooses its rules by it. A quantity that is not listed here is judged by limits only.

The backend chooses its rules by name and unit; it does not know the settings of a node:
rain in mm is a reading ``rain``, other readings in mm are displacement, and a node has
one gauge. A reading that would be judged as another quantity is sent as a secondary
value, which the backend only stores. The node's own rules, the state of its sensors and
``[[triage.limit]]`` use the names and units of the settings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, Protocol

from service_runtime.errors import FieldError
from slope_science.evidence.samples import TILT_AXES, SensorSample, is_finite_number
from slope_science.quality import FLAG_LABEL, Flag
from slope_science.reasons import Reason
from spatial_mqtt.reading_quantities import QUANTITIES, UNJUDGED_PART, parse_quantity
from spatial_mqtt.senml import Reading

RAIN = "rain"
TILT = "tilt"
DISPLACEMENT = "displacement"
WIRE = "wire is cut"
SHOCKS = "shocks"
WATER_CONTENT = "volumetric water content"
PORE_PRESSURE = "pore pressure"
WATER_LEVEL = "water level"

JUDGED = (
    RAIN,
    TILT,
    DISPLACEMENT,
    WIRE,
    SHOCKS,
    WATER_CONTENT,
    PORE_PRESSURE,
    WATER_LEVEL,
)
"""Quantities with rules in triage."""

DISTANCE = "distance from the site"
TEMPERATURE = "temperature"
AIR = "air in the housing"
MACHINE = "health of the machine"

INFORMATIONAL = (DISTANCE, TEMPERATURE, AIR, MACHINE)
"""Quantities of the drivers that are only informational."""

_SYNONYMS = {"vibration": SHOCKS}

_FACTORS: dict[str, dict[str | None, float]] = {
    RAIN: {"mm": 1.0, "cm": 10.0, "m": 1000.0},
    TILT: {"deg": 1.0},
    DISPLACEMENT: {"mm": 1.0, "cm": 10.0, "m": 1000.0},
    WIRE: {None: 1.0},
    SHOCKS: {"count": 1.0},
    WATER_CONTENT: {"/": 1.0, "/100": 0.01},
    PORE_PRESSURE: {"hPa": 0.1, "Pa": 0.001, "m": 9.80665},  # of water, to kPa
    WATER_LEVEL: {"m": 1.0, "cm": 0.01, "mm": 0.001},
}

_BACKEND_UNITS: dict[str, str | None] = {
    form.measures: form.unit
    for form in QUANTITIES.values()
    if form.measures is not None and form.measures in JUDGED
}
_BY_BACKEND_UNIT = {unit: q for q, unit in _BACKEND_UNITS.items() if q != RAIN}


def canonical_quantity(name: str) -> str:
    """The canonical name of a quantity; the normalized name itself when unknown."""
    plain = " ".join(name.casefold().split())
    return _SYNONYMS.get(plain, plain)


@lru_cache(maxsize=256)  # once for a sensor, not for each reading
def judged_quantity(name: str) -> str:
    """The quantity by which rules are chosen; other words for it are those of tables.

    A ``[[triage.limit]]`` applies to the quantity as it is written: its number is in
    the unit of that sensor.
    """
    plain = canonical_quantity(name)
    if plain in JUDGED:
        return plain
    try:
        form = QUANTITIES[parse_quantity(name)]
    except FieldError:
        return plain
    # the total of a gauge is no rain of one reading
    return plain if form.measures is None or form.is_sum else form.measures


def unit_factor(quantity: str, unit: str | None) -> float | None:
    """Factor from a SenML unit to the unit of the quantity's rules; None for no such.

    Rules are in mm, deg, m3/m3, kPa, and m of water level.
    """
    return _FACTORS.get(quantity, {}).get(unit)


def convertible_units(quantity: str) -> tuple[str | None, ...]:
    """The SenML units in which a quantity is judged."""
    return tuple(_FACTORS.get(quantity, {}))


def backend_unit(quantity: str, unit: str | None) -> tuple[str | None, float]:
    """Unit in which the backend judges a quantity, and the factor to it from a unit.

    A reading in a unit in which the quantity is not judged keeps it.
    """
    own, sent = unit_factor(quantity, unit), _BACKEND_UNITS.get(quantity, unit)
    wanted = unit_factor(quantity, sent)
    if own is None or wanted is None:
        return unit, 1.0
    return sent, own / wanted


def backend_quantity(name: str, unit: str | None) -> str | None:
    """Quantity for which the backend takes a reading; None if no rule judges it.

    Args:
        name: Name under which it is sent; one with a slash is a secondary value.
        unit: Unit in which it is sent.
    """
    if "/" in name:
        return None
    if name == RAIN and unit == _BACKEND_UNITS[RAIN]:
        return RAIN
    return _BY_BACKEND_UNIT.get(unit)


_UNUSABLE = {Flag.FAIL, Flag.MISSING}


class _Measuring(Protocol):
    @property
    def name(self) -> str:
        """Name of the sensor."""

    @property
    def quantity(self) -> str:
        """Measured quantity."""


class SensorDescription(_Measuring, Protocol):
    """Properties of a sensor that triage uses."""

    @property
    def senml_unit(self) -> str | None:
        """Unit of its readings."""


def read_flag(reading: Reading) -> Flag:
    """Quality flag of a reading at its source; good if it carries none."""
    flag = reading.extra.get(FLAG_LABEL, Flag.GOOD)
    is_known = isinstance(flag, int) and flag in set(Flag)
    return Flag(flag) if is_known else Flag.SUSPECT


def group_by_sensor(
    readings: Iterable[Reading], sensors: Mapping[str, SensorDescription], at_s: float
) -> dict[str, SensorSample]:
    """Group readings by sensor; those of unknown sensors are left out.

    Args:
        readings: Readings of one instant, of any sensors.
        sensors: The node's sensors by name.
        at_s: Time of the readings, in triage's own time.
    """
    found: dict[str, SensorSample] = {}
    for reading in readings:
        name, _, part = reading.name.partition("/")
        if name not in sensors:
            continue
        sample = found.setdefault(name, SensorSample(at_s))
        if part:
            _add_part(sample, part, reading)
        else:
            _add_main(sample, reading, sensors[name])
    return found


def _add_part(sample: SensorSample, part: str, reading: Reading) -> None:
    flag = read_flag(reading)
    if not is_finite_number(reading.value) or flag in _UNUSABLE:
        return
    sample.parts[part] = float(reading.value)  # type: ignore[arg-type]
    if flag is Flag.SUSPECT and part in TILT_AXES:
        sample.suspect_axes.add(part)
        return
    # contact closures too fast for rain came with this value
    sample.is_suspect |= flag is Flag.SUSPECT or part == "refused"


def _add_main(
    sample: SensorSample, reading: Reading, sensor: SensorDescription
) -> None:
    flag = read_flag(reading)
    sample.at_s += reading.time_s
    sample.is_suspect |= flag is Flag.SUSPECT
    quantity = judged_quantity(sensor.quantity)
    factor = unit_factor(quantity, reading.unit) or 1.0
    if is_finite_number(reading.sum):
        sample.sum = reading.sum * factor  # type: ignore[operator]
    if flag in _UNUSABLE:
        sample.is_failed = True
        sample.is_missing = flag is Flag.MISSING and reading.value is None
    elif isinstance(reading.value, bool):
        sample.value = reading.value
    elif is_finite_number(reading.value):
        sample.raw = float(reading.value)  # type: ignore[arg-type]
        sample.value = sample.raw * factor
    else:
        sample.is_failed = reading.value is not None


GAUGE: Final = "rain"
"""Name of a gauge's readings in the backend."""

_SENSOR_PARAMS: Final = ("sensor", "by")
"""Parameters of reasons that name a sensor."""


def find_sent_names(sensors: Iterable[_Measuring]) -> dict[str, str]:
    """Names under which the values of rain gauges are sent, where they differ.

    The first gauge is ``rain`` if no sensor has that name. Any other one is a secondary
    value such as ``north/rain``, which the backend stores and does not judge.
    """
    sensors = tuple(sensors)
    names = {sensor.name for sensor in sensors}
    # A gauge under another word for rain comes after those that were always one.
    gauges = [
        sensor.name
        for quantity_of in (canonical_quantity, judged_quantity)
        for sensor in sensors
        if quantity_of(sensor.quantity) == RAIN
    ]
    sent = {name: f"{name}/{GAUGE}" for name in gauges if name != GAUGE}
    if gauges and GAUGE not in names:
        sent[gauges[0]] = GAUGE
    return sent


class SentReadings:
    """Converts the readings of a node for the backend.

    Args:
        sensors: All sensors of the node.
    """

    def __init__(self, sensors: Iterable[_Measuring]) -> None:
        sensors = tuple(sensors)
        self._names: Mapping[str, str] = find_sent_names(sensors)
        self._quantities = {
            sensor.name: judged_quantity(sensor.quantity) for sensor in sensors
        }

    def convert(self, readings: Iterable[Reading]) -> list[Reading]:
        """The readings as they are sent."""
        return [self._convert(reading) for reading in readings]

    def convert_reason(self, reason: Reason) -> Reason:
        """A reason with the gauge named as its readings are, at any depth.

        The backend lowers a level by the flags of the readings that its reason names.
        Secondary values are those of the sensor before the slash.
        """
        changed: dict[str, object] = {}
        for name, value in reason.params.items():
            if isinstance(value, Reason):
                changed[name] = self.convert_reason(value)
            elif name in _SENSOR_PARAMS and isinstance(value, str):
                sensor, slash, part = value.partition("/")
                if self._names.get(sensor) == GAUGE:
                    changed[name] = f"{GAUGE}{slash}{part}"
        return reason.changed(**changed)

    def _convert(self, reading: Reading) -> Reading:
        sensor, slash, part = reading.name.partition("/")
        name = self._names.get(sensor, sensor)
        quantity = self._quantities.get(sensor, "")
        if isinstance(reading.value, bool) and (slash or quantity != WIRE):
            # the backend takes a truth value of any name for a trip wire
            reading = replace(reading, unit="/", value=float(reading.value))
        if slash:
            return replace(reading, name=f"{name}/{part}") if name == GAUGE else reading
        unit, factor = backend_unit(quantity, reading.unit)
        if unit_factor(quantity, reading.unit) is None:
            quantity = ""
        if backend_quantity(name, unit) not in {None, quantity}:
            name = f"{name}/{UNJUDGED_PART}"
        value = reading.value
        if factor == 1:
            return replace(reading, name=name)
        if isinstance(value, int | float):
            value = _without_noise(value * factor)
        total = None if reading.sum is None else _without_noise(reading.sum * factor)
        return replace(reading, name=name, unit=unit, value=value, sum=total)


def _without_noise(value: float) -> float:
    """Remove the rounding error of a conversion."""
    return float(f"{value:.12g}")
