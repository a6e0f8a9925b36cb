"""Rain predictors; their skill by day, and that of levels by hour, with intervals.

A predictor is on a grid that every length of step has in common: a step is shared
evenly among sub-steps of at most ten minutes, a whole number of which makes an hour.
The soil water index and the 60-minute rain need them.

The 95 % intervals are of a moving-block bootstrap over days. A resample is kept as the
number of times that each day is in it, so that a statistic of sorted or counted days
costs one pass of numpy.

Source: Künsch 1989 (moving blocks); Mason and Graham 2002 (area under the ROC curve).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from backend_spark.evaluation.inputs import HOUR, EvaluationRain, LandslideTable
from slope_science.levels import EMERGENCY, LOWEST, Criteria, compute_rain_level
from slope_science.rain_and_soil_water import (
    ANTECEDENT_DAYS,
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    antecedent_index,
    effective_rain,
    rain_60min,
    step_tanks,
)
from slope_science.skill import (
    Contingency,
    LeadTime,
    Slide,
    area_under_roc,
    best_threshold,
    duration_matrix,
    lead_time,
    merge_slides,
    safe_threshold,
)

HOUR_S: Final = 3600
DAY_H: Final = 24.0
MAX_SUB_STEP_S: Final = 600
"""Ten minutes, as in official soil water indices."""

# Chleborad et al. 2008: 72-hour rain against that of the 360 hours before, in mm.
_CT_START_MM, _CT_SLOPE = 88.9, -0.67
_RECENT_H, _OLDER_H = 72.0, 360.0

Compute = Callable[[EvaluationRain], list[float]]

RESAMPLES: Final = 1000
BLOCK_DAYS: Final = 30
"""Length of a block: neighbouring days share their weather."""

_TAIL: Final = 0.025

_AT_ONCE: Final = 100
"""Resamples in one pass: bounds the memory of many years of days."""

Interval = tuple[float, float] | None
Weights = npt.NDArray[np.int16]
"""Number of times that each day (column) is in each resample (row)."""

Statistic = Callable[[Weights], npt.NDArray[np.float64]]
"""Value for each resample; NaN where it is undefined."""


@dataclass(frozen=True)
class Predictor:
    """A number at the end of each step, in mm.

    Attributes:
        compute: Function of a series.
        memory_h: Window or half-life: no step may be longer.
        has_window: Whether the memory must be a whole number of steps.
        column: Column of gold that holds the same number; None without.
    """

    compute: Compute
    memory_h: float
    has_window: bool = False
    column: str | None = None

    def unfit_reason(self, step_h: float) -> str | None:
        """Why it has no meaning at a length of step; None if it has."""
        if step_h > self.memory_h:
            return f"needs steps of at most {self.memory_h:g} h"
        steps = self.memory_h / step_h
        if self.has_window and abs(steps - round(steps)) > 1e-9:  # noqa: PLR2004 - rounding
            return f"needs a whole number of steps in {self.memory_h:g} h"
        return None


def known_depths(series: EvaluationRain) -> list[float]:
    """Depths with zero for unknown steps: sums are lower bounds there."""
    return [depth or 0.0 for depth in series.depth_mm]


def soil_water_series_mm(series: EvaluationRain) -> list[float]:
    """Soil water index at the end of each step."""
    per_step = _per_step(series)
    step_h = series.step_h / per_step
    found, tanks = [], (0.0, 0.0, 0.0)
    for depth_mm in known_depths(series):
        share_mm = depth_mm / per_step
        for _ in range(per_step):
            tanks = step_tanks(*tanks, share_mm, step_h)
        found.append(sum(tanks))
    return found


def judge_rain_series(series: EvaluationRain, criteria: Criteria) -> list[int]:
    """Level of the rain at the end of each step, which is an hour or shorter."""
    per_step = _per_step(series)
    depths = [d / per_step for d in known_depths(series) for _ in range(per_step)]
    hour_mm = rain_60min(depths, series.step_h / per_step)[per_step - 1 :: per_step]
    pairs = zip(hour_mm, soil_water_series_mm(series), strict=True)
    return [compute_rain_level(r60_mm, swi_mm, criteria) for r60_mm, swi_mm in pairs]


def _per_step(series: EvaluationRain) -> int:
    """Number of sub-steps of a step."""
    step_s = round(series.step.total_seconds())
    common_s = math.gcd(step_s, HOUR_S)
    return step_s // common_s * math.ceil(common_s / MAX_SUB_STEP_S)


def _sum_of(hours: float) -> Compute:
    def rain_mm(series: EvaluationRain) -> list[float]:
        return _sums(known_depths(series), round(hours / series.step_h))

    return rain_mm


def _effective(half_life_h: float) -> Compute:
    def rain_mm(series: EvaluationRain) -> list[float]:
        return effective_rain(known_depths(series), series.step_h, half_life_h)

    return rain_mm


def _antecedent(series: EvaluationRain) -> list[float]:
    """Antecedent rainfall index of the last seven times 24 hours, in mm per day."""
    a_day = round(DAY_H / series.step_h)
    sums = _sums(known_depths(series), a_day)
    return [
        antecedent_index([
            sums[end - back * a_day] if end >= back * a_day else 0.0
            for back in range(ANTECEDENT_DAYS)
        ])
        for end in range(len(sums))
    ]


def _over_seattle_line(series: EvaluationRain) -> list[float]:
    """How far the 3-day rain is above the line of the 15 days before."""
    recent, older = (round(hours / series.step_h) for hours in (_RECENT_H, _OLDER_H))
    depths = known_depths(series)
    both = _sums(depths, recent + older)
    return [
        last - (_CT_START_MM + _CT_SLOPE * (whole - last))
        for last, whole in zip(_sums(depths, recent), both, strict=True)
    ]


def _sums(depths: Sequence[float], steps: int) -> list[float]:
    """Moving sums over a number of steps."""
    total = [0.0, *accumulate(depths)]
    # Rounding errors would separate days with equal rain.
    return [
        round(total[end] - total[max(0, end - steps)], 6)
        for end in range(1, len(total))
    ]


PREDICTORS: Final[dict[str, Predictor]] = {
    "swi": Predictor(soil_water_series_mm, DAY_H, column="swi_mm"),
    "effective72": Predictor(
        _effective(LONG_HALF_LIFE_H), DAY_H, column="effective_72h_mm"
    ),
    "effective1.5": Predictor(
        _effective(SHORT_HALF_LIFE_H), SHORT_HALF_LIFE_H, column="effective_1h5_mm"
    ),
    "rain72": Predictor(_sum_of(72), 72.0, has_window=True),
    "rain24": Predictor(_sum_of(DAY_H), DAY_H, has_window=True),
    "rain1": Predictor(_sum_of(1), 1.0, has_window=True),
    "antecedent": Predictor(
        _antecedent, DAY_H, has_window=True, column="antecedent_mm_per_day"
    ),
    "seattle": Predictor(_over_seattle_line, 72.0, has_window=True),
}
"""By the name on the command line; all in mm, the antecedent index in mm per day."""


@dataclass(frozen=True)
class DayBootstrap:
    """Resamples of some days.

    Attributes:
        count: Number of days.
        seed: Of the random numbers; the same seed gives the same resamples.
    """

    count: int
    seed: int

    def interval(self, statistic: Statistic) -> Interval:
        """95 % interval of a statistic; None if most resamples do not define it."""
        if not self.count:
            return None
        parts = np.split(self.resamples, range(_AT_ONCE, RESAMPLES, _AT_ONCE))
        values = np.concatenate([statistic(part) for part in parts])
        found = np.sort(values[~np.isnan(values)])
        if len(found) < RESAMPLES / 2:
            return None
        last = len(found) - 1
        return float(found[round(_TAIL * last)]), float(
            found[round((1 - _TAIL) * last)]
        )

    @cached_property
    def resamples(self) -> Weights:
        """All resamples; one set serves all predictors."""
        draw = Random(self.seed).randrange  # noqa: S311 - statistics, no secret
        return np.stack([self._resample(draw) for _ in range(RESAMPLES)])

    def _resample(self, draw: Callable[[int], int]) -> Weights:
        length = min(BLOCK_DAYS, self.count)
        blocks = -(-self.count // length)
        starts = np.array([draw(self.count - length + 1) for _ in range(blocks)])
        days = (starts[:, None] + np.arange(length)).ravel()[: self.count]
        return np.bincount(days, minlength=self.count).astype(np.int16)


def roc_statistic(scores: Sequence[float], events: Sequence[bool]) -> Statistic:
    """Area under the ROC curve of a resample; ties count half."""
    order = np.argsort(scores, kind="stable")
    ranked = np.asarray(scores)[order]
    struck = np.asarray(events, dtype=bool)[order]
    ties = np.flatnonzero(np.diff(ranked, prepend=-np.inf))

    def area(weights: Weights) -> npt.NDArray[np.float64]:
        drawn = weights[:, order].astype(np.int64)
        hit = np.add.reduceat(drawn * struck, ties, axis=1)
        quiet = np.add.reduceat(drawn * ~struck, ties, axis=1)
        below = np.cumsum(quiet, axis=1) - quiet
        pairs = hit.sum(axis=1) * quiet.sum(axis=1)
        return _ratio((hit * (below + quiet / 2)).sum(axis=1), pairs)

    return area


def tss_statistic(
    scores: Sequence[float], events: Sequence[bool], threshold: float
) -> Statistic:
    """True skill statistic of a resample at a threshold."""
    warned = np.asarray(scores) >= threshold
    struck = np.asarray(events, dtype=bool)

    def tss(weights: Weights) -> npt.NDArray[np.float64]:
        def count(days: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
            found: npt.NDArray[np.int64] = weights[:, days].sum(axis=1, dtype=np.int64)
            return found

        hits = _ratio(count(struck & warned), count(struck))
        return hits - _ratio(count(~struck & warned), count(~struck))

    return tss


def _ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Quotients; NaN where the divisor is zero."""
    divisor = np.where(np.equal(whole, 0), np.nan, whole)
    return np.divide(part, divisor, dtype=float)


