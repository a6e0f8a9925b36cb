"""Moisture and pore pressure of a cell as evidence of its level."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from backend_spark.transforms.observation import (
    MOISTURE_UNIT,
    PORE_UNIT,
    Observation,
)
from backend_spark.transforms.steps import STEP_S
from slope_science.levels import Finding
from slope_science.quality import Flag
from slope_science.wetness import (
    SUCTION_H,
    Wetness,
    moisture_finding,
    pore_finding,
    seen,
)

HOUR_S = 3600.0


@dataclass
class Probe:
    """Readings of one sensor, in the order of time.

    Attributes:
        sensor: Its name, with the node's.
        unit: Of its readings.
        times_s: Unix times.
        values: Readings then.
    """

    sensor: str
    unit: str
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def seen(self, end_s: float, percentile: float | None) -> Wetness | None:
        """What it tells at the end of a step; the percentile is that of the step."""
        end = bisect_right(self.times_s, end_s)
        begin = bisect_right(self.times_s, end_s - (SUCTION_H + 1) * HOUR_S)
        hours = [(t - end_s) / HOUR_S for t in self.times_s[begin:end]]
        has_spoken = bool(hours) and hours[-1] > -STEP_S / HOUR_S
        share = percentile if has_spoken else None
        return seen(self.sensor, hours, self.values[begin:end], share)

    def finding(self, now: Wetness, rain_mm: float) -> Finding | None:
        """Judge it by its quantity."""
        judge = moisture_finding if self.unit == MOISTURE_UNIT else pore_finding
        return judge(now, rain_mm)


def probes(observations: Iterable[Observation]) -> Sequence[Probe]:
    """Sensors that are there for moisture or pore pressure; suspect readings out.

    A doubtful rain may be the storm and counts; a doubtful probe has lost its contact
    or its cable far more often than it has met a flood.
    """
    found: dict[str, Probe] = {}
    for o in sorted(observations, key=lambda o: o.at_s):
        is_ours = o.unit in {MOISTURE_UNIT, PORE_UNIT} and "/" not in o.name
        is_sure = o.counts and o.flag != Flag.SUSPECT
        if is_ours and is_sure and o.value is not None:
            sensor = f"{o.node} {o.name}"
            probe = found.setdefault(sensor, Probe(sensor, o.unit or ""))
            probe.times_s.append(o.at_s)
            probe.values.append(o.value)
    return list(found.values())


def wet_findings(
    known: Iterable[Probe],
    end_s: float,
    percentiles: Mapping[str, float],
    rain_mm: float,
) -> list[Finding | None]:
    """What the probes say at the end of a step.

    Args:
        known: Of the cell.
        end_s: That end.
        percentiles: Of the sensors that spoke in the step, by their name.
        rain_mm: Rain of the two hours up to then.
    """
    told: list[Finding | None] = []
    for probe in known:
        now = probe.seen(end_s, percentiles.get(probe.sensor))
        told.append(probe.finding(now, rain_mm) if now else None)
    return told
