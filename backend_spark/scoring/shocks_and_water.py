"""Shocks, water levels, soil moisture and pore pressure of a cell.

Shocks and steps of a water level confirm a cut wire; moisture and pore pressure are
supporting evidence. Shock counts of a single element have no meaning as absolute
numbers, so the limit is median + 8 MAD of the last 12 hours.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backend_spark.scoring.observation import (
    MOISTURE_UNIT,
    PORE_UNIT,
    STEP_S,
    Observation,
    step_end_s,
)
from slope_science.findings import Finding, judge_shocks
from slope_science.quality import Flag
from slope_science.soil_moisture import (
    SUCTION_H,
    SoilWetness,
    judge_moisture,
    judge_pore_pressure,
    summarize_wetness,
)
from slope_science.statistics import background_limit

WINDOWS: Final = 72
"""12 hours of ten minutes."""

MIN_WINDOWS: Final = 18
"""Three hours; minimum length of the background."""

MIN_COUNT: Final = 10.0
"""Minimum shocks in ten minutes that count."""

CONFIRM_S: Final = 120.0
"""Maximum time between two pieces of evidence."""

MIN_JUMP_M: Final = 0.3
"""Minimum change of a water level within ten minutes: a surge, or a debris dam."""


@dataclass
class ShockSeries:
    """Readings of one vibration sensor, in time order.

    Attributes:
        sensor: Node and name.
        times_s: Unix times of the readings.
        counts: Shocks since the previous reading.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    _sums: dict[int, float] | None = None

    def finding(self, end_s: int) -> Finding | None:
        """Finding for the ten minutes before the end of a step."""
        limit = self._limit(end_s)
        count = self._windows().get(end_s)
        if limit is None or count is None:
            return None
        return judge_shocks(self.sensor, count, limit)

    def was_active_near(self, at_s: float, end_s: int) -> bool:
        """Whether shocks exceeded the limit near a moment, by readings up to a step."""
        last = bisect_right(self.times_s, end_s)
        for at in range(bisect_left(self.times_s, at_s - CONFIRM_S), last):
            since_s = self.times_s[at - 1] if at else self.times_s[at] - STEP_S
            if since_s > at_s + CONFIRM_S:
                return False
            step_s = min(step_end_s(self.times_s[at]), end_s)
            if self.counts[at] > 0 and self.finding(step_s) is not None:
                return True
        return False

    def _limit(self, end_s: int) -> float | None:
        """Limit from the steps before one; None with too short a past."""
        sums = self._windows()
        ends_s = range(end_s - WINDOWS * STEP_S, end_s, STEP_S)
        past = [sums[each] for each in ends_s if each in sums]
        if len(past) < MIN_WINDOWS:
            return None
        return background_limit(past, MIN_COUNT)

    def _windows(self) -> dict[int, float]:
        """Shocks in each step that has a reading."""
        if self._sums is None:
            self._sums, before_s = {}, None
            for at_s, count in zip(self.times_s, self.counts, strict=True):
                gap_s = STEP_S if before_s is None else at_s - before_s
                # Counted over an outage: take the mean, or it would look like a burst.
                share = min(1.0, STEP_S / gap_s) if gap_s > 0 else 1.0
                end_s = step_end_s(at_s)
                self._sums[end_s] = self._sums.get(end_s, 0.0) + count * share
                before_s = at_s
        return self._sums


@dataclass
class WaterLevelSeries:
    """Readings of one water level, in time order.

    Attributes:
        sensor: Node and name.
        times_s: Unix times of the readings.
        metres: Levels.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    metres: list[float] = field(default_factory=list)

    def was_active_near(self, at_s: float, end_s: int) -> bool:
        """Whether it jumped near a moment, by readings up to a step."""
        until_s = min(at_s + CONFIRM_S + STEP_S, end_s)
        begin = bisect_left(self.times_s, at_s - CONFIRM_S - STEP_S)
        near = self.metres[begin : bisect_right(self.times_s, until_s)]
        return bool(near) and max(near) - min(near) >= MIN_JUMP_M


def group_shocks(
    readings: Iterable[tuple[str, float, float]],
) -> Sequence[ShockSeries]:
    """Group (sensor, Unix time, count) by sensor, in time order."""
    found: dict[str, ShockSeries] = {}
    for sensor, at_s, count in sorted(readings):
        one = found.setdefault(sensor, ShockSeries(sensor))
        one.times_s.append(at_s)
        one.counts.append(count)
    return list(found.values())


def group_water_levels(
    readings: Iterable[tuple[str, float, float]],
) -> Sequence[WaterLevelSeries]:
    """Group (sensor, Unix time, metres) by sensor, in time order."""
    found: dict[str, WaterLevelSeries] = {}
    for sensor, at_s, metres in sorted(readings):
        one = found.setdefault(sensor, WaterLevelSeries(sensor))
        one.times_s.append(at_s)
        one.metres.append(metres)
    return list(found.values())


HOUR_S = 3600.0


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
    contact or a damaged cable.
    """
    found: dict[str, SoilSeries] = {}
    for o in sorted(observations, key=lambda o: o.at_s):
        is_ours = o.unit in {MOISTURE_UNIT, PORE_UNIT} and "/" not in o.name
        is_good = o.counts and o.flag != Flag.SUSPECT
        if is_ours and is_good and o.value is not None:
            sensor = f"{o.node} {o.name}"
            probe = found.setdefault(sensor, SoilSeries(sensor, o.unit or ""))
            probe.times_s.append(o.at_s)
            probe.values.append(o.value)
    return list(found.values())


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
