"""Level and reasons of one step from the findings of its evidence."""

from collections.abc import Collection, Iterable
from typing import Final

from backend_spark.scoring.features import not_judged_reasons
from backend_spark.scoring.observation import Observation, last_suspects
from backend_spark.scoring.rain import (
    ALONE_LEVEL,
    RainState,
    cap_doubtful_rain,
)
from backend_spark.scoring.reviews import is_counted_after_review
from slope_science.criteria import JUDGED_LEVELS, Criteria
from slope_science.findings import LOWEST, Finding, combine_findings, judge_rain
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

_LOWER_BOUND: Final = (Reason(ReasonCode.LOWER_BOUND),)
NO_JUDGEMENT_AFTER_S: Final = 24 * 3600
"""Time without rain data after which there is no judgement by rain."""


def has_recent_rain(rain: RainState) -> bool:
    """Whether there are rain data of the last day."""
    return rain.tanks is not None and rain.gap_s <= NO_JUDGEMENT_AFTER_S


def judge_step(  # noqa: PLR0913 - each kind of evidence by name
    rain: RainState,
    motion: Iterable[Finding | None],
    criteria: Criteria,
    sure: RainState | None = None,
    *,
    held: Iterable[Finding] = (),
    source: Reason | None = None,
    alone_level: int = ALONE_LEVEL,
) -> tuple[int | None, tuple[Reason, ...]]:
    """Level and reasons at the end of a step; None is no judgement.

    Args:
        rain: Rain and soil water.
        motion: Findings of other sensors.
        criteria: Criteria for rain.
        sure: Rain and soil water without doubtful rain; None if there is none.
        held: Held levels, where evidence is missing.
        source: Where the rain of the step is from, if it is not the cell's own.
        alone_level: Highest level of doubtful rain that nothing else confirms.
    """
    signs = [*held, *motion]
    if has_recent_rain(rain) or source is not None:
        judgement = combine_findings([*signs, _rain_finding(rain, criteria)])
        if sure is not None:
            without = combine_findings([*signs, _rain_finding(sure, criteria)])
            judgement = cap_doubtful_rain(judgement, without, sure, alone_level, signs)
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


def list_doubts(in_step: Collection[Observation]) -> tuple[Reason, ...]:
    """Suspect readings that count in a step, by their reasons, and reviewed ones."""
    sensors: dict[str, list[str]] = {}
    because: dict[str, tuple[Reason, ...]] = {}
    for sensor, o in last_suspects(in_step).items():
        why = o.why or "suspect"
        sensors.setdefault(why, []).append(sensor)
        because[why] = o.reasons
    kept = sorted({f"{o.node} {o.name}" for o in in_step if is_counted_after_review(o)})
    notes = [Reason(ReasonCode.COUNTED_AFTER_REVIEW, sensors=kept)] if kept else []
    return (
        *(
            Reason(
                ReasonCode.SUSPECT, sensors=sorted(sensors[why]), because=because[why]
            )
            for why in sorted(sensors)
        ),
        *notes,
    )