@dataclass(frozen=True)
class DayCases:
    """The cases: days, with or without a landslide.

    Attributes:
        days: In order.
        events: Whether landslides happened on each.
        incomplete: How many have steps without rain data.
        empty: Days without any rain data.
        are_empty_kept: Whether the days without data are cases too, with the lower
            bounds that their predictors have there.
        outside: Lines of landslides before the first or after the last day.
        on_empty: Lines of landslides on days without any rain data.
        dry_start_days: Days of rain before the first one, in which the indices fill.
    """

    days: Sequence[date]
    events: Sequence[bool]
    incomplete: int
    empty: Sequence[date]
    are_empty_kept: bool
    outside: Sequence[int]
    on_empty: Sequence[int]
    dry_start_days: int


@dataclass(frozen=True)
class PredictorSkill:
    """Skill of one predictor by its highest value on each day.

    Attributes:
        name: Of the predictor.
        auc: Area under the ROC curve.
        auc_interval: 95 %.
        threshold_mm: Judged at; given, or the one of the greatest TSS.
        is_fitted: Whether the threshold was chosen on these very days.
        cases: Days by warning and event.
        tss_interval: 95 %, at that threshold.
        safe_mm: The highest threshold that would have missed no event.
    """

    name: str
    auc: float | None
    auc_interval: Interval
    threshold_mm: float | None
    is_fitted: bool
    cases: Contingency | None
    tss_interval: Interval
    safe_mm: float | None


