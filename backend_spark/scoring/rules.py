"""Rules for scoring a cell: criteria, telegrams, forecasts, evidence."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from backend_spark.criteria.jma import Telegram, find_official_level
from backend_spark.scoring.analysed_rain import (
    CellAnalyses,
    find_analysed,
    substitute_analysed,
)
from backend_spark.scoring.holds import NO_LIMITS, HoldLimits
from backend_spark.scoring.judgement import ALONE_LEVEL, has_recent_rain
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.rain import (
    RainState,
    Substitute,
    SubstituteRain,
)
from slope_science.criteria import Criteria
from slope_science.evidence.settings import DEFAULT_EVIDENCE, EvidenceSettings
from slope_science.findings import Finding
from slope_science.rain_forecast import NO_FORECAST, ForecastRain
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason


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
