"""Levels 1 to 5 from numbers, with their reasons.

A level is "equivalent to level n" (レベルn相当): observations are compared with
criteria, and no warning is issued.

Source: judgement of JMA and the prefectures for rain; Uchimura et al. 2015 for
tilt; a cut wire means that a flow has probably occurred.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from slope_science.creep import (
    CAUTION_DURATION_H,
    CAUTION_MM_PER_H,
    EVACUATION_MM_PER_H,
    Velocity,
)
from slope_science.criteria import Criteria
from slope_science.errors import ScienceError
from slope_science.failure_time import FailureForecast
from slope_science.movement import PRECAUTION_DEG_PER_H, WARNING_DEG_PER_H, TiltRate
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

LOWEST, ADVISORY, WARNING, DANGER, EMERGENCY = range(1, 6)
FAILURE_LEVEL_4_H, FAILURE_LEVEL_3_H = 6.0, 24.0
"""A failure time within these is level 4 and level 3; our proposal, no source."""

_CRITERIA_NAMES = (
    (EMERGENCY, "special"),
    (DANGER, "line"),
    (WARNING, "warning"),
    (ADVISORY, "advisory"),
)
_ASSUMED_CRITERIA = Reason(ReasonCode.ASSUMED_CRITERIA)
_ASSUMED_LINE = Reason(ReasonCode.ASSUMED_LINE)
_ASSUMED_CRITERION = Reason(ReasonCode.ASSUMED_CRITERION)


@dataclass(frozen=True)
class Finding:
    """Result of one rule whose criterion is reached.

    Attributes:
        level: 1 to 5.
        reason: The rule and the numbers.
        notice_level: Level for notices and sirens; None for `level`.
    """

    level: int
    reason: Reason
    notice_level: int | None = None


@dataclass(frozen=True)
class Judgement:
    """Level of a place with its reasons.

    Attributes:
        level: Highest level of the findings; 1 without findings.
        reasons: Reasons of all findings, highest level first.
    """

    level: int
    reasons: tuple[Reason, ...]


def combine_findings(findings: Iterable[Finding | None]) -> Judgement:
    """Combine findings; the highest level counts."""
    found = sorted((f for f in findings if f), key=lambda f: f.level, reverse=True)
    level = found[0].level if found else LOWEST
    return Judgement(level, tuple(f.reason for f in found))


def noticed(findings: Iterable[Finding | None]) -> list[Finding]:
    """Findings at the level that they have for notices and sirens."""
    return [
        f if f.notice_level is None else Finding(f.notice_level, f.reason)
        for f in findings
        if f is not None
    ]


def judge_rain(
    r60_mm: float,
    swi_mm: float,
    criteria: Criteria,
    was_level: int = LOWEST,
    clear_share: float = 1.0,
    *,
    sensor: str | None = None,
) -> Finding | None:
    """Compare observed rain with the criteria, the highest first.

    A level that the prefecture does not judge is never given.

    Args:
        r60_mm: Rain of the last 60 minutes.
        swi_mm: Soil water index.
        criteria: Of the cell.
        was_level: Previous level. Criteria up to this level stay reached until the
            index falls below `clear_share` of them.
        clear_share: Share of a criterion, up to 1.
        sensor: Name of the gauge, where gauges are judged separately.
    """
    if not (math.isfinite(swi_mm) and swi_mm >= 0):
        # Comparisons with nan are false and would result in level 1.
        raise ScienceError("swi_mm", "zero or more", swi_mm)
    for level, criterion in _CRITERIA_NAMES:
        limit_mm = criteria.limit_mm(level, r60_mm)
        share = clear_share if level <= was_level else 1.0
        if swi_mm >= limit_mm * share:
            reason = Reason(
                ReasonCode.SOIL_WATER,
                index_mm=swi_mm,
                limit_mm=limit_mm,
                criterion=criterion,
                r60_mm=r60_mm if level == DANGER else None,
                basis=_basis(level, criteria),
                how="reached" if swi_mm >= limit_mm else "near",
                sensor=sensor,
            )
            return Finding(level, reason)
    return None


def compute_rain_level(r60_mm: float, swi_mm: float, criteria: Criteria) -> int:
    """Level of `judge_rain` without reason; the arguments are not checked."""
    for level, _ in _CRITERIA_NAMES:
        if swi_mm >= criteria.limit_mm(level, r60_mm):
            return level
    return LOWEST


def _basis(level: int, criteria: Criteria) -> Reason | None:
    """Where the criterion of a level comes from; None for the prefecture's table."""
    if criteria.assumed:
        return _ASSUMED_CRITERIA
    if level == DANGER:
        return None if criteria.line else _ASSUMED_LINE
    if level == EMERGENCY and criteria.special_assumed:
        return _ASSUMED_CRITERION
    return criteria.basis


