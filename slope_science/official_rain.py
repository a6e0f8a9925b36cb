"""Official rain: comparison with JMA's analyses, and the forecast that is valid.

The analysis of the 1 km grid, of rain and soil water index, is made of radar and of the
gauges of all authorities. It is independent of a slope's own gauge, and is the input of
the authorities' own judgement, so that it may give every level. At one point it differs
from a good gauge by a factor of two or more in showers; only a strong difference makes
a gauge suspect.

A forecast counts from its arrival here, not from its issue, so that scoring the same
moment again uses the same forecast. A stale one is not used.

Source:
    Criteria and levels as in `levels.judge_rain`; levels 4 to 2 look two hours ahead
    (Saitama, Ishikawa, Iwate). The factors and the maximum age are our proposals:
    inches read as mm differ by 25.4, a wrong depth of a tip by 2.5 to 10.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slope_science.levels import Criteria, Finding, judge_rain
from slope_science.quality import GOOD, NOT_EVALUATED, Flag, Verdict
from slope_science.rain_and_soil_water import LOOK_AHEAD_STEPS
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english_list

SOURCE: Final = "JMA"
HOUR_FACTOR: Final = 5.0
HOUR_MIN_MM: Final = 10.0
"""Minimum rain of an hour, of the greater of gauge and analysis, to be compared."""

DAY_FACTOR: Final = 3.0
DAY_MIN_MM: Final = 30.0
MIN_HOURS: Final = 12
"""Hours of a day with both, from which the day is compared."""

LEAST_MM: Final = 0.5
"""Smaller depths count as this in a factor: one tip, and the lowest level of JMA."""

STEP_S = 600.0
MAX_AGE_S = 2 * 3600.0
"""Maximum age of a usable forecast: after it, the two hours have passed."""


@dataclass(frozen=True)
class AnalysedState:
    """Newest analyses of a cell that were known at a moment.

    Attributes:
        index_mm: Soil water index, the highest of the cell's meshes; None without.
        index_at_s: Unix time for which it applies.
        r60_mm: Rain of an hour, likewise; None without.
        r60_at_s: Unix time of the end of that hour.
    """

    index_mm: float | None = None
    index_at_s: float | None = None
    r60_mm: float | None = None
    r60_at_s: float | None = None


@dataclass(frozen=True)
class AnalysedRain:
    """Analysed rain of one ten-minute step of a cell.

    Attributes:
        depth_mm: A sixth of an hour's analysed rain, the highest of the cell's meshes.
        at_s: Unix time of the end of that hour.
        age_s: Time from there to the end of the step; 0 if the hour contains the step.
        source: Who analysed it.
    """

    depth_mm: float
    at_s: float
    age_s: float
    source: str = SOURCE


def judge_analysis(
    state: AnalysedState,
    criteria: Criteria,
    gauge_index_mm: float | None = None,
    gauge_r60_mm: float | None = None,
) -> Finding | None:
    """Compare the analysed index and rain with a cell's criteria.

    Where one of both is missing, that of the gauges takes its place; without any
    60-minute rain the critical line is used at none, where it is highest.

    Args:
        state: Analyses of the cell.
        criteria: Of the cell.
        gauge_index_mm: Soil water index by the gauges; None without.
        gauge_r60_mm: 60-minute rain by the gauges; None without.
    """
    if state.index_mm is None and state.r60_mm is None:
        return None
    index_mm = gauge_index_mm if state.index_mm is None else state.index_mm
    r60_mm = gauge_r60_mm if state.r60_mm is None else state.r60_mm
    if index_mm is None:
        return None
    found = judge_rain(r60_mm or 0.0, index_mm, criteria)
    if found is None:
        return None
    at_s = state.r60_at_s if state.index_at_s is None else state.index_at_s
    reason = Reason(
        ReasonCode.GRID_SOIL_WATER, because=found.reason, source=SOURCE, at_s=at_s
    )
    return Finding(found.level, reason)


def check_beside_analysis(
    own_mm: float, low_mm: float, high_mm: float, hours: int, at_s: float
) -> Verdict:
    """Suspect a gauge that differs strongly from the analysed rain of its cell.

    Args:
        own_mm: Rain of the gauge.
        low_mm: Analysed rain, the lowest of the cell's meshes.
        high_mm: The highest.
        hours: Length of the interval: 1, or the known hours of a day.
        at_s: Unix time of its end.
    """
    factor, least_mm = HOUR_FACTOR, HOUR_MIN_MM
    if hours > 1:
        if hours < MIN_HOURS:
            return NOT_EVALUATED
        factor, least_mm = DAY_FACTOR, DAY_MIN_MM
    for code, more_mm, less_mm in (
        (ReasonCode.GRID_EXCESS, own_mm, high_mm),
        (ReasonCode.GRID_DEFICIT, low_mm, own_mm),
    ):
        ratio = more_mm / max(less_mm, LEAST_MM)
        if more_mm >= least_mm and ratio >= factor:
            grid_mm = high_mm if code is ReasonCode.GRID_EXCESS else low_mm
            reason = Reason(
                code,
                rain_mm=own_mm,
                hours=hours,
                grid_mm=grid_mm,
                factor=ratio,
                at_s=at_s,
            )
            return Verdict(Flag.SUSPECT, (reason,))
    return GOOD


@dataclass(frozen=True)
class ForecastInterval:
    """Rain in one interval of a forecast.

    Attributes:
        from_s: Start, Unix time.
        to_s: End.
        depth_mm: Depth, evenly spread over the interval; None where it failed.
        reasons: Why it failed or is doubtful; empty for a good one.
    """

    from_s: float
    to_s: float
    depth_mm: float | None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class ForecastIssue:
    """One issue of a forecast, for one place.

    Attributes:
        source: Issuer.
        issued_s: Unix time of issue.
        available_s: Unix time of its arrival here.
        intervals: Intervals without overlap.
    """

    source: str
    issued_s: float
    available_s: float
    intervals: Sequence[ForecastInterval]


@dataclass(frozen=True)
class ForecastRain:
    """Rain of the next two hours by an official forecast.

    Attributes:
        source: Issuer; None without any forecast.
        issued_s: Unix time of issue; None likewise.
        depths_mm: Depth in each step of ten minutes, twelve or as many of the
            look-ahead as it covers; None if not usable.
        reasons: Why it is not usable, or what is doubtful in it.
    """

    source: str | None = None
    issued_s: float | None = None
    depths_mm: tuple[float, ...] | None = None
    reasons: tuple[Reason, ...] = ()

    @property
    def why(self) -> str | None:
        """The reasons in English, joined; None without any."""
        return render_english_list(self.reasons) or None


NO_FORECAST = ForecastRain()
_FAILED = (Reason(ReasonCode.FORECAST_FAILED),)


def select_forecast(
    issues: Iterable[ForecastIssue],
    at_s: float,
    max_age_s: float = MAX_AGE_S,
    steps: int = LOOK_AHEAD_STEPS,
) -> ForecastRain:
    """Select the newest usable forecast that was known at a moment.

    Args:
        issues: Issues for one place; of several with the same time the first counts.
        at_s: The moment, Unix time.
        max_age_s: Maximum age of a usable one.
        steps: Steps of ten minutes of the look-ahead. A forecast that ends between two
            hours and that counts as far as it goes, with a reason.

    Returns:
        The selected one; if none is usable, the newest known one with the reasons.
    """
    known = [run for run in issues if max(run.available_s, run.issued_s) <= at_s]
    checked = [
        _judged(run, at_s, max_age_s, steps)
        for run in sorted(known, key=lambda run: run.issued_s, reverse=True)
    ]
    used = next((each for each in checked if each.depths_mm is not None), None)
    return used or (checked[0] if checked else NO_FORECAST)


def _judged(
    run: ForecastIssue, at_s: float, max_age_s: float, steps: int
) -> ForecastRain:
    age_h = (at_s - run.issued_s) / 3600
    if age_h * 3600 > max_age_s:
        max_h = max_age_s / 3600
        why = Reason(ReasonCode.FORECAST_STALE, age_h=age_h, max_h=max_h)
        return ForecastRain(run.source, run.issued_s, None, (why,))
    depths: list[float] = []
    doubts: list[tuple[Reason, ...]] = []
    for step in range(steps):
        parts = list(_within(run.intervals, at_s + step * STEP_S))
        why_not = _why_not(parts, step, steps)
        if why_not:
            is_usable = step >= LOOK_AHEAD_STEPS
            known = tuple(depths) if is_usable else None
            return ForecastRain(run.source, run.issued_s, known, why_not)
        doubts += [piece.reasons for piece, _ in parts if piece.reasons]
        depths.append(sum(_share_mm(piece, seconds) for piece, seconds in parts))
    return ForecastRain(
        run.source, run.issued_s, tuple(depths), doubts[0] if doubts else ()
    )


def _why_not(
    parts: Sequence[tuple[ForecastInterval, float]], step: int, steps: int
) -> tuple[Reason, ...]:
    """Why the rain of a step is not known; empty if it is."""
    failed = next((piece for piece, _ in parts if piece.depth_mm is None), None)
    if failed is not None:
        return failed.reasons or _FAILED
    if sum(seconds for _, seconds in parts) >= STEP_S * 0.999:
        return ()
    minutes = {"minutes": step * 10, "of_minutes": steps * 10}
    return (Reason(ReasonCode.FORECAST_SHORT, **minutes),)


def _within(
    pieces: Iterable[ForecastInterval], from_s: float
) -> Iterator[tuple[ForecastInterval, float]]:
    """Intervals that overlap a step, with the overlap in seconds."""
    for piece in pieces:
        seconds = min(piece.to_s, from_s + STEP_S) - max(piece.from_s, from_s)
        if seconds > 0:
            yield piece, seconds


def _share_mm(piece: ForecastInterval, seconds: float) -> float:
    return (piece.depth_mm or 0.0) * seconds / (piece.to_s - piece.from_s)
