"""Findings: levels 1 to 5 of rain with their reasons, the highest, and its causes.

A level is "equivalent to level n" (レベルn相当): observations are compared with
criteria, and no warning is issued. Sensors other than gauges are judged in
`slope_science.evidence`.

The causes of a level are the kinds of observation that its reasons rest on. Only rain
has the official criteria of JMA and the prefecture, so a text that names one of them
must not be shown for a level by another cause, such as a cut wire.

Source: judgement of JMA and the prefectures.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slope_science import ScienceError
from slope_science.criteria import Criteria
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, level_reasons

LOWEST, ADVISORY, WARNING, DANGER, EMERGENCY = range(1, 6)

CRITERIA_LEVELS: Final = {
    "special": EMERGENCY,
    "line": DANGER,
    "warning": WARNING,
    "advisory": ADVISORY,
}
"""Level of each criterion for rain, the highest first."""

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
    for criterion, level in CRITERIA_LEVELS.items():
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
    for level in CRITERIA_LEVELS.values():
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


class Cause(StrEnum):
    """Kind of observation; the names are those of the rules in the settings."""

    RAIN = "rain"
    TILT = "tilt"
    DISPLACEMENT = "displacement"
    WIRE = "wire"
    VIBRATION = "vibration"
    SATURATION = "saturation"
    PORE = "pore"
    WATER_LEVEL = "water_level"
    LIMIT = "limit"
    OTHER = "other"


_CAUSES: Final[Mapping[ReasonCode | str, Cause]] = {
    ReasonCode.SOIL_WATER: Cause.RAIN,
    ReasonCode.TILT: Cause.TILT,
    ReasonCode.SPEED: Cause.DISPLACEMENT,
    ReasonCode.DISPLACEMENT_STEP: Cause.DISPLACEMENT,
    ReasonCode.DISPLACEMENT_DAYS: Cause.DISPLACEMENT,
    ReasonCode.FAILURE_TIME: Cause.DISPLACEMENT,
    ReasonCode.SHOCKS: Cause.VIBRATION,
    ReasonCode.WIRE_CUT: Cause.WIRE,
    ReasonCode.SOIL_WET: Cause.SATURATION,
    ReasonCode.PORE_TURNED: Cause.PORE,
    ReasonCode.PORE_POSITIVE: Cause.PORE,
    ReasonCode.PORE_HIGH: Cause.PORE,
    ReasonCode.WATER_LEVEL_STEP: Cause.WATER_LEVEL,
    ReasonCode.LIMIT: Cause.LIMIT,
}


def find_causes(level: int, reasons: Sequence[Reason]) -> tuple[Cause, ...]:
    """Causes of a level, rain first.

    The first reason that is no note gives the level. Rain counts beside it if it
    reaches the criterion of the same level; without reasons there is no cause.
    """
    given = [_cause(reason) for reason in level_reasons(reasons)[-1:]]
    has_rain = any(
        CRITERIA_LEVELS.get(each.params.get("criterion", "")) == level
        for reason in reasons
        if reason.code != ReasonCode.NODE_LEVEL_LOWERED
        for each in iter_chain(reason)
        if each.code == ReasonCode.SOIL_WATER
    )
    found = [Cause.RAIN, *given] if has_rain else given
    return tuple(dict.fromkeys(found))


def observed_causes(reasons: Iterable[Reason]) -> frozenset[Cause]:
    """Every kind of observation that reasons name, whatever level it gives."""
    chains = (each.code for reason in reasons for each in iter_chain(reason))
    return frozenset(_CAUSES[code] for code in chains if code in _CAUSES)


def iter_chain(reason: Reason) -> Iterable[Reason]:
    """A reason and those that it contains, the outermost first."""
    inner: object = reason
    while isinstance(inner, Reason):
        yield inner
        inner = inner.params.get("because")


def _cause(reason: Reason) -> Cause:
    chain = list(iter_chain(reason))
    known = [_CAUSES[each.code] for each in chain if each.code in _CAUSES]
    if known:
        return known[0]
    held = [each for each in chain if each.code == ReasonCode.LEVEL_HELD]
    is_of_rain = any(each.params.get("sensor") is None for each in held)
    return Cause.RAIN if is_of_rain else Cause.OTHER
