"""Soil moisture and pore pressure of a cell: supporting evidence."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from backend_spark.scoring.observation import (
    MOISTURE_UNIT,
    PORE_UNIT,
    STEP_S,
    Observation,
)
from slope_science.findings import Finding
from slope_science.quality import Flag
from slope_science.soil_moisture import (
    SUCTION_H,
    SoilWetness,
    judge_moisture,
    judge_pore_pressure,
    summarize_wetness,
)

HOUR_S = 3600.0
_UNITS: Final = frozenset({MOISTURE_UNIT, PORE_UNIT})


@dataclass
class SoilSeries:
    """Readings of one soil sensor, in time order.

    Attributes:
        sensor: Node and name.
        unit: Unit of the readings.
        times_s: Unix times of the readings.
        values: Readings.
    """

    sensor: str
    unit: str
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def wetness(self, end_s: float, percentile: float | None) -> SoilWetness | None:
        """State at the end of a step; the percentile is that of the step."""
        end = bisect_right(self.times_s, end_s)
        begin = bisect_right(self.times_s, end_s - (SUCTION_H + 1) * HOUR_S)
        hours = [(t - end_s) / HOUR_S for t in self.times_s[begin:end]]
        has_reading = bool(hours) and hours[-1] > -STEP_S / HOUR_S
        share = percentile if has_reading else None
        return summarize_wetness(self.sensor, hours, self.values[begin:end], share)

    def finding(self, now: SoilWetness, rain_mm: float) -> Finding | None:
        """Finding by its quantity."""
        judge = judge_moisture if self.unit == MOISTURE_UNIT else judge_pore_pressure
        return judge(now, rain_mm)


def group_soil(observations: Iterable[Observation]) -> Sequence[SoilSeries]:
    """Moisture and pore pressure sensors, without suspect readings.

    Suspect rain may be the storm and counts; a suspect soil reading is mostly a lost
    contact or a damaged cable. Sensors are in the order of their names, whichever
    reading is the first.
    """
    found: dict[str, SoilSeries] = {}
    ours = (o for o in observations if o.unit in _UNITS and "/" not in o.name)
    for o in sorted(ours, key=attrgetter("at_s")):
        is_good = o.counts and o.flag != Flag.SUSPECT
        if is_good and o.value is not None:
            sensor = f"{o.node} {o.name}"
            probe = found.setdefault(sensor, SoilSeries(sensor, o.unit or ""))
            probe.times_s.append(o.at_s)
            probe.values.append(o.value)
    return [found[sensor] for sensor in sorted(found)]


def judge_soil(
    known: Iterable[SoilSeries],
    end_s: float,
    percentiles: Mapping[str, float],
    rain_mm: float,
) -> list[Finding | None]:
    """Findings of soil sensors at the end of a step.

    Args:
        known: Soil sensors of the cell.
        end_s: End of the step.
        percentiles: Percentiles by sensor with a reading in the step.
        rain_mm: Rain of the two hours before.
    """
    found: list[Finding | None] = []
    for probe in known:
        now = probe.wetness(end_s, percentiles.get(probe.sensor))
        found.append(probe.finding(now, rain_mm) if now else None)
    return found
