"""The next two hours of a cell's soil under a rain that is only supposed.

Levels 4, 3 and 2 are reached by the actual value or by a forecast up to two hours
ahead; level 5 by the actual value only. Without a forecast of rain three futures
span what may come: none, the rain of the last hour, and an official forecast.

Source: judgement of JMA and the prefectures (Saitama, Ishikawa, Iwate).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.criteria import Criteria
from slope_science.errors import ScienceError
from slope_science.levels import (
    DANGER,
    LOWEST,
    Finding,
    rain_finding,
    rain_level,
)
from slope_science.soil_water import TEN_MINUTES_H, SoilWater, tanks_after

STEPS_PER_HOUR = 6
AHEAD_STEPS = 12
"""Two hours in steps of ten minutes."""

RAIN_GOES_ON = "if the rain of the last hour goes on"


@dataclass(frozen=True)
class Moment:
    """Rain and soil water at one time, a point of the snake line.

    Attributes:
        r60_mm: Rain of the last 60 minutes.
        swi_mm: Soil water index.
    """

    r60_mm: float
    swi_mm: float


@dataclass(frozen=True)
class Future:
    """What a supposed rain leads to.

    Attributes:
        level: Of now and of the two hours, 1 to 5; only now gives a 5.
        margin_mm: Distance of the soil water index below the critical line at the
            end of it; negative beyond the line.
        after_steps: Steps of ten minutes until that level; 0 is now.
        at: The moment that reaches it.
    """

    level: int
    margin_mm: float
    after_steps: int
    at: Moment


def ahead(
    tanks: SoilWater, hour_mm: Sequence[float], rain_mm: Sequence[float]
) -> list[Moment]:
    """The snake line of the coming steps.

    Args:
        tanks: Water in the soil now.
        hour_mm: Rain of the steps of the last hour, at most six, oldest first.
        rain_mm: Supposed rain of each coming step.
    """
    recent, line = list(hour_mm), []
    now = (tanks.s1_mm, tanks.s2_mm, tanks.s3_mm)
    for depth_mm in rain_mm:
        recent = [*recent[1 - STEPS_PER_HOUR :], depth_mm]
        now = tanks_after(*now, depth_mm, TEN_MINUTES_H)
        line.append(Moment(sum(recent), sum(now)))
    return line


def margin_mm(moment: Moment, criteria: Criteria) -> float:
    """How far the soil water index is below the critical line; negative beyond."""
    return criteria.critical_line_mm(moment.r60_mm) - moment.swi_mm


def judged(now: Moment, coming: Sequence[Moment], criteria: Criteria) -> Future:
    """Judge now and what is supposed to come, at most two hours of it.

    Raises:
        ScienceError: More than two hours are given.
    """
    if len(coming) > AHEAD_STEPS:
        rule = f"at most {AHEAD_STEPS} steps of ten minutes"
        raise ScienceError("coming", rule, len(coming))
    moments = [now, *coming]
    # A level grows with both numbers: where the most of each reaches none, none does.
    most = Moment(max(m.r60_mm for m in moments), max(m.swi_mm for m in moments))
    if _level(most, criteria) == LOWEST:
        return Future(LOWEST, margin_mm(moments[-1], criteria), 0, now)
    levels = [_level(now, criteria)]
    levels += [min(DANGER, _level(moment, criteria)) for moment in coming]
    first = levels.index(max(levels))
    end_mm = margin_mm(moments[-1], criteria)
    return Future(levels[first], end_mm, first, moments[first])


def look_ahead_finding(
    future: Future, criteria: Criteria, supposed: str = RAIN_GOES_ON
) -> Finding | None:
    """Judge a level that only the supposed rain reaches.

    Args:
        future: Now and the two hours.
        criteria: Of the cell.
        supposed: What is supposed, in words.
    """
    if not future.after_steps:
        return None
    then = rain_finding(future.at.r60_mm, future.at.swi_mm, criteria)
    if then is None:
        return None
    minutes = future.after_steps * 10
    reason = f"in {minutes} min, {supposed}: {then.reason}"
    return Finding(future.level, reason)


def _level(moment: Moment, criteria: Criteria) -> int:
    return rain_level(moment.r60_mm, moment.swi_mm, criteria)
