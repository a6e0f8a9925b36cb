"""Rain sums, soil water index, and the two hours ahead under an assumed rain.

Rain sums: effective rainfall (実効雨量) with half-lives of 1.5 h and 72 h as used by
NIED and Hiroshima prefecture; antecedent rainfall index of NASA LHASA version 1.

Soil water index (土壌雨量指数): three tanks (Ishihara and Kobatake 1979; Okada et al.
2001, Tenki 48, 349-356; the constants agree in four independent codes). JMA's criteria
belong to the index in 10-minute steps; 1-hour steps give up to 3 % more. Use
`TEN_MINUTES_H` for any value that is compared with a criterion.

Two hours ahead: levels 4, 3 and 2 are reached by the observed value or by a forecast
up to two hours ahead, level 5 by the observed value only (judgement of JMA and the
prefectures Saitama, Ishikawa, Iwate); some prefectures look three hours ahead
(Tochigi), see `Criteria.look_ahead_h`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slope_science import ScienceError
from slope_science.levels import (
    DANGER,
    LOWEST,
    NOT_JUDGED_MM,
    Criteria,
    Finding,
    compute_rain_level,
    judge_rain,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

SHORT_HALF_LIFE_H = 1.5
LONG_HALF_LIFE_H = 72.0
ANTECEDENT_DAYS = 7

DRY_HOURS = 24.0
"""Time without rain that ends a series of rain (一連の降雨)."""


def rain_60min(rain_mm: Sequence[float], step_h: float) -> list[float]:
    """Rain of the last 60 minutes at the end of each step, in mm.

    Args:
        rain_mm: Depth of rain in each step.
        step_h: Length of a step in hours; a whole number of steps makes an hour.

    Raises:
        ScienceError: An hour is not a whole number of steps.
    """
    steps = round(1.0 / step_h) if step_h > 0 else 0
    if steps < 1 or abs(steps * step_h - 1.0) > 1e-9:  # noqa: PLR2004 - rounding
        raise ScienceError("step_h", "a whole fraction of an hour", step_h)
    return [
        sum(rain_mm[max(0, end - steps) : end]) for end in range(1, len(rain_mm) + 1)
    ]


def cumulative_rain(rain_mm: Sequence[float | None], step_h: float) -> list[float]:
    """Rain since its series began (累加雨量), at the end of each step, in mm.

    A series of rain ends with `DRY_HOURS` without any. Unknown rain adds nothing, and
    its step does not count as dry.

    Args:
        rain_mm: Depth of rain in each step; None is unknown.
        step_h: Length of a step in hours.

    Source:
        都道府県と気象庁が共同して土砂災害警戒情報を作成・発表するための手引き (2005):
        24 hours without rain before and after a series.
    """
    totals, total_mm, dry_h = [], 0.0, 0.0
    for depth_mm in rain_mm:
        if depth_mm == 0:
            dry_h += step_h
        elif depth_mm is not None:
            dry_h = 0.0
        if dry_h > DRY_HOURS - step_h / 2:
            total_mm = 0.0
        total_mm += depth_mm or 0.0
        totals.append(total_mm)
    return totals


def effective_rain(
    rain_mm: Sequence[float],
    step_h: float,
    half_life_h: float,
    initial_mm: float = 0.0,
) -> list[float]:
    """Rain sum with exponential decay, at the end of each step, in mm.

    Args:
        rain_mm: Depth of rain in each step.
        step_h: Length of a step in hours.
        half_life_h: Half-life.
        initial_mm: The sum before the first step.
    """
    fade = 0.5 ** (step_h / half_life_h)
    remembered = initial_mm
    series = []
    for depth_mm in rain_mm:
        remembered = depth_mm + fade * remembered
        series.append(remembered)
    return series


def antecedent_index(days_mm: Sequence[float]) -> float:
    """Weighted mean of the rain of seven days, in mm per day.

    Args:
        days_mm: Rain of each of the last seven days, the last 24 hours first.

    Raises:
        ScienceError: The number of days is not seven.

    Source:
        ARI = sum p_t w_t / sum w_t, w_t = (t + 1)^-2, t = 0 to 6.
    """
    if len(days_mm) != ANTECEDENT_DAYS:
        raise ScienceError("days_mm", f"{ANTECEDENT_DAYS} days", len(days_mm))
    weights = [(t + 1) ** -2 for t in range(ANTECEDENT_DAYS)]
    weighed = sum(p * w for p, w in zip(days_mm, weights, strict=True))
    return weighed / sum(weights)


TEN_MINUTES_H = 1.0 / 6.0
ONE_HOUR_H = 1.0

# Outlet heights (mm) and coefficients (1/h) of the national parameter set.
L1, A1 = 15.0, 0.10
L2, A2 = 60.0, 0.15
L3, A3 = 15.0, 0.05
L4, A4 = 15.0, 0.01
B1, B2, B3 = 0.12, 0.05, 0.01


@dataclass(frozen=True)
class SoilWater:
    """Water in the three tanks, in mm.

    Attributes:
        s1_mm: Surface tank.
        s2_mm: Middle tank.
        s3_mm: Deep tank.
    """

    s1_mm: float = 0.0
    s2_mm: float = 0.0
    s3_mm: float = 0.0

    @property
    def index_mm(self) -> float:
        """The soil water index: the sum of the tanks."""
        return self.s1_mm + self.s2_mm + self.s3_mm

    def step(self, rain_mm: float, step_h: float = TEN_MINUTES_H) -> "SoilWater":
        """The tanks one step later.

        Args:
            rain_mm: Depth of rain that fell in the step, zero or more.
            step_h: Length of the step in hours, up to 1.

        Raises:
            ScienceError: The rain is negative or not finite, or the step too long.

        Source:
            Explicit scheme: every right-hand side uses the old storages.
        """
        if not (math.isfinite(rain_mm) and rain_mm >= 0):
            raise ScienceError("rain_mm", "zero or more", rain_mm)
        if not 0 < step_h <= ONE_HOUR_H:
            raise ScienceError("step_h", "more than 0 and at most 1 hour", step_h)
        return SoilWater(
            *step_tanks(self.s1_mm, self.s2_mm, self.s3_mm, rain_mm, step_h)
        )


def step_tanks(
    s1: float, s2: float, s3: float, rain_mm: float, step_h: float
) -> tuple[float, float, float]:
    """The three tanks one step later, in mm; the arguments are not checked."""
    q1 = A1 * (s1 - L1 if s1 > L1 else 0.0) + A2 * (s1 - L2 if s1 > L2 else 0.0)
    q2 = A3 * (s2 - L3 if s2 > L3 else 0.0)
    q3 = A4 * (s3 - L4 if s3 > L4 else 0.0)
    return (
        max(0.0, (1 - B1 * step_h) * s1 - q1 * step_h + rain_mm),
        max(0.0, (1 - B2 * step_h) * s2 - q2 * step_h + B1 * s1 * step_h),
        max(0.0, (1 - B3 * step_h) * s3 - q3 * step_h + B2 * s2 * step_h),
    )


def soil_water_series(
    rain_mm: Iterable[float],
    step_h: float = TEN_MINUTES_H,
    start: SoilWater = SoilWater(),
) -> Iterator[SoilWater]:
    """Tanks after each step of a rain series.

    Args:
        rain_mm: Depth of rain in each step.
        step_h: Length of a step in hours.
        start: Tanks before the first step. After dry soil, the default, about 60 days
            of rain are needed before the index may be compared with criteria.
    """
    tanks = start
    for depth_mm in rain_mm:
        tanks = tanks.step(depth_mm, step_h)
        yield tanks


STEPS_PER_HOUR = 6
LOOK_AHEAD_STEPS = 12
"""Two hours in steps of ten minutes, the look-ahead of most prefectures."""


@dataclass(frozen=True)
class SnakePoint:
    """Rain and soil water at one time: a point of the snake line.

    Attributes:
        r60_mm: Rain of the last 60 minutes.
        swi_mm: Soil water index.
    """

    r60_mm: float
    swi_mm: float


@dataclass(frozen=True)
class LookAhead:
    """Result of an assumed rain.

    Attributes:
        level: Highest level of now and the look-ahead, 1 to 5; 5 only by now.
        margin_mm: Soil water index below the critical line at the end; negative
            beyond the line, None where the prefecture does not judge it.
        after_steps: Steps of ten minutes until that level; 0 is now.
        point: The point that reaches it.
    """

    level: int
    margin_mm: float | None
    after_steps: int
    point: SnakePoint


def project_snake_line(
    tanks: SoilWater, hour_mm: Sequence[float], rain_mm: Sequence[float]
) -> list[SnakePoint]:
    """Snake line of the coming steps.

    Args:
        tanks: Water in the soil now.
        hour_mm: Rain of the steps of the last hour, at most six, oldest first.
        rain_mm: Assumed rain of each coming step.
    """
    recent, line = list(hour_mm), []
    now = (tanks.s1_mm, tanks.s2_mm, tanks.s3_mm)
    for depth_mm in rain_mm:
        recent = [*recent[1 - STEPS_PER_HOUR :], depth_mm]
        now = step_tanks(*now, depth_mm, TEN_MINUTES_H)
        line.append(SnakePoint(sum(recent), sum(now)))
    return line


def critical_line_margin_mm(moment: SnakePoint, criteria: Criteria) -> float | None:
    """Soil water index below the critical line; negative beyond it.

    Returns:
        None where the prefecture does not judge the line.
    """
    line_mm = criteria.critical_line_mm(moment.r60_mm)
    return None if line_mm == NOT_JUDGED_MM else line_mm - moment.swi_mm


def look_ahead(
    now: SnakePoint, coming: Sequence[SnakePoint], criteria: Criteria
) -> LookAhead:
    """Highest level of now and of the coming hours, at most the look-ahead.

    Raises:
        ScienceError: More than the look-ahead of the criteria is given.
    """
    if len(coming) > criteria.look_ahead_steps:
        rule = f"at most {criteria.look_ahead_steps} steps of ten minutes"
        raise ScienceError("coming", rule, len(coming))
    moments = [now, *coming]
    # Levels grow with both numbers: if the two maxima reach none, no point does.
    highest = SnakePoint(max(m.r60_mm for m in moments), max(m.swi_mm for m in moments))
    if _level(highest, criteria) == LOWEST:
        return LookAhead(LOWEST, critical_line_margin_mm(moments[-1], criteria), 0, now)
    levels = [_level(now, criteria), *assumed_levels(coming, criteria)]
    first = levels.index(max(levels))
    end_mm = critical_line_margin_mm(moments[-1], criteria)
    return LookAhead(levels[first], end_mm, first, moments[first])


def assumed_levels(
    coming: Sequence[SnakePoint], criteria: Criteria, *, max_level: int = DANGER
) -> list[int]:
    """Level of each moment of an assumed rain.

    Args:
        coming: Moments that `project_snake_line` computed.
        criteria: Of the cell.
        max_level: Highest level that assumed rain may give. The official judgement
            gives level 5 by the actual value only, hence level 4.
    """
    return [min(max_level, _level(moment, criteria)) for moment in coming]


def judge_look_ahead(
    ahead: LookAhead,
    criteria: Criteria,
    source: str | None = None,
    issued_s: float = 0.0,
) -> Finding | None:
    """Finding for a level that only the assumed rain reaches.

    Args:
        ahead: Now and the look-ahead.
        criteria: Of the cell.
        source: Issuer of the forecast behind the assumed rain; None where the rain of
            the last hour is assumed to continue.
        issued_s: Unix time of issue of that forecast.
    """
    if not ahead.after_steps:
        return None
    then = judge_rain(ahead.point.r60_mm, ahead.point.swi_mm, criteria)
    if then is None:
        return None
    minutes = ahead.after_steps * 10
    reason = Reason(ReasonCode.AHEAD_SAME_RAIN, minutes=minutes, because=then.reason)
    if source is not None:
        reason = Reason(
            ReasonCode.AHEAD_FORECAST,
            minutes=minutes,
            because=then.reason,
            source=source,
            issued_s=issued_s,
        )
    return Finding(ahead.level, reason)


def _level(moment: SnakePoint, criteria: Criteria) -> int:
    return compute_rain_level(moment.r60_mm, moment.swi_mm, criteria)
