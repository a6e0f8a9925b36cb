"""Skill of rain predictors by day, and of levels by hour, with 95 % intervals.

The intervals are of a moving-block bootstrap over days. A resample is kept as the
number of times that each day is in it, so that a statistic of sorted or counted days
costs one pass of numpy.

Source: Künsch 1989 (moving blocks); Mason and Graham 2002 (area under the ROC curve).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from backend_spark.evaluation.inputs import HOUR, EvaluationRain, LandslideTable
from backend_spark.evaluation.predictors import PREDICTORS, judge_rain_series
from slope_science.criteria import Criteria
from slope_science.findings import EMERGENCY, LOWEST
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
