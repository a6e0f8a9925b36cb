"""Skill of rain predictors by day, and of levels by hour."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import accumulate
from random import Random
from typing import Final

from backend_spark.evaluation.inputs import EvaluationRain
from slope_science.criteria import Criteria
from slope_science.findings import EMERGENCY, LOWEST, combine_findings, judge_rain
from slope_science.rain import (
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    TEN_MINUTES_H,
    effective_rain,
    rain_60min,
    soil_water_series,
)
from slope_science.skill import (
    Contingency,
    LeadTime,
    Slide,
    Statistic,
    area_under_roc,
    best_threshold,
    bootstrap_interval,
    duration_matrix,
    lead_time,
    merge_slides,
    safe_threshold,
)

STEPS_PER_HOUR: Final = 6

# Chleborad et al. 2008: 72-hour rain against that of the 360 hours before, in mm.
_CT_START_MM, _CT_SLOPE = 88.9, -0.67

Predictor = Callable[[EvaluationRain], list[float]]


def known_depths(series: EvaluationRain) -> list[float]:
    """Depths with zero for unknown steps: sums are lower bounds there."""
    return [depth or 0.0 for depth in series.depth_mm]


def soil_water_series_mm(series: EvaluationRain) -> list[float]:
    """Soil water index in 10-minute steps, the rain of a longer step shared evenly."""
    return [index for index, _ in _fine(series)][
        _per_step(series) - 1 :: _per_step(series)
    ]


def judge_rain_series(series: EvaluationRain, criteria: Criteria) -> list[int]:
    """Level of the rain at the end of each step."""
    per_step = _per_step(series)
    return [
        combine_findings([judge_rain(r60_mm, index_mm, criteria)]).level
        for index_mm, r60_mm in list(_fine(series))[per_step - 1 :: per_step]
    ]


def _per_step(series: EvaluationRain) -> int:
    return max(1, round(series.step_h / TEN_MINUTES_H))


def _fine(series: EvaluationRain) -> list[tuple[float, float]]:
    """Index and 60-minute rain in 10-minute steps (or the table's, when shorter)."""
    per_step = _per_step(series)
    step_h = series.step_h / per_step
    depths = [
        depth / per_step for depth in known_depths(series) for _ in range(per_step)
    ]
    tanks = soil_water_series(depths, step_h)
    return [
        (each.index_mm, r60_mm)
        for each, r60_mm in zip(tanks, rain_60min(depths, step_h), strict=True)
    ]


def _sum_of(hours: float) -> Predictor:
    def rain_mm(series: EvaluationRain) -> list[float]:
        return _sums(known_depths(series), round(hours / series.step_h))

    return rain_mm


def _effective(half_life_h: float) -> Predictor:
    def rain_mm(series: EvaluationRain) -> list[float]:
        return effective_rain(known_depths(series), series.step_h, half_life_h)

    return rain_mm


def _over_seattle_line(series: EvaluationRain) -> list[float]:
    """How far the 3-day rain is above the line of the 15 days before."""
    recent, older = (round(hours / series.step_h) for hours in (72, 360))
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
    "swi": soil_water_series_mm,
    "effective72": _effective(LONG_HALF_LIFE_H),
    "effective1.5": _effective(SHORT_HALF_LIFE_H),
    "rain72": _sum_of(72),
    "rain24": _sum_of(24),
    "rain1": _sum_of(1),
    "seattle": _over_seattle_line,
}
"""By the name on the command line; all in mm."""


Interval = tuple[float, float] | None


@dataclass(frozen=True)
class DayCases:
    """The cases: days, with or without a landslide.

    Attributes:
        days: In order.
        events: Whether landslides happened on each.
        incomplete: How many have hours without rain data.
    """

    days: Sequence[date]
    events: Sequence[bool]
    incomplete: int


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
    slides: Sequence[Slide],
    first: date | None,
    last: date | None,
) -> DayCases:
    """Days of a series, by the dates that its steps' ends are written with.

    Args:
        series: Rain.
        slides: Landslides.
        first: First day; None is the series' own.
        last: Last day; None is the series' own.
    """
    known = sorted({end.date() for end in series.ends})
    days = [d for d in known if (first or d) <= d <= (last or d)]
    struck = {datetime.fromtimestamp(s.from_s, UTC).date() for s in slides}
    holes = {
        end.date()
        for end, depth in zip(series.ends, series.depth_mm, strict=True)
        if depth is None
    }
    return DayCases(
        days, [day in struck for day in days], len(holes.intersection(days))
    )


def evaluate_predictor(
    name: str,
    series: EvaluationRain,
    days: DayCases,
    threshold_mm: float | None,
    seed: int,
) -> PredictorSkill:
    """Judge one predictor."""
    greatest: dict[date, float] = {}
    for end, value in zip(series.ends, PREDICTORS[name](series), strict=True):
        day = end.date()
        greatest[day] = max(greatest.get(day, value), value)
    scores = [greatest[day] for day in days.days]
    limit = threshold_mm
    if limit is None:
        limit = best_threshold(scores, days.events)

    def spread(statistic: Statistic) -> Interval:
        draw = Random(seed).randrange  # noqa: S311 - statistics, no secret
        return bootstrap_interval(statistic, scores, days.events, draw)

    def tss(drawn: Sequence[float], events: Sequence[bool]) -> float | None:
        return (
            None
            if limit is None
            else Contingency.from_threshold(drawn, events, limit).tss
        )

    return PredictorSkill(
        name,
        area_under_roc(scores, days.events),
        spread(area_under_roc),
        limit,
        threshold_mm is None,
        None
        if limit is None
        else Contingency.from_threshold(scores, days.events, limit),
        spread(tss),
        safe_threshold(scores, days.events),
    )


def evaluate_levels(
    series: EvaluationRain, days: DayCases, slides: Sequence[Slide], criteria: Criteria
) -> LevelSkill:
    """Judge the levels of the rain by hours and lead times."""
    wanted = set(days.days)
    pairs = [
        (end.timestamp(), level)
        for end, level in zip(
            series.ends, judge_rain_series(series, criteria), strict=True
        )
        if end.date() in wanted
    ]
    ends_s = [end_s for end_s, _ in pairs]
    levels = [level for _, level in pairs]
    inside = [s for s in slides if ends_s and ends_s[0] <= s.to_s <= ends_s[-1] + 86400]
    events = merge_slides(inside)
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
    return LevelSkill(duration_matrix(ends_s, levels, events), leads)
