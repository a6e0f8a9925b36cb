"""Comparison with JMA's analysed rain and soil water index of the 1 km grid.

The analysis is made of radar and of the gauges of all authorities. It is independent of
a slope's own gauge, and is the input of the authorities' own judgement, so that it may
give every level. At one point it differs from a good gauge by a factor of two or more
in showers; only a strong difference makes a gauge suspect.

Source:
    Criteria and levels as in `findings.judge_rain`. The factors are our proposal:
    inches read as mm differ by 25.4, a wrong depth of a tip by 2.5 to 10.
"""

from dataclasses import dataclass
from typing import Final

from slope_science.criteria import Criteria
from slope_science.findings import Finding, judge_rain
from slope_science.quality import GOOD, NOT_EVALUATED, Flag, Verdict
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

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
