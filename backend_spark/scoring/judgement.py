"""Level and reasons of one step from the findings of its evidence."""

from collections.abc import Collection, Iterable
from typing import Final

from backend_spark.scoring.features import not_judged_reasons
from backend_spark.scoring.observation import Observation, last_suspects
from backend_spark.scoring.rain import RainState
from backend_spark.scoring.reviews import is_counted_after_review
from slope_science.causes import iter_chain
from slope_science.criteria import Criteria
from slope_science.findings import (
    LOWEST,
    Finding,
    Judgement,
    combine_findings,
    judge_rain,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

ALONE_LEVEL: Final = 3
"""Highest level of doubtful rain that nothing else confirms, as at a node."""

WATER_CODES: Final = frozenset({
    ReasonCode.SOIL_WET,
    ReasonCode.PORE_TURNED,
    ReasonCode.PORE_HIGH,
    ReasonCode.WATER_LEVEL_STEP,
})
"""Findings of soil and streams that confirm doubtful rain; of a stream, a rise."""

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
    is_judged = criteria.judges_rain
    if not is_judged or _rain_finding(rain, criteria):
        reasons += not_judged_reasons(criteria)
    return level if is_judged or level > LOWEST else None, reasons


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


def cap_doubtful_rain(
    judged: Judgement,
    without: Judgement,
    sure: RainState,
    alone_level: int,
    signs: Iterable[Finding | None],
) -> Judgement:
    """Restrict a level that rests on doubtful rain only, and give the reason.

    Args:
        judged: With all rain.
        without: Without doubtful rain.
        sure: Rain and soil water without it.
        alone_level: Highest level of rain that no sign confirms.
        signs: Findings of other sensors.
    """
    if judged.level == without.level:
        return judged
    index_mm = sure.tanks.index_mm if sure.tanks else 0.0
    note = Reason(ReasonCode.SUSPECT_RAIN, level=without.level, index_mm=index_mm)
    level = judged.level
    if not any(sign and _shows_much_water(sign) for sign in signs):
        level = max(without.level, min(level, alone_level))
    return Judgement(level, (note, *judged.reasons))


def _shows_much_water(sign: Finding) -> bool:
    """Whether a finding, also a held or unconfirmed one, is of much water."""
    return any(
        each.code in WATER_CODES and each.params.get("step_m", 0.0) >= 0
        for each in iter_chain(sign.reason)
    )
