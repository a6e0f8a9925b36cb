"""Levels 1 to 5: the criteria of a cell, the level of its rain, findings and causes.

A level is "equivalent to level n" (レベルn相当): observations are compared with
criteria, and no warning is issued. Sensors other than gauges are judged in
`slope_science.evidence`.

The soil water index has no meaning without local criteria: in Kinki the warning
criterion spans 108 to 369 mm. The prefecture's tables must replace the defaults before
operation; until then every reason contains "assumed criteria". A prefecture does not
judge every level everywhere. Such a criterion is infinite (`NOT_JUDGED_MM`): no index
reaches it, and it is never replaced by a default.

The causes of a level are the kinds of observation that its reasons rest on. Only rain
has the official criteria of JMA and the prefecture, so a text that names one of them
must not be shown for a level by another cause, such as a cut wire.

Source: judgement of JMA and the prefectures.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Final

from slope_science import ScienceError
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, level_reasons

NOT_JUDGED_MM: Final = math.inf
"""Criterion of a level that the prefecture does not judge."""

MAX_LINE_POINTS = 151
"""Prefectures' tables have one point per mm of 60-minute rain from 0 to 150."""

LOOK_AHEAD_H: Final = (2, 3)
"""Hours ahead by which prefectures judge levels 2 to 4; most of them take two."""

LOWEST, ADVISORY, WARNING, DANGER, EMERGENCY = range(1, 6)
JUDGED_LEVELS: Final = (ADVISORY, WARNING, DANGER, EMERGENCY)
"""Levels that rain can reach, each with a criterion."""

FULL_PERCENT: Final = 100.0

CriticalLine = tuple[tuple[float, ...], ...]
NO_LINE: Final[CriticalLine] = ((0.0, NOT_JUDGED_MM), (1.0, NOT_JUDGED_MM))
"""Critical line of a prefecture that does not judge level 4."""


@lru_cache(maxsize=4096)  # the meshes of a prefecture share their lines
def check_critical_line(line: CriticalLine) -> None:
    """Check a critical line; an empty one is allowed.

    Args:
        line: Points (60-minute rain, soil water index) in mm. Below a 60-minute rain
            the index may be `NOT_JUDGED_MM`.

    Raises:
        ScienceError: The points form no line, or the index rises with the rain.
    """
    if not line:
        return
    if not 2 <= len(line) <= MAX_LINE_POINTS or any(len(point) != 2 for point in line):  # noqa: PLR2004 - a point is a pair
        rule = f"2 to {MAX_LINE_POINTS} points of r60 mm and index mm"
        raise ScienceError("line", rule, line)
    if not all(math.isfinite(r60) and r60 >= 0 and mm >= 0 for r60, mm in line):
        raise ScienceError("line", "finite numbers of zero or more", line)
    for (r60_mm, index_mm), (next_r60_mm, next_index_mm) in pairwise(line):
        if next_r60_mm <= r60_mm or next_index_mm > index_mm:
            rule = "rising in r60 and never rising in the index"
            raise ScienceError("line", rule, (next_r60_mm, next_index_mm))
    if line[-1][1] <= 0:
        raise ScienceError("line", "above an index of 0 mm", line[-1])


