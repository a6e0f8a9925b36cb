"""Numbers that may warn of a landslide, from one series of rain."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from backend_spark.evaluation.tables import RainSeries
from slope_science.criteria import Criteria
from slope_science.levels import judge, rain_finding
from slope_science.rainfall import (
    LONG_HALF_LIFE_H,
    SHORT_HALF_LIFE_H,
    effective_rain,
    rain_60min,
)
from slope_science.soil_water import TEN_MINUTES_H, soil_water_series

STEPS_PER_HOUR: Final = 6

# Chleborad et al. 2008: 72-hour rain against that of the 360 hours before, in mm.
_CT_START_MM, _CT_SLOPE = 88.9, -0.67

Predictor = Callable[[RainSeries], list[float]]


def known(series: RainSeries) -> list[float]:
    """Depths with nothing for what is unknown: every sum is a lower bound there."""
    return [depth or 0.0 for depth in series.depth_mm]


def soil_water_mm(series: RainSeries) -> list[float]:
    """Soil water index in 10-minute steps, the rain of a longer step shared evenly."""
    return [index for index, _ in _fine(series)][
        _per_step(series) - 1 :: _per_step(series)
    ]


def rain_levels(series: RainSeries, criteria: Criteria) -> list[int]:
    """Level of the rain at the end of each step."""
    per_step = _per_step(series)
    return [
        judge([rain_finding(r60_mm, index_mm, criteria)]).level
        for index_mm, r60_mm in list(_fine(series))[per_step - 1 :: per_step]
    ]


def _per_step(series: RainSeries) -> int:
    return max(1, round(series.step_h / TEN_MINUTES_H))


def _fine(series: RainSeries) -> list[tuple[float, float]]:
    """Index and 60-minute rain in 10-minute steps (or the table's, when shorter)."""
    per_step = _per_step(series)
    step_h = series.step_h / per_step
    depths = [depth / per_step for depth in known(series) for _ in range(per_step)]
    tanks = soil_water_series(depths, step_h)
    return [
        (each.index_mm, r60_mm)
        for each, r60_mm in zip(tanks, rain_60min(depths, step_h), strict=True)
    ]


def _sum_of(hours: float) -> Predictor:
    def rain_mm(series: RainSeries) -> list[float]:
        return _sums(known(series), round(hours / series.step_h))

    return rain_mm


def _effective(half_life_h: float) -> Predictor:
    def rain_mm(series: RainSeries) -> list[float]:
        return effective_rain(known(series), series.step_h, half_life_h)

    return rain_mm


def _over_seattle_line(series: RainSeries) -> list[float]:
    """How far the 3-day rain is above the line of the 15 days before."""
    recent, older = (round(hours / series.step_h) for hours in (72, 360))
    depths = known(series)
    both = _sums(depths, recent + older)
    return [
        last - (_CT_START_MM + _CT_SLOPE * (whole - last))
        for last, whole in zip(_sums(depths, recent), both, strict=True)
    ]


def _sums(depths: Sequence[float], steps: int) -> list[float]:
    """Moving sums of so many steps."""
    total = [0.0, *accumulate(depths)]
    # What rounding leaves would tell days apart that are equal.
    return [
        round(total[end] - total[max(0, end - steps)], 6)
        for end in range(1, len(total))
    ]


PREDICTORS: Final[dict[str, Predictor]] = {
    "swi": soil_water_mm,
    "effective72": _effective(LONG_HALF_LIFE_H),
    "effective1.5": _effective(SHORT_HALF_LIFE_H),
    "rain72": _sum_of(72),
    "rain24": _sum_of(24),
    "rain1": _sum_of(1),
    "seattle": _over_seattle_line,
}
"""By the name on the command line; all in mm."""
