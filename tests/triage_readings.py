"""Sensors and readings for tests of triage."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edge_agent.triage.engine import Triage, TriageResult
from slope_science.quality import FLAG_LABEL
from spatial_mqtt.senml import Reading

START_S = 1_700_000_400.0
"""A multiple of 10 minutes."""

HOUR_S = 3600.0


@dataclass(frozen=True)
class Measured:
    """The attributes of a sensor that triage uses."""

    name: str
    quantity: str
    senml_unit: str | None


RAIN = Measured("rain", "rain", "mm")
TILT = Measured("tilt", "tilt", "deg")
WIRE = Measured("w", "wire is cut", None)
CRACK = Measured("crack", "displacement", "mm")
SHOCKS = Measured("shocks", "shocks", "count")
SOIL = Measured("soil", "volumetric water content", "/")
PORE = Measured("pore", "pore pressure", "hPa")
STREAM = Measured("stream", "water level", "m")


def flagged(reading: Reading, flag: int) -> Reading:
    """A reading with a QARTOD flag."""
    return replace(reading, extra={FLAG_LABEL: flag})


def rain(value_mm: float, sum_mm: float) -> Reading:
    """A reading of the rain gauge."""
    return Reading("rain", "mm", value_mm, sum_mm)


def tilt(x_deg: float, y_deg: float = 0.0, sigma_deg: float = 0.0) -> list[Reading]:
    """A reading of the tilt sensor."""
    axes = {"x": x_deg, "y": y_deg, "sigma": sigma_deg}
    return [Reading(f"tilt/{axis}", "deg", value) for axis, value in axes.items()]


def wire(*, is_cut: bool, name: str = "w") -> Reading:
    """A reading of a wire."""
    return Reading(name, None, is_cut)


def run(
    triage: Triage, series: Iterable[Sequence[Reading]], every_s: float = 600.0
) -> list[TriageResult]:
    """Results of triage for readings at equal intervals."""
    return [
        triage.assess(readings, START_S + at * every_s)
        for at, readings in enumerate(series)
    ]
