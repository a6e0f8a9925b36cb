"""Calibration: how many of 100 days such as this one had landslides.

Days are put in order by one predictor, or by a logistic regression of several, and
divided into classes by isotonic regression: the share of days with a landslide never
falls from one class to the next. The statement about a day is the share of its class,
counted and not modelled. It adds no discrimination to the predictor.

A class has `MIN_CLASS_DAYS` days or more, because isotonic regression alone makes
classes of single days, with shares of 0 and 100 %. Of two intervals the wider counts at
each end: the exact one of the class's days, and the one of isotonic regressions of
resampled months, which also shows how uncertain the limits of the classes are.

The Brier skill score judges each year by classes that were made without it.

Source: Zadrozny and Elkan 2002 (isotonic calibration); Clopper and Pearson 1934 (exact
interval); Wilks, Statistical Methods in the Atmospheric Sciences, ch. 9 (Brier skill
score, reliability diagram). The least numbers of days and events are our proposals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from backend_spark.errors import CalibrationError
from backend_spark.evaluation.calibration_file import (
    Calibration,
    DayClass,
    LogOdds,
    ReliabilityBin,
    YearLeftOut,
    YearlySkill,
    log_odds_score,
)
from backend_spark.evaluation.skill import DayBootstrap, Statistic, Weights
from slope_science.skill import share_interval

try:
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression
except ImportError as error:  # pragma: no cover - the lock file has it
    raise CalibrationError(
        "scikit-learn", "installed", "none", 'pip install "yamamori[calibration]"'
    ) from error

EVENT_DAYS_PER_PREDICTOR: Final = 10
MIN_QUIET_DAYS: Final = 100
MIN_YEARS: Final = 2
MIN_CLASS_DAYS: Final = 20
CLASS_RESAMPLES: Final = 300
"""Isotonic regressions behind the intervals of the classes."""

MAX_DIGITS: Final = 9
"""Limit of the decimals of a score between two classes."""

STATED_LIMITS: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Lower limits of the shares of a point of the reliability diagram; the first point
has the days with a statement of exactly 0."""

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CalibrationDays:
    """Days with rain data.

    Attributes:
        days: In order.
        events: Whether landslides happened on each.
        values: Highest value of each predictor on each day, by name.
        bootstrap: Resamples of these days.
        days_without_data: Number of days that are not among them.
        step_h: Length of a step of the rain.
        place: Where the landslides were counted.
    """

    days: Sequence[date]
    events: Sequence[bool]
    values: Mapping[str, Sequence[float]]
    bootstrap: DayBootstrap
    days_without_data: int
    step_h: float
    place: str


@dataclass(frozen=True)
class _Fit:
    """Classes of one set of days.

    Attributes:
        odds: How predictors make a score; None for one predictor.
        lowest: Lowest score of each class, ascending.
        share: Of days with a landslide in each class.
    """

    odds: LogOdds | None
    lowest: Numbers
    share: Numbers

    def place(self, scores: Numbers) -> npt.NDArray[np.int64]:
        """Class of each score."""
        return np.maximum(np.searchsorted(self.lowest, scores, side="right") - 1, 0)


def calibrate(cases: CalibrationDays) -> Calibration:
    """Make a calibration.

    Raises:
        CalibrationError: There are too few days, landslides or years.
    """
    events = np.asarray(cases.events, dtype=bool)
    years = np.array([day.year for day in cases.days])
    _check(events, years, len(cases.values))
    fit = _fit(cases.values, events)
    scores = _scores(fit.odds, cases.values)
    return Calibration(
        place=cases.place,
        first_day=cases.days[0].isoformat(),
        last_day=cases.days[-1].isoformat(),
        step_h=cases.step_h,
        days=len(events),
        days_with_landslide=int(events.sum()),
        days_without_data=cases.days_without_data,
        predictors=tuple(cases.values),
        log_odds=fit.odds,
        highest_score=float(scores.max()),
        classes=_classes(fit, scores, events, cases.bootstrap),
        each_year_left_out=_yearly_skill(cases, events, years, fit),
    )