@dataclass(frozen=True)
class LevelSkill:
    """How the levels of the rain stood around the events.

    Attributes:
        hours: Of each level from 1 (rows) in each class of event (columns).
        leads: For each event the lead time of each level from 2; None was not issued.
    """

    hours: list[list[float]]
    leads: list[tuple[Slide, list[LeadTime | None]]]


def group_by_day(
    series: EvaluationRain,
    landslides: LandslideTable,
    first: date | None,
    last: date | None,
    *,
    keep_empty: bool = False,
) -> DayCases:
    """Days of a series, with and without landslides.

    Args:
        series: Rain.
        landslides: In the local time of the rain.
        first: First day; None is the series' own.
        last: Last day; None is the series' own.
        keep_empty: Whether days without any rain data are cases too.
    """
    known: dict[date, list[bool]] = {}
    for day, depth in zip(series.days, series.depth_mm, strict=True):
        known.setdefault(day, []).append(depth is not None)
    days = [day for day in known if (first or day) <= day <= (last or day)]
    empty = [day for day in days if not any(known[day])]
    cases = [day for day in days if keep_empty or any(known[day])]
    dates = [landslide_day(slide) for slide in landslides.slides]
    lines = list(zip(dates, landslides.lines, strict=True))
    struck, without_data = set(dates), set(empty)
    return DayCases(
        cases,
        [day in struck for day in cases],
        sum(not all(known[day]) for day in cases),
        empty,
        keep_empty,
        [line for day, line in lines if not days or not days[0] <= day <= days[-1]],
        [line for day, line in lines if day in without_data],
        (days[0] - next(iter(known))).days if days else 0,
    )


