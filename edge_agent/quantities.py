"""Quantities: the names of what sensors measure, and their units.

A driver declares its quantity, or the installer gives one as `measures`; triage
chooses its rules by it. A quantity that is not listed here is judged by limits only.
"""

from functools import lru_cache

from service_runtime.errors import FieldError
from spatial_mqtt.reading_quantities import QUANTITIES, parse_quantity

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
