"""Columns beside the level: rain sums, margins, percentiles, completeness."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final

from backend_spark.scoring.observation import (
    MOISTURE_UNIT,
    PORE_UNIT,
    STEP_S,
    Observation,
    step_end_s,
)
from backend_spark.scoring.rain import NO_RAIN_PAST, RainPast, StepRain
from slope_science.criteria import LINE_LEVEL, Criteria
from slope_science.findings import Finding
from slope_science.rain_and_soil_water import (
    ANTECEDENT_DAYS,
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    STEPS_PER_HOUR,
    TEN_MINUTES_H,
    LookAhead,
    SnakePoint,
    SoilWater,
    antecedent_index,
    critical_line_margin_mm,
    effective_rain,
    judge_look_ahead,
    look_ahead,
    project_snake_line,
)
from slope_science.rain_forecast import NO_FORECAST, ForecastRain
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason

STEPS_PER_DAY: Final = 86_400 // STEP_S
SETTLED_DAYS: Final = 59
"""Days after which the assumption of dry soil at the start has no effect. A day less
than the horizon, so that rows can be that old."""

MIN_PAST_S: Final = 14 * 86_400
"""Minimum past of a sensor for a percentile."""

PERCENTILE_RESOLUTIONS: Final = {MOISTURE_UNIT: 0.0001, PORE_UNIT: 0.1}
"""Resolution of percentiles, so that a distribution stays small."""


@dataclass(frozen=True)
class RainSums:
    """Rain sums of a cell at each step.

    Attributes:
        short_mm: Effective rain with a half-life of 1.5 h.
        long_mm: With 72 h.
        totals_mm: Cumulative rain at the end of each step, beginning with saved ones.
        known: Cumulative number of steps with known rain, likewise.
        before: Number of saved steps.
    """

    short_mm: Sequence[float]
    long_mm: Sequence[float]
    totals_mm: Sequence[float]
    known: Sequence[int]
    before: int = 0

    @classmethod
    def from_steps(
        cls, series: Sequence[StepRain], past: RainPast = NO_RAIN_PAST
    ) -> "RainSums":
        """Accumulate the rain of all steps, starting from a saved state."""
        depths = [step.depth_mm for step in series]
        known = [*past.known, *(step.is_known for step in series)]
        return cls(
            effective_rain(depths, TEN_MINUTES_H, SHORT_HALF_LIFE_H, past.short_mm),
            effective_rain(depths, TEN_MINUTES_H, LONG_HALF_LIFE_H, past.long_mm),
            list(accumulate((*past.depths_mm, *depths), initial=0.0)),
            list(accumulate(known, initial=0)),
            len(past.known),
        )

    def antecedent_mm(self, at: int) -> float:
        """Antecedent index at the end of a step; days before the data count as dry."""
        end = self.before + at + 1
        ends = [max(0, end - day * STEPS_PER_DAY) for day in range(ANTECEDENT_DAYS + 1)]
        days = [self.totals_mm[a] - self.totals_mm[b] for a, b in pairwise(ends)]
        return antecedent_index([max(0.0, day) for day in days])

    def rain_mm(self, at: int, hours: float) -> float:
        """Known rain of the hours before the end of a step."""
        end = self.before + at + 1
        before = max(0, end - round(hours * STEPS_PER_HOUR))
        return self.totals_mm[end] - self.totals_mm[before]

    def completeness(self, at: int) -> float:
        """Share of the last 24 hours with known rain."""
        end = self.before + at + 1
        known = self.known[end] - self.known[max(0, end - STEPS_PER_DAY)]
        return known / STEPS_PER_DAY


@dataclass(frozen=True)
class CellOutlook:
    """The look-ahead under three assumed rains; see slope_science.rain_and_soil_water.

    Attributes:
        margin_mm: Soil water index below the critical line now; None without one.
        dry: Result without rain.
        same_rain: With the rain of the last hour; None if unknown.
        forecast: With an official forecast; None without a usable one.
        forecast_rain: That forecast.
    """

    margin_mm: float | None
    dry: LookAhead
    same_rain: LookAhead | None = None
    forecast: LookAhead | None = None
    forecast_rain: ForecastRain = NO_FORECAST

    def finding(self, criteria: Criteria, *, same_rain: bool = False) -> Finding | None:
        """Finding of the look-ahead.

        Args:
            criteria: Of the cell.
            same_rain: Whether the last hour's rain replaces a forecast, without one.
        """
        if self.forecast is None:
            ahead = self.same_rain if same_rain else None
            return judge_look_ahead(ahead, criteria) if ahead else None
        source, issued_s = (
            self.forecast_rain.source or "",
            self.forecast_rain.issued_s or 0.0,
        )
        return judge_look_ahead(self.forecast, criteria, source, issued_s)

    def columns(self) -> dict[str, Any]:
        """Columns of schemas.LEVELS."""
        issued_s = self.forecast_rain.issued_s
        found: dict[str, Any] = {
            "margin_mm": self.margin_mm,
            "forecast_source": self.forecast_rain.source,
            "forecast_issued_at": None if issued_s is None else round(issued_s * 1e6),
            "forecast_mm": self.forecast_rain.depths_mm,
            "forecast_why": self.forecast_rain.why,
        }
        futures = {"dry": self.dry, "same": self.same_rain, "forecast": self.forecast}
        for name, future in futures.items():
            found[f"margin_{name}_mm"] = future and future.margin_mm
            found[f"level_{name}"] = future and future.level
        return found


def make_outlook(
    tanks: SoilWater,
    hour: Sequence[StepRain],
    criteria: Criteria,
    coming: ForecastRain = NO_FORECAST,
) -> CellOutlook:
    """Look ahead of a moment, by the hours of the criteria.

    Args:
        tanks: Water in the soil at that time.
        hour: Result of `last_hour`.
        criteria: Criteria of the cell.
        coming: Official forecast of rain from then on.
    """
    depths = [step.depth_mm for step in hour]
    known = [step.depth_mm for step in hour if step.is_known]
    now = SnakePoint(sum(depths), tanks.index_mm)

    def future(depths_mm: Sequence[float]) -> LookAhead:
        return look_ahead(now, project_snake_line(tanks, depths, depths_mm), criteria)

    steps = criteria.look_ahead_steps
    dry = future([0.0] * steps)
    # The mean of the known steps only: unknown ones are not dry.
    mean_mm = sum(known) / len(known) if known else None
    same = future([mean_mm] * steps) if mean_mm else dry
    return CellOutlook(
        critical_line_margin_mm(now, criteria),
        dry,
        None if mean_mm is None else same,
        None if coming.depths_mm is None else future(coming.depths_mm[:steps]),
        coming,
    )


def list_assumptions(
    criteria: Criteria, history_s: float, view: CellOutlook | None = None
) -> tuple[Reason, ...]:
    """Assumptions behind a level and its futures."""
    found = []
    if criteria.assumed:
        found.append(_DEFAULT_CRITERIA)
    elif not criteria.line and LINE_LEVEL not in criteria.not_judged:
        found.append(_DEFAULT_LINE)
    if criteria.special_assumed:
        found.append(_DEFAULT_SPECIAL)
    found += not_judged_reasons(criteria)
    if history_s < SETTLED_DAYS * 86_400:
        found.append(_dry_start(round(history_s / 86_400)))
    if view is not None and view.forecast is None:
        found.append(_NO_FORECAST)
    return tuple(found)


@lru_cache(maxsize=1024)
def not_judged_reasons(criteria: Criteria) -> tuple[Reason, ...]:
    """Reason that names the levels which the prefecture does not judge, if any."""
    levels = ", ".join(map(str, criteria.not_judged))
    return (Reason(ReasonCode.NOT_JUDGED, levels=levels),) if levels else ()


@lru_cache(maxsize=SETTLED_DAYS + 1)
def _dry_start(days: int) -> Reason:
    return Reason(ReasonCode.DRY_START, days=days)


@lru_cache(maxsize=1024)
def assumption_sentence(assumption: Reason) -> str:
    """An assumption in English; cached, because each row of levels has several."""
    return render_english(assumption)


_DEFAULT_CRITERIA: Final = Reason(ReasonCode.DEFAULT_CRITERIA)
_DEFAULT_LINE: Final = Reason(ReasonCode.DEFAULT_LINE)
_DEFAULT_SPECIAL: Final = Reason(ReasonCode.DEFAULT_SPECIAL)
_NO_FORECAST: Final = Reason(ReasonCode.NO_FORECAST)


@dataclass(frozen=True)
class ValueDistribution:
    """Distribution of the values of a sensor so far.

    Attributes:
        first_s: Unix time of the first value.
        steps: Distinct values, ascending, in multiples of the resolution.
        counts: Number of each.
    """

    first_s: float
    steps: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, step: int) -> None:
        """Add a value."""
        at = bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            self.steps.insert(at, step)
            self.counts.insert(at, 0)
        self.counts[at] += 1

    def percentile(self, step: int) -> float:
        """Share of the values up to this one, in percent."""
        below = sum(self.counts[: bisect_right(self.steps, step)])
        return 100 * below / sum(self.counts)

    def copy(self) -> "ValueDistribution":
        """An independent copy."""
        return ValueDistribution(self.first_s, list(self.steps), list(self.counts))


@dataclass
class SensorPercentiles:
    """Percentiles of readings within the sensors' own past.

    Attributes:
        unit: Unit of the readings.
        pasts: Distributions by node and sensor.
    """

    unit: str
    pasts: dict[str, ValueDistribution]
    _steps: dict[int, dict[str, float]] = field(default_factory=dict)

    def add(self, o: Observation) -> None:
        """Add a reading; calls must be in time order."""
        is_ours = o.unit == self.unit and "/" not in o.name
        if not is_ours or o.value is None or not o.counts:
            return
        sensor = f"{o.node} {o.name}"
        past = self.pasts.setdefault(sensor, ValueDistribution(o.at_s))
        step = round(o.value / PERCENTILE_RESOLUTIONS[self.unit])
        past.add(step)
        if o.at_s - past.first_s >= MIN_PAST_S:
            shares = self._steps.setdefault(step_end_s(o.at_s), {})
            shares[sensor] = past.percentile(step)

    def by_sensor(self, end_s: int) -> Mapping[str, float]:
        """The last percentile, 0 to 100, of each sensor with a reading in a step."""
        return self._steps.get(end_s, {})

    def highest(self, end_s: int) -> float | None:
        """The highest of them; None without any."""
        return max(self.by_sensor(end_s).values(), default=None)


def find_percentiles(
    observations: Iterable[Observation],
    pasts: Mapping[str, ValueDistribution],
    after_s: float,
    due: Iterable[int],
) -> tuple[dict[str, SensorPercentiles], dict[int, dict[str, ValueDistribution]]]:
    """Percentiles of moisture and pore pressure, and the distributions at some times.

    Args:
        observations: Readings in time order.
        pasts: Distributions up to a moment.
        after_s: That moment: only later readings are new.
        due: Later times, ascending.
    """
    ours = {name: past.copy() for name, past in pasts.items()}
    units = {"moisture_percentile": MOISTURE_UNIT, "pore_percentile": PORE_UNIT}
    found = {name: SensorPercentiles(unit, ours) for name, unit in units.items()}
    kept: dict[int, dict[str, ValueDistribution]] = {}
    coming = deque(due)
    for o in observations:
        while coming and o.at_s > coming[0]:
            kept[coming.popleft()] = {n: past.copy() for n, past in ours.items()}
        if o.at_s > after_s and o.unit in PERCENTILE_RESOLUTIONS:
            for each in found.values():
                each.add(o)
    return found, kept
