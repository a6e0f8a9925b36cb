"""Skill of predictors on the days of a season, and of levels by their hours."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from random import Random

from backend_spark.evaluation.predictors import PREDICTORS, rain_levels
from backend_spark.evaluation.tables import RainSeries
from slope_science.criteria import Criteria
from slope_science.durations import (
    LeadTime,
    Slide,
    duration_matrix,
    joined,
    lead_time,
)
from slope_science.levels import EMERGENCY, LOWEST
from slope_science.skill import (
    Contingency,
    Statistic,
    auc,
    best_threshold,
    interval,
    safe_threshold,
)

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Days:
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
class Skill:
    """How one predictor, as its greatest value on a day, told the days apart.

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


def days_of(
    series: RainSeries, slides: Sequence[Slide], first: date | None, last: date | None
) -> Days:
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
    return Days(days, [day in struck for day in days], len(holes.intersection(days)))


def skill(
    name: str, series: RainSeries, days: Days, threshold_mm: float | None, seed: int
) -> Skill:
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
        return interval(statistic, scores, days.events, draw)

    def tss(drawn: Sequence[float], events: Sequence[bool]) -> float | None:
        return None if limit is None else Contingency.at(drawn, events, limit).tss

    return Skill(
        name,
        auc(scores, days.events),
        spread(auc),
        limit,
        threshold_mm is None,
        None if limit is None else Contingency.at(scores, days.events, limit),
        spread(tss),
        safe_threshold(scores, days.events),
    )


def level_skill(
    series: RainSeries, days: Days, slides: Sequence[Slide], criteria: Criteria
) -> LevelSkill:
    """Judge the levels of the rain by hours and lead times."""
    wanted = set(days.days)
    pairs = [
        (end.timestamp(), level)
        for end, level in zip(series.ends, rain_levels(series, criteria), strict=True)
        if end.date() in wanted
    ]
    ends_s = [end_s for end_s, _ in pairs]
    levels = [level for _, level in pairs]
    inside = [s for s in slides if ends_s and ends_s[0] <= s.to_s <= ends_s[-1] + 86400]
    events = joined(inside)
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