def landslide_day(slide: Slide) -> date:
    """Day of a landslide."""
    return datetime.fromtimestamp(slide.from_s, UTC).date()


def daily_maxima(
    series: EvaluationRain, values: Sequence[float], days: Sequence[date]
) -> list[float]:
    """Highest value of a predictor on each of some days."""
    greatest: dict[date, float] = {}
    for day, value in zip(series.days, values, strict=True):
        greatest[day] = max(greatest.get(day, value), value)
    return [greatest[day] for day in days]


def daily_scores(
    series: EvaluationRain, days: Sequence[date]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Highest value of each predictor on each day, and why others are left out."""
    scores, left_out = {}, {}
    for name, predictor in PREDICTORS.items():
        reason = predictor.unfit_reason(series.step_h)
        if reason is None:
            scores[name] = daily_maxima(series, predictor.compute(series), days)
        else:
            left_out[name] = reason
    wanted = set(days)
    for name, column in series.given.items():
        pairs = zip(series.days, column, strict=True)
        values = [value for day, value in pairs if day in wanted]
        known = [value for value in values if value is not None]
        if len(known) == len(days):
            scores[name] = known
        else:
            left_out[name] = f"the table has it on {len(known)} of {len(days)} days"
    return scores, left_out


def evaluate_predictor(
    name: str,
    scores: Sequence[float],
    events: Sequence[bool],
    threshold_mm: float | None,
    bootstrap: DayBootstrap,
) -> PredictorSkill:
    """Judge one predictor."""
    limit = threshold_mm
    if limit is None:
        limit = best_threshold(scores, events)
    cases = tss_interval = None
    if limit is not None:
        cases = Contingency.from_threshold(scores, events, limit)
        tss_interval = bootstrap.interval(tss_statistic(scores, events, limit))
    return PredictorSkill(
        name,
        area_under_roc(scores, events),
        bootstrap.interval(roc_statistic(scores, events)),
        limit,
        threshold_mm is None,
        cases,
        tss_interval,
        safe_threshold(scores, events),
    )


def evaluate_levels(
    series: EvaluationRain,
    days: Sequence[date],
    slides: Sequence[Slide],
    criteria: Criteria,
) -> LevelSkill | None:
    """Judge the levels of the rain by hours and lead times.

    None at steps longer than an hour, at which 60-minute rain is unknown.
    """
    if series.step > HOUR:
        return None
    wanted = set(days)
    ends_s = [end.timestamp() for end in series.ends]
    levels = judge_rain_series(series, criteria)
    inside = [at for at, day in enumerate(series.days) if day in wanted]
    events = merge_slides([s for s in slides if landslide_day(s) in wanted])
    leads = [
        (
            event,
            [
                lead_time(ends_s, levels, event, level)
                for level in range(LOWEST + 1, EMERGENCY + 1)
            ],
        )
        for event in events
    ]
    hours = duration_matrix(
        [ends_s[at] for at in inside],
        [levels[at] for at in inside],
        events,
        series.step.total_seconds(),
    )
    return LevelSkill(hours, leads)