@dataclass(frozen=True)
class Criteria:
    """Criteria of one cell, as soil water index in mm.

    Attributes:
        warning_mm: Warning (level 3) criterion.
        advisory_mm: Advisory (level 2) criterion, without rain where it is a line.
        special_mm: Special warning (level 5) criterion, without rain likewise.
        assumed: Whether these are defaults instead of the prefecture's table.
        line: Points (60-minute rain, soil water index) of the prefecture's critical
            line; empty for the planning default.
        special_assumed: Whether only the special criterion is a default.
        basis: Source of the three criteria, shown in reasons; None for the
            prefecture's table. The line is always the table's.
        advisory_line: Points of the advisory criterion where it depends on the rain,
            as in JMA's tables since May 2026; empty: the same at any rain.
        special_line: Points of the special criterion likewise.
        look_ahead_h: Hours ahead by which the prefecture judges levels 2 to 4.
    """

    warning_mm: float = 150.0
    advisory_mm: float = 112.5
    special_mm: float = 277.125
    assumed: bool = True
    line: CriticalLine = ()
    special_assumed: bool = False
    basis: Reason | None = None
    advisory_line: CriticalLine = ()
    special_line: CriticalLine = ()
    look_ahead_h: int = LOOK_AHEAD_H[0]

    def __post_init__(self) -> None:
        """Reject criteria that are out of order."""
        limits = (self.advisory_mm, self.warning_mm, self.special_mm)
        judged = [mm for mm in limits if mm != NOT_JUDGED_MM]
        # Comparisons with nan are false.
        if not all(mm > 0 for mm in judged) or judged != sorted(judged):
            rule = "0 < advisory <= warning <= special"
            raise ScienceError("criteria", rule, limits)
        if self.look_ahead_h not in LOOK_AHEAD_H:
            rule = " or ".join(map(str, LOOK_AHEAD_H))
            raise ScienceError("look_ahead_h", rule, self.look_ahead_h)
        for line in (self.line, self.advisory_line, self.special_line):
            check_critical_line(line)

    @classmethod
    def assumed_from(cls, warning_mm: float) -> "Criteria":
        """Planning defaults where only the warning criterion is known.

        Advisory is 0.75 of it (median ratio of Kinki's 26,045 cells); the special
        criterion is 1.25 of the critical line without rain.
        """
        return cls(warning_mm, 0.75 * warning_mm, 1.25 * 1.478 * warning_mm)

    def with_line_percent(self, percent: float) -> "Criteria":
        """These criteria with the critical line at a percentage of itself.

        After a strong earthquake prefectures lower their criteria like this (暫定基準).
        """
        if percent == FULL_PERCENT:
            return self
        share = percent / FULL_PERCENT
        points = self.line or tuple(
            (float(r60), self.critical_line_mm(r60)) for r60 in range(MAX_LINE_POINTS)
        )
        return replace(self, line=tuple((r60, mm * share) for r60, mm in points))

    @property
    def look_ahead_steps(self) -> int:
        """The look-ahead in steps of ten minutes."""
        return 6 * self.look_ahead_h

    @property
    def not_judged(self) -> tuple[int, ...]:
        """Levels that no rain reaches, because the prefecture does not judge them."""
        at_rain_mm = 1e9  # beyond the end of every line, where it is lowest
        return tuple(
            level
            for level in JUDGED_LEVELS
            if self.limit_mm(level, at_rain_mm) == NOT_JUDGED_MM
        )

    @property
    def judges_rain(self) -> bool:
        """Whether rain can reach some level."""
        return self.not_judged != JUDGED_LEVELS

    def limit_mm(self, level: int, r60_mm: float) -> float:
        """Criterion of a level at a 60-minute rain; `NOT_JUDGED_MM` without one."""
        if level == WARNING:
            return self.warning_mm
        if level == DANGER:
            return self.critical_line_mm(r60_mm)
        constant_mm, line = (
            (self.special_mm, self.special_line)
            if level == EMERGENCY
            else (self.advisory_mm, self.advisory_line)
        )
        return _on_line(line, r60_mm) if line else constant_mm

    def critical_line_mm(self, r60_mm: float) -> float:
        """Soil water index of the critical line (level 4) at a 60-minute rain.

        Linear between the points of the prefecture's line, constant beyond its ends.

        Source of the default line:
            Logistic fit to the median of 16,099 Kinki cells (rmse 0.010 of the
            warning criterion for 0 to 120 mm).
        """
        if not (math.isfinite(r60_mm) and r60_mm >= 0):
            raise ScienceError("r60_mm", "zero or more", r60_mm)
        if self.line:
            return _on_line(self.line, r60_mm)
        # Beyond the fitted range the line is constant; exp() would overflow.
        steepness = min((r60_mm - 52.1) / 7.6, 100.0)
        shape = 0.955 + (1.478 - 0.955) / (1 + math.exp(steepness))
        return self.warning_mm * shape


DEFAULT_CRITERIA = Criteria.assumed_from(150.0)


def _on_line(line: CriticalLine, r60_mm: float) -> float:
    after = bisect_right(line, r60_mm, key=lambda point: point[0])
    if after in {0, len(line)}:
        return line[min(after, len(line) - 1)][1]
    (low_mm, high), (next_mm, low) = line[after - 1], line[after]
    if high == NOT_JUDGED_MM:
        return high
    share = (r60_mm - low_mm) / (next_mm - low_mm)
    return high + share * (low - high)


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
