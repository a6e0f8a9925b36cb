"""Rain predictors of landslides, on a grid that every length of step has in common.

A step is shared evenly among sub-steps of at most ten minutes, a whole number of which
makes an hour: the soil water index and the 60-minute rain need them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from backend_spark.evaluation.inputs import EvaluationRain
from slope_science.criteria import Criteria
from slope_science.findings import compute_rain_level
from slope_science.rain_and_soil_water import (
    ANTECEDENT_DAYS,
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    antecedent_index,
    effective_rain,
    rain_60min,
    step_tanks,
)

HOUR_S: Final = 3600
DAY_H: Final = 24.0
MAX_SUB_STEP_S: Final = 600
"""Ten minutes, as in official soil water indices."""

# Chleborad et al. 2008: 72-hour rain against that of the 360 hours before, in mm.
_CT_START_MM, _CT_SLOPE = 88.9, -0.67
_RECENT_H, _OLDER_H = 72.0, 360.0

Compute = Callable[[EvaluationRain], list[float]]


@dataclass(frozen=True)
class Predictor:
    """A number at the end of each step, in mm.

    Attributes:
        compute: Function of a series.
        memory_h: Window or half-life: no step may be longer.
        has_window: Whether the memory must be a whole number of steps.
        column: Column of gold that holds the same number; None without.
    """

    compute: Compute
    memory_h: float
    has_window: bool = False
    column: str | None = None

    def unfit_reason(self, step_h: float) -> str | None:
        """Why it has no meaning at a length of step; None if it has."""
        if step_h > self.memory_h:
            return f"needs steps of at most {self.memory_h:g} h"
        steps = self.memory_h / step_h
        if self.has_window and abs(steps - round(steps)) > 1e-9:  # noqa: PLR2004 - rounding
            return f"needs a whole number of steps in {self.memory_h:g} h"
        return None


def known_depths(series: EvaluationRain) -> list[float]:
    """Depths with zero for unknown steps: sums are lower bounds there."""
    return [depth or 0.0 for depth in series.depth_mm]


def soil_water_series_mm(series: EvaluationRain) -> list[float]:
    """Soil water index at the end of each step."""
    per_step = _per_step(series)
    step_h = series.step_h / per_step
    found, tanks = [], (0.0, 0.0, 0.0)
    for depth_mm in known_depths(series):
        share_mm = depth_mm / per_step
        for _ in range(per_step):
            tanks = step_tanks(*tanks, share_mm, step_h)
        found.append(sum(tanks))
    return found


def judge_rain_series(series: EvaluationRain, criteria: Criteria) -> list[int]:
    """Level of the rain at the end of each step, which is an hour or shorter."""
    per_step = _per_step(series)
    depths = [d / per_step for d in known_depths(series) for _ in range(per_step)]
    hour_mm = rain_60min(depths, series.step_h / per_step)[per_step - 1 :: per_step]
    pairs = zip(hour_mm, soil_water_series_mm(series), strict=True)
    return [compute_rain_level(r60_mm, swi_mm, criteria) for r60_mm, swi_mm in pairs]


def _per_step(series: EvaluationRain) -> int:
    """Number of sub-steps of a step."""
    step_s = round(series.step.total_seconds())
    common_s = math.gcd(step_s, HOUR_S)
    return step_s // common_s * math.ceil(common_s / MAX_SUB_STEP_S)


def _sum_of(hours: float) -> Compute:
    def rain_mm(series: EvaluationRain) -> list[float]:
        return _sums(known_depths(series), round(hours / series.step_h))

    return rain_mm


def _effective(half_life_h: float) -> Compute:
    def rain_mm(series: EvaluationRain) -> list[float]:
        return effective_rain(known_depths(series), series.step_h, half_life_h)

    return rain_mm


def _antecedent(series: EvaluationRain) -> list[float]:
    """Antecedent rainfall index of the last seven times 24 hours, in mm per day."""
    a_day = round(DAY_H / series.step_h)
    sums = _sums(known_depths(series), a_day)
    return [
        antecedent_index([
            sums[end - back * a_day] if end >= back * a_day else 0.0
            for back in range(ANTECEDENT_DAYS)
        ])
        for end in range(len(sums))
    ]


def _over_seattle_line(series: EvaluationRain) -> list[float]:
    """How far the 3-day rain is above the line of the 15 days before."""
    recent, older = (round(hours / series.step_h) for hours in (_RECENT_H, _OLDER_H))
    depths = known_depths(series)
    both = _sums(depths, recent + older)
    return [
        last - (_CT_START_MM + _CT_SLOPE * (whole - last))
        for last, whole in zip(_sums(depths, recent), both, strict=True)
    ]


def _sums(depths: Sequence[float], steps: int) -> list[float]:
    """Moving sums over a number of steps."""
    total = [0.0, *accumulate(depths)]
    # Rounding errors would separate days with equal rain.
    return [
        round(total[end] - total[max(0, end - steps)], 6)
        for end in range(1, len(total))
    ]


PREDICTORS: Final[dict[str, Predictor]] = {
    "swi": Predictor(soil_water_series_mm, DAY_H, column="swi_mm"),
    "effective72": Predictor(
        _effective(LONG_HALF_LIFE_H), DAY_H, column="effective_72h_mm"
    ),
    "effective1.5": Predictor(
        _effective(SHORT_HALF_LIFE_H), SHORT_HALF_LIFE_H, column="effective_1h5_mm"
    ),
    "rain72": Predictor(_sum_of(72), 72.0, has_window=True),
    "rain24": Predictor(_sum_of(DAY_H), DAY_H, has_window=True),
    "rain1": Predictor(_sum_of(1), 1.0, has_window=True),
    "antecedent": Predictor(
        _antecedent, DAY_H, has_window=True, column="antecedent_mm_per_day"
    ),
    "seattle": Predictor(_over_seattle_line, 72.0, has_window=True),
}
"""By the name on the command line; all in mm, the antecedent index in mm per day."""