def _check(events: Flags, years: npt.NDArray[np.int64], predictors: int) -> None:
    """Raise an error for data that do not suffice for an estimate."""
    least = EVENT_DAYS_PER_PREDICTOR * predictors
    remedy = "add seasons, or use fewer predictors"
    if events.sum() < least:
        rule = f"{least} or more ({EVENT_DAYS_PER_PREDICTOR} for each predictor)"
        raise CalibrationError("days with a landslide", rule, events.sum(), remedy)
    if (~events).sum() < MIN_QUIET_DAYS:
        rule = f"{MIN_QUIET_DAYS} or more"
        quiet = (~events).sum()
        raise CalibrationError("days without a landslide", rule, quiet, "add seasons")
    struck = np.unique(years[events])
    if len(struck) < MIN_YEARS:
        rule = f"in {MIN_YEARS} calendar years or more, as each year is left out once"
        raise CalibrationError("days with a landslide", rule, struck[0], "add seasons")


def _fit(values: Mapping[str, Sequence[float]], events: Flags) -> _Fit:
    """Order days and divide them into classes."""
    odds = _log_odds(values, events) if len(values) > 1 else None
    scores = _scores(odds, values)
    smooth = IsotonicRegression().fit(scores, events.astype(float)).predict(scores)
    order = np.argsort(scores, kind="stable")
    rises = np.flatnonzero(np.diff(smooth[order], prepend=-1.0) > 0)
    begins = _merge(rises.tolist(), len(order))
    parts = np.split(events[order], begins[1:])
    shares = np.array([part.mean() for part in parts])
    ranked = scores[order]
    below = [-math.inf, *(float(ranked[at - 1]) for at in begins[1:])]
    lowest = [
        _short(float(ranked[at]), under)
        for at, under in zip(begins, below, strict=True)
    ]
    return _Fit(odds, np.array(lowest), shares)


def _short(score: float, below: float) -> float:
    """Shortest decimal up to a score, and above the next lower one."""
    for digits in range(1, MAX_DIGITS):
        scale = 10.0**digits
        short = math.floor(score * scale) / scale
        if below < short <= score:
            return short
    return score


def _merge(begins: Sequence[int], count: int) -> list[int]:
    """Begins of classes that have enough days, from the highest down."""
    kept: list[int] = []
    end = count
    for begin in reversed(begins):
        if end - begin >= MIN_CLASS_DAYS and begin >= MIN_CLASS_DAYS:
            kept.append(begin)
            end = begin
    return [0, *reversed(kept)]


def _log_odds(values: Mapping[str, Sequence[float]], events: Flags) -> LogOdds:
    """Logistic regression of ln(1 + value) with scikit-learn's default penalty.

    The predictors have one scale first, so that the penalty treats them alike.
    """
    matrix = np.log1p(np.maximum(0.0, np.column_stack(list(values.values()))))
    mean, scale = matrix.mean(axis=0), matrix.std(axis=0)
    scale[scale == 0] = 1.0
    model = LogisticRegression().fit((matrix - mean) / scale, events)
    slopes = model.coef_[0] / scale
    intercept = float(model.intercept_[0] - (slopes * mean).sum())
    return LogOdds(intercept, dict(zip(values, map(float, slopes), strict=True)))


def _scores(odds: LogOdds | None, values: Mapping[str, Sequence[float]]) -> Numbers:
    if odds is None:
        return np.asarray(next(iter(values.values())), dtype=float)
    rows = zip(*values.values(), strict=True)
    return np.array([
        log_odds_score(odds, dict(zip(values, row, strict=True))) for row in rows
    ])


