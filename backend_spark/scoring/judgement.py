"""Level of one step of a cell from its rain and its other evidence.

Rain alone: the prefecture's criteria, restricted where it rests on doubtful readings
only, and to the levels that the prefecture judges.
"""

from collections.abc import Iterable
from typing import Final

from backend_spark.scoring.features import not_judged_reasons
from backend_spark.scoring.rain import RainState
from slope_science.criteria import JUDGED_LEVELS, Criteria
from slope_science.findings import (
    LOWEST,
    Finding,
    Judgement,
    combine_findings,
    judge_rain,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_LOWER_BOUND: Final = (Reason(ReasonCode.LOWER_BOUND),)
DOUBTFUL_RAIN_LEVEL: Final = 3
"""Highest level of rain that no second gauge, stream or soil confirms, as at a node."""

WATER_CODES: Final = frozenset({
    ReasonCode.SOIL_WET,
    ReasonCode.PORE_TURNED,
    ReasonCode.PORE_HIGH,
    ReasonCode.WATER_LEVEL_STEP,
})
"""Findings that confirm doubtful rain."""

NO_JUDGEMENT_AFTER_S: Final = 24 * 3600


def has_recent_rain(rain: RainState) -> bool:
    """Whether there are rain data of the last day."""
    return rain.tanks is not None and rain.gap_s <= NO_JUDGEMENT_AFTER_S


def judge_step(
    rain: RainState,
    motion: Iterable[Finding | None],
    criteria: Criteria,
    sure: RainState | None = None,
    *,
    held: Iterable[Finding] = (),
    source: Reason | None = None,
) -> tuple[int | None, tuple[Reason, ...]]:
    """Level and reasons at the end of a step; None is no judgement.

    Args:
        rain: Rain and soil water.
        motion: Findings of other sensors.
        criteria: Criteria for rain.
        sure: The same without doubtful rain; None if there is none.
        held: Held levels, where evidence is missing.
        source: Where the rain of the step is from, if it is not the cell's own.
    """
    signs = [*held, *motion]
    if has_recent_rain(rain) or source is not None:
        judgement = combine_findings([*signs, _rain_finding(rain, criteria)])
        if sure is not None:
            without = combine_findings([*signs, _rain_finding(sure, criteria)])
            judgement = _unconfirmed(judgement, without, sure, signs)
        notes = [] if source is None else [source]
        notes += _LOWER_BOUND * rain.is_lower_bound
        reasons = (*judgement.reasons, *notes)
        return _within_criteria(judgement.level, reasons, rain, criteria)
    judgement = combine_findings(signs)
    hours = rain.gap_s / 3600 if rain.tanks else None
    reasons = (*judgement.reasons, Reason(ReasonCode.NO_RAIN_DATA, hours=hours))
    return (judgement.level if judgement.level > LOWEST else None), reasons


def _within_criteria(
    level: int, reasons: tuple[Reason, ...], rain: RainState, criteria: Criteria
) -> tuple[int | None, tuple[Reason, ...]]:
    """Level and reasons, restricted to what the prefecture judges.

    Rain that is not judged at all gives no level 1. Where it reaches a criterion, the
    reasons name the higher levels that it cannot reach.
    """
    is_never_judged = len(criteria.not_judged) == len(JUDGED_LEVELS)
    if is_never_judged or _rain_finding(rain, criteria):
        reasons += not_judged_reasons(criteria)
    return None if is_never_judged and level == LOWEST else level, reasons


def _rain_finding(rain: RainState, criteria: Criteria) -> Finding | None:
    if rain.tanks is None:
        return None
    return judge_rain(rain.r60_mm or 0.0, rain.tanks.index_mm, criteria)


def _unconfirmed(
    judged: Judgement,
    without: Judgement,
    sure: RainState,
    signs: Iterable[Finding | None],
) -> Judgement:
    """Restrict a level that rests on doubtful rain only, and give the reason.

    Args:
        judged: With all rain.
        without: Without doubtful rain.
        sure: Rain and soil water without it.
        signs: Findings of other sensors, which may confirm it.
    """
    if judged.level == without.level:
        return judged
    index_mm = sure.tanks.index_mm if sure.tanks else 0.0
    note = Reason(ReasonCode.SUSPECT_RAIN, level=without.level, index_mm=index_mm)
    level = judged.level
    if not any(map(_shows_water, signs)):
        level = max(without.level, min(level, DOUBTFUL_RAIN_LEVEL))
    return Judgement(level, (note, *judged.reasons))


def _shows_water(finding: Finding | None) -> bool:
    """Whether a finding of another sensor shows much water, as doubtful rain would."""
    return finding is not None and finding.reason.code in WATER_CODES