def judge_tilt(sensor: str, rate: TiltRate | None) -> Finding | None:
    """Compare a tilt rate with the thresholds."""
    if rate is None:
        return None
    for level, limit in ((DANGER, WARNING_DEG_PER_H), (WARNING, PRECAUTION_DEG_PER_H)):
        if rate.exceeds(limit):
            reason = Reason(
                ReasonCode.TILT,
                sensor=sensor,
                deg_per_h=rate.deg_per_h,
                limit_deg_per_h=limit,
            )
            return Finding(level, reason)
    return None


def judge_speed(
    sensor: str, speed: Velocity | None, has_lasted: bool
) -> Finding | None:
    """Compare a displacement speed with the management values.

    Args:
        sensor: Name of the extensometer.
        speed: Over the last hour.
        has_lasted: Whether it has been at the caution speed for two hours.

    Source:
        道路土工 (2009) and 現場に役立つ地すべり工学: 注意体制 from 2 mm/h, entry is
        banned after 2 h of it, 警戒 ends at 4 mm/h. One extensometer alone gives at
        most level 4.
    """
    if speed is None:
        return None
    caution = WARNING if has_lasted else ADVISORY
    for level, limit in ((DANGER, EVACUATION_MM_PER_H), (caution, CAUTION_MM_PER_H)):
        if speed.exceeds(limit):
            reason = Reason(
                ReasonCode.SPEED,
                sensor=sensor,
                mm_per_h=speed.mm_per_h,
                limit_mm_per_h=limit,
                lasted_h=CAUTION_DURATION_H if level == WARNING else None,
            )
            return Finding(level, reason)
    return None


def judge_failure_time(
    sensor: str, forecast: FailureForecast | None, now_h: float
) -> Finding | None:
    """Level of a failure time that passes its quality gates.

    Args:
        sensor: Name of the extensometer.
        forecast: Failure time by Voight's law.
        now_h: Time on the clock of the forecast.
    """
    if forecast is None or not forecast.is_usable(now_h):
        return None
    left_h = forecast.failure_h - now_h
    for level, limit_h in ((DANGER, FAILURE_LEVEL_4_H), (WARNING, FAILURE_LEVEL_3_H)):
        if left_h <= limit_h:
            reason = Reason(
                ReasonCode.FAILURE_TIME,
                sensor=sensor,
                left_h=left_h,
                half_width_h=forecast.half_width_h,
                r2=forecast.r2,
            )
            return Finding(level, reason)
    return None


def compute_municipality_level(
    levels: Iterable[int | None], min_cells: int = 1
) -> int | None:
    """Level of a municipality: the highest one that enough of its cells reach.

    Args:
        levels: Levels of its cells; None is no judgement.
        min_cells: Minimum number of cells at that level or above.

    Returns:
        None without a judged cell.
    """
    if min_cells < 1:
        raise ScienceError("least_cells", "1 or more", min_cells)
    known = sorted((level for level in levels if level is not None), reverse=True)
    if not known:
        return None
    return known[min_cells - 1] if len(known) >= min_cells else LOWEST


def judge_shocks(sensor: str, count: float, limit: float) -> Finding | None:
    """Compare the shocks of ten minutes with the limit.

    The result is level 2 at most, because traffic and storms cause shocks too.

    Args:
        sensor: Name of the vibration sensor.
        count: Shocks.
        limit: Limit from the sensor's own past; see `background_limit`.
    """
    if count < limit:
        return None
    reason = Reason(ReasonCode.SHOCKS, sensor=sensor, count=count, limit=limit)
    return Finding(ADVISORY, reason)


def judge_wire(
    sensor: str,
    is_cut: bool,
    confirmed_by: str | None = None,
    *,
    is_old: bool = False,
) -> Finding | None:
    """Level of a trip wire: a cut means that a flow has probably occurred.

    Args:
        sensor: Name of the wire.
        is_cut: Whether it is cut.
        confirmed_by: Another sensor that reacted within 2 minutes. Without one the
            cause may be an animal or a falling rock, and the reason is "unconfirmed".
        is_old: Whether the cut is too old to look for a confirmation.
    """
    if not is_cut:
        return None
    cut = Reason(ReasonCode.WIRE_CUT, sensor=sensor)
    if is_old:
        return Finding(EMERGENCY, Reason(ReasonCode.LONG_AGO, because=cut))
    if confirmed_by:
        reason = Reason(ReasonCode.CONFIRMED, because=cut, by=confirmed_by)
        return Finding(EMERGENCY, reason)
    return Finding(EMERGENCY, Reason(ReasonCode.UNCONFIRMED, because=cut))
