"""Rules for scoring a cell: criteria, telegrams, forecasts; level and look-ahead."""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from backend_spark.criteria.telegrams import Telegram, find_official_level
from backend_spark.scoring.holds import NO_LIMITS, HoldLimits
from backend_spark.scoring.observation import (
    STEP_S,
    Observation,
    last_suspects,
)
from backend_spark.scoring.rain import (
    RainState,
    StepRain,
    Substitute,
    SubstituteRain,
)
from backend_spark.scoring.reviews import is_counted_after_review
from backend_spark.scoring.revisions import SETTLED_DAYS
from backend_spark.scoring.surrounding_rain import (
    CellAnalyses,
    find_analysed,
    substitute_analysed,
)
from slope_science.evidence.settings import DEFAULT_EVIDENCE, EvidenceSettings
from slope_science.levels import (
    DANGER,
    LOWEST,
    Criteria,
    Finding,
    Judgement,
    combine_findings,
    iter_chain,
    judge_rain,
)
from slope_science.official_rain import NO_FORECAST, ForecastRain
from slope_science.rain_and_soil_water import (
    LookAhead,
    SnakePoint,
    SoilWater,
    critical_line_margin_mm,
    judge_look_ahead,
    look_ahead,
    project_snake_line,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english


@dataclass(frozen=True)
class CellOutlook:
    """The look-ahead under three assumed rains; see slope_science.rain_and_soil_water.

    Attributes:
        margin_mm: Soil water index below the critical line now; None without one.
        dry: Result without rain.
        same_rain: With the rain of the last hour; None if unknown.
        forecast: With an official forecast; None without a usable one.
        forecast_rain: That forecast.
    """

    margin_mm: float | None
    dry: LookAhead
    same_rain: LookAhead | None = None
    forecast: LookAhead | None = None
    forecast_rain: ForecastRain = NO_FORECAST

    def finding(self, criteria: Criteria, *, same_rain: bool = False) -> Finding | None:
        """Finding of the look-ahead.

        Args:
            criteria: Of the cell.
            same_rain: Whether the last hour's rain replaces a forecast, without one.
        """
        if self.forecast is None:
            ahead = self.same_rain if same_rain else None
            return judge_look_ahead(ahead, criteria) if ahead else None
        source, issued_s = (
            self.forecast_rain.source or "",
            self.forecast_rain.issued_s or 0.0,
        )
        return judge_look_ahead(self.forecast, criteria, source, issued_s)

    def columns(self) -> dict[str, Any]:
        """Columns of schemas.LEVELS."""
        issued_s = self.forecast_rain.issued_s
        found: dict[str, Any] = {
            "margin_mm": self.margin_mm,
            "forecast_source": self.forecast_rain.source,
            "forecast_issued_at": None if issued_s is None else round(issued_s * 1e6),
            "forecast_mm": self.forecast_rain.depths_mm,
            "forecast_why": self.forecast_rain.why,
        }
        futures = {"dry": self.dry, "same": self.same_rain, "forecast": self.forecast}
        for name, future in futures.items():
            found[f"margin_{name}_mm"] = future and future.margin_mm
            found[f"level_{name}"] = future and future.level
        return found


def make_outlook(
    tanks: SoilWater,
    hour: Sequence[StepRain],
    criteria: Criteria,
    coming: ForecastRain = NO_FORECAST,
) -> CellOutlook:
    """Look ahead of a moment, by the hours of the criteria.

    Args:
        tanks: Water in the soil at that time.
        hour: Result of `last_hour`.
        criteria: Criteria of the cell.
        coming: Official forecast of rain from then on.
    """
    depths = [step.depth_mm for step in hour]
    known = [step.depth_mm for step in hour if step.is_known]
    now = SnakePoint(sum(depths), tanks.index_mm)

    def future(depths_mm: Sequence[float]) -> LookAhead:
        return look_ahead(now, project_snake_line(tanks, depths, depths_mm), criteria)

    steps = criteria.look_ahead_steps
    dry = future([0.0] * steps)
    # The mean of the known steps only: unknown ones are not dry.
    mean_mm = sum(known) / len(known) if known else None
    same = future([mean_mm] * steps) if mean_mm else dry
    return CellOutlook(
        critical_line_margin_mm(now, criteria),
        dry,
        None if mean_mm is None else same,
        None if coming.depths_mm is None else future(coming.depths_mm[:steps]),
        coming,
    )


def list_assumptions(
    criteria: Criteria, history_s: float, view: CellOutlook | None = None
) -> tuple[Reason, ...]:
    """Assumptions behind a level and its futures."""
    found = []
    if criteria.assumed:
        found.append(_DEFAULT_CRITERIA)
    elif not criteria.line and DANGER not in criteria.not_judged:
        found.append(_DEFAULT_LINE)
    if criteria.special_assumed:
        found.append(_DEFAULT_SPECIAL)
    found += not_judged_reasons(criteria)
    if history_s < SETTLED_DAYS * 86_400:
        found.append(_dry_start(round(history_s / 86_400)))
    if view is not None and view.forecast is None:
        found.append(_NO_FORECAST)
    return tuple(found)


@lru_cache(maxsize=1024)
def not_judged_reasons(criteria: Criteria) -> tuple[Reason, ...]:
    """Reason that names the levels which the prefecture does not judge, if any."""
    levels = ", ".join(map(str, criteria.not_judged))
    return (Reason(ReasonCode.NOT_JUDGED, levels=levels),) if levels else ()


@lru_cache(maxsize=SETTLED_DAYS + 1)
def _dry_start(days: int) -> Reason:
    return Reason(ReasonCode.DRY_START, days=days)


@lru_cache(maxsize=1024)
def assumption_sentence(assumption: Reason) -> str:
    """An assumption in English; cached, because each row of levels has several."""
    return render_english(assumption)


_DEFAULT_CRITERIA: Final = Reason(ReasonCode.DEFAULT_CRITERIA)
_DEFAULT_LINE: Final = Reason(ReasonCode.DEFAULT_LINE)
_DEFAULT_SPECIAL: Final = Reason(ReasonCode.DEFAULT_SPECIAL)
_NO_FORECAST: Final = Reason(ReasonCode.NO_FORECAST)


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


@dataclass(frozen=True)
class CellRules:
    """Rules for scoring a cell.

    Attributes:
        criteria: Criteria for rain.
        look_ahead: Whether an official forecast of rain may raise a level. The columns
            of the look-ahead are written in any case.
        municipality: Code of the cell's municipality; None if unknown.
        telegrams: JMA's telegrams.
        forecast: Function from a Unix time to the official forecast; None without one.
        limits: When holds end without evidence.
        alone_level: Highest level of doubtful rain that nothing else confirms.
        substitutes: Functions from the end of a step to the rain that takes the place
            of missing rain, the best first; analysed rain comes before, an official
            forecast after them.
        analyses: Analysed rain and soil water index of the cell; None without.
        same_rain: Whether the rain of the last hour, continued, may raise a level
            without a usable forecast.
        evidence: Rules of movement and water.
    """

    criteria: Criteria
    look_ahead: bool = True
    municipality: str | None = None
    telegrams: Sequence[Telegram] = ()
    forecast: Callable[[float], ForecastRain] | None = None
    limits: HoldLimits = NO_LIMITS
    substitutes: Sequence[Substitute] = ()
    alone_level: int = ALONE_LEVEL
    analyses: CellAnalyses | None = None
    same_rain: bool = False
    evidence: EvidenceSettings = DEFAULT_EVIDENCE

    def substitute(self, end_s: int) -> SubstituteRain | None:
        """Rain of a step in place of missing rain; None if there is none."""
        sources = (self._analysed_step, *self.substitutes, self._forecast_step)
        found = (each(end_s) for each in sources)
        return next((rain for rain in found if rain is not None), None)

    def _analysed_step(self, end_s: int) -> SubstituteRain | None:
        return substitute_analysed(self.analyses, end_s)

    def _forecast_step(self, end_s: int) -> SubstituteRain | None:
        coming = self.forecast_rain(end_s - STEP_S)
        if coming.depths_mm is None or coming.issued_s is None:
            return None
        reason = Reason(
            ReasonCode.RAIN_FROM_FORECAST,
            source=coming.source or "",
            issued_s=coming.issued_s,
        )
        return SubstituteRain(coming.depths_mm[0], reason)

    def keep_judged(
        self,
        sources: Mapping[int, Reason],
        ends_s: Sequence[int],
        states: Sequence[RainState],
    ) -> dict[int, Reason]:
        """Sources of rain by step, where rain from elsewhere gives a level.

        It needs an index to be added to, or that of the analyses beside it. Otherwise
        the soil is unknown, and level 1 would claim calm.
        """
        return {
            at: reason
            for at, reason in sources.items()
            if states[at].tanks is not None or self._has_index(ends_s[at])
        }

    def _has_index(self, at_s: float) -> bool:
        analyses = self.analyses
        return analyses is not None and analyses.state(at_s).index_mm is not None

    def forecast_rain(self, at_s: float) -> ForecastRain:
        """Forecast rain after a moment."""
        return self.forecast(at_s) if self.forecast else NO_FORECAST

    def analysis_finding(self, at_s: float, rain: RainState) -> Finding | None:
        """Finding of the analyses known at a moment; the gauges' fill what is absent.

        Args:
            at_s: Unix time of the end of a step.
            rain: Rain and soil water by the gauges, without doubtful rain: a finding of
                the analyses is not restricted as that of doubtful rain is.
        """
        index_mm = rain.tanks.index_mm if has_recent_rain(rain) and rain.tanks else None
        return find_analysed(self.analyses, at_s, self.criteria, index_mm, rain.r60_mm)

    def digest(self, at_s: int) -> int:
        """Number that differs if the rules judge the step that ends then otherwise."""
        judged = (
            _text_of(self.criteria),
            *map(repr, (self.look_ahead, self.municipality, self.limits)),
            *map(repr, (self.alone_level, self.same_rain)),
            repr(self.official_columns(at_s)),
            self.evidence.text,
            repr(self.forecast_rain(at_s)),
            repr(None if self.analyses is None else self.analyses.state(at_s)),
        )
        return zlib.crc32(f"({', '.join(judged)})".encode())

    def official_columns(self, at_s: float) -> dict[str, int | None]:
        """Columns with JMA's level for the cell's municipality."""
        if self.municipality is None:
            return {}
        found = find_official_level(self.telegrams, self.municipality, at_s)
        level, reported_s = found or (None, None)
        reported_us = None if reported_s is None else round(reported_s * 1_000_000)
        return {"official_level": level, "official_at": reported_us}


@lru_cache(maxsize=4096)
def _text_of(criteria: Criteria) -> str:
    """Criteria as text: of a table they have up to 450 numbers."""
    return repr(criteria)
