"""Quantities of a table of readings: names and units, and convertible units.

One table for `backend-spark judge` and `edge-agent triage`; documented in
docs/reference/readings.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service_runtime.errors import FieldError

RAIN: Final = "rain"
RAIN_TOTAL: Final = "rain_total"
TILT_X: Final = "tilt_x"
TILT_Y: Final = "tilt_y"
HUMIDITY: Final = "humidity"
TEMPERATURE: Final = "temperature"
WIRE: Final = "wire"

UNJUDGED_PART: Final = "value"
"""Last part of the name of a reading that no rule judges, as in ``snow/value``, in a
unit of a judged quantity."""

Scale = tuple[float, float]
"""Factor and offset from a unit to the unit of the quantity."""

_LENGTHS_MM: Final = {
    "mm": (1.0, 0.0), "cm": (10.0, 0.0), "m": (1000.0, 0.0),
    "in": (25.4, 0.0), "inch": (25.4, 0.0),
}  # fmt: skip
_LENGTHS_M: Final = {
    unit: (factor / 1000.0, 0.0) for unit, (factor, _) in _LENGTHS_MM.items()
}
_ANGLES: Final = {
    "deg": (1.0, 0.0), "mdeg": (0.001, 0.0), "rad": (57.29577951308232, 0.0),
    "mrad": (0.05729577951308232, 0.0), "arcsec": (1 / 3600, 0.0),
}  # fmt: skip
_PRESSURES: Final = {
    "hPa": (1.0, 0.0), "kPa": (10.0, 0.0), "Pa": (0.01, 0.0), "mbar": (1.0, 0.0),
}  # fmt: skip
_WATER_PRESSURES: Final = _PRESSURES | {"m": (98.0665, 0.0), "cm": (0.980665, 0.0)}
_TEMPERATURES: Final = {
    "Cel": (1.0, 0.0), "degC": (1.0, 0.0), "K": (1.0, -273.15),
    "degF": (5 / 9, -160 / 9),
}  # fmt: skip
_SHARES: Final = {"/": (1.0, 0.0), "/100": (0.01, 0.0), "%": (0.01, 0.0)}
_COUNTS: Final = {"count": (1.0, 0.0), "": (1.0, 0.0)}
_NO_UNIT: Final = {"": (1.0, 0.0), "bool": (1.0, 0.0)}


@dataclass(frozen=True)
class QuantityForm:
    """How a quantity is written as a reading.

    Attributes:
        unit: SenML unit of the reading; None for a truth value.
        scales: Accepted units, each with its conversion to `unit`.
        part: Last part of the reading's name, as in ``tilt/x``; None for the sensor's
            own value.
        is_sum: Whether the number is a counter since an arbitrary start.
        measures: The node's name of the quantity, as in ``[[sensor]]``; None for a
            secondary value.
    """

    unit: str | None
    scales: Mapping[str, Scale]
    part: str | None = None
    is_sum: bool = False
    measures: str | None = None


QUANTITIES: Final[Mapping[str, QuantityForm]] = {
    RAIN: QuantityForm("mm", _LENGTHS_MM, measures="rain"),
    RAIN_TOTAL: QuantityForm("mm", _LENGTHS_MM, is_sum=True, measures="rain"),
    "refused": QuantityForm("count", _COUNTS, "refused"),
    TILT_X: QuantityForm("deg", _ANGLES, "x", measures="tilt"),
    TILT_Y: QuantityForm("deg", _ANGLES, "y", measures="tilt"),
    "tilt_noise": QuantityForm("deg", _ANGLES, "sigma"),
    TEMPERATURE: QuantityForm("Cel", _TEMPERATURES, measures="temperature"),
    HUMIDITY: QuantityForm("%RH", {"%RH": (1.0, 0.0), "%": (1.0, 0.0)}, "humidity"),
    "air_pressure": QuantityForm("hPa", _PRESSURES, "pressure"),
    "displacement": QuantityForm("mm", _LENGTHS_MM, measures="displacement"),
    WIRE: QuantityForm(None, _NO_UNIT, measures="wire is cut"),
    "shocks": QuantityForm("count", _COUNTS, measures="shocks"),
    "moisture": QuantityForm("/", _SHARES, measures="volumetric water content"),
    "pore_pressure": QuantityForm("hPa", _WATER_PRESSURES, measures="pore pressure"),
    "water_level": QuantityForm("m", _LENGTHS_M, measures="water level"),
    "voltage": QuantityForm("V", {"V": (1.0, 0.0), "mV": (0.001, 0.0)}),
}
"""Quantities by name; the temperature of a sensor with tilt or humidity is its part."""

_SYNONYMS: Final = {
    "rain_counter": RAIN_TOTAL,
    "rain_sum": RAIN_TOTAL,
    "wire_is_cut": WIRE,
    "vibration": "shocks",
    "soil_moisture": "moisture",
    "volumetric_water_content": "moisture",
    "wire_cut": WIRE,
    **dict.fromkeys(("rainfall", "雨量"), RAIN),
    **dict.fromkeys(
        (
            *("displacements", "crack_width", "crack_opening", "extension"),
            *("変位", "変位量", "伸縮量", "亀裂幅"),
        ),
        "displacement",
    ),
    **dict.fromkeys(("water_content", "soil_water_content", "体積含水率"), "moisture"),
    **dict.fromkeys(("pore_water_pressure", "間隙水圧"), "pore_pressure"),
    **dict.fromkeys(("stream_level", "river_level", "水位"), "water_level"),
}


def parse_quantity(text: str) -> str:
    """The name in `QUANTITIES`; case, blanks, ``-`` and ``/`` do not matter.

    Raises:
        FieldError: The quantity is unknown.
    """
    plain = "_".join(text.casefold().replace("-", " ").replace("/", " ").split())
    name = _SYNONYMS.get(plain, plain)
    if name not in QUANTITIES:
        raise FieldError("quantity", f"one of {', '.join(QUANTITIES)}", text)
    return name


def parse_unit(quantity: str, unit: str) -> Scale:
    """Conversion of a unit to that of the quantity.

    Raises:
        FieldError: The unit does not belong to the quantity.
    """
    scale = QUANTITIES[quantity].scales.get(unit)
    if scale is None:
        known = ", ".join(each or "empty" for each in QUANTITIES[quantity].scales)
        remedy = "convert the values, or correct the unit"
        raise FieldError("unit", f"one of {known} for {quantity}", unit, remedy)
    return scale