def _classes(
    fit: _Fit, scores: Numbers, events: Flags, bootstrap: DayBootstrap
) -> tuple[DayClass, ...]:
    where = fit.place(scores)
    middles = np.array([np.median(scores[where == at]) for at in range(len(fit.share))])
    spread = _resampled_shares(scores, events, middles, bootstrap)
    ends = [*map(float, fit.lowest[1:]), None]
    made = []
    for at, share in enumerate(fit.share):
        days = int((where == at).sum())
        struck = int((where == at)[events].sum())
        low, high = share_interval(struck, days)
        made.append(
            DayClass(
                float(fit.lowest[at]),
                ends[at],
                days,
                struck,
                round(100 * float(share), 1),
                round(100 * min(low, spread[at][0]), 1),
                round(100 * max(high, spread[at][1]), 1),
            )
        )
    return tuple(made)


def _resampled_shares(
    scores: Numbers, events: Flags, at: Numbers, bootstrap: DayBootstrap
) -> list[tuple[float, float]]:
    """95 % interval of the isotonic share at some scores, over resampled months."""
    target = events.astype(float)

    def shares(weights: Weights) -> Numbers:
        drawn = weights > 0
        model = IsotonicRegression(out_of_bounds="clip")
        model.fit(scores[drawn], target[drawn], sample_weight=weights[drawn])
        predicted: Numbers = model.predict(at)
        return predicted

    table = np.array([
        shares(weights) for weights in bootstrap.resamples[:CLASS_RESAMPLES]
    ])
    low, high = np.quantile(table, [0.025, 0.975], axis=0)
    return list(zip(map(float, low), map(float, high), strict=True))


def _yearly_skill(
    cases: CalibrationDays, events: Flags, years: npt.NDArray[np.int64], fit: _Fit
) -> YearlySkill:
    stated, mean = np.empty(len(events)), np.empty(len(events))
    for year in np.unique(years):
        out = years == year
        others = {n: list(np.asarray(v)[~out]) for n, v in cases.values.items()}
        fold = _fit(others, events[~out])
        these = {n: list(np.asarray(v)[out]) for n, v in cases.values.items()}
        stated[out] = fold.share[fold.place(_scores(fold.odds, these))]
        mean[out] = events[~out].mean()
    errors, mean_errors = (stated - events) ** 2, (mean - events) ** 2
    same = fit.share[fit.place(_scores(fit.odds, cases.values))]
    interval = cases.bootstrap.interval(_skill_statistic(errors, mean_errors))
    base = ((events.mean() - events) ** 2).mean()
    return YearlySkill(
        round(float(1 - errors.mean() / mean_errors.mean()), 3),
        None if interval is None else round(interval[0], 3),
        None if interval is None else round(interval[1], 3),
        round(float(1 - ((same - events) ** 2).mean() / base), 3),
        tuple(
            _year(int(year), years == year, events, errors, mean_errors)
            for year in np.unique(years)
        ),
        _reliability(stated, events),
    )


def _skill_statistic(errors: Numbers, mean_errors: Numbers) -> Statistic:
    def skill(weights: Weights) -> Numbers:
        base = weights @ mean_errors
        return 1 - (weights @ errors) / np.where(base == 0, np.nan, base)

    return skill


def _year(
    year: int, in_year: Flags, events: Flags, errors: Numbers, mean_errors: Numbers
) -> YearLeftOut:
    return YearLeftOut(
        year,
        int(in_year.sum()),
        int(events[in_year].sum()),
        round(float(errors[in_year].mean()), 5),
        round(float(mean_errors[in_year].mean()), 5),
    )


def _reliability(stated: Numbers, events: Flags) -> tuple[ReliabilityBin, ...]:
    limits = [-1.0, *STATED_LIMITS, 1.0]
    bins = []
    for low, high in pairwise(limits):
        inside = (stated > low) & (stated <= high)
        days, struck = int(inside.sum()), int(events[inside].sum())
        if days:
            ends = share_interval(struck, days)
            bins.append(
                ReliabilityBin(
                    round(100 * float(stated[inside].mean()), 2),
                    days,
                    struck,
                    *(round(100 * end, 1) for end in ends),
                )
            )
    return tuple(bins)
