"""What else moves with the slope: its stream, its stones, and the air over it.

Pure functions of the tanks, the movement and the time, so that they are the same
in every life of a simulation. Sizes are those of a first-order gully with a
catchment of half a square kilometre, 500 m above the sea.
"""

import math
from dataclasses import dataclass

from slope_science.soil_water import A1, A2, A3, A4, L1, L2, L3, L4, SoilWater

_CATCHMENT_M2 = 5e5
_MANNING_N, _BED_SLOPE, _BED_M = 0.05, 0.05, 3.0
_PULSES_PER_MM = 3.0  # stones that roll while the soil moves by a millimetre
_PULSES_PER_H = 0.2  # wind, animals, a car
_CALM_HPA, _TIDE_HPA, _STORM_HPA = 955.0, 1.0, 6.0
_CALM_C, _DAY_C, _STORM_C = 16.0, 5.0, 3.0
_DEW_POINT_C = 11.0
_WET_MM = 10.0  # water on the ground at which 63 % of a storm is in the air
_DAY_S = 86400.0


@dataclass(frozen=True)
class Air:
    """The air over the slope.

    Attributes:
        temp_c: Temperature.
        humidity_pct: Relative humidity, 0 to 100.
        pressure_hpa: Pressure, not reduced to the sea.
    """

    temp_c: float
    humidity_pct: float
    pressure_hpa: float


def stream_m(soil: SoilWater) -> float:
    """Depth of the stream below the slope, from what the tanks' sides give off.

    Source:
        Side outlets of the tank model as runoff; Manning for a wide bed,
        h = (n q / sqrt(S))^(3/5) with q the flow for a metre of width.
    """
    mm_per_h = (
        A1 * max(soil.s1_mm - L1, 0.0)
        + A2 * max(soil.s1_mm - L2, 0.0)
        + A3 * max(soil.s2_mm - L3, 0.0)
        + A4 * max(soil.s3_mm - L4, 0.0)
    )
    m2_per_s = mm_per_h / 1000 / 3600 * _CATCHMENT_M2 / _BED_M
    return float((_MANNING_N * m2_per_s / math.sqrt(_BED_SLOPE)) ** 0.6)


def vibration_pulses(elapsed_s: float, moved_mm: float) -> int:
    """Shocks that a counter on the slope has felt since the start.

    A little all the time, and some for every millimetre that the soil moves, so
    that their rate grows with the speed.
    """
    return int(_PULSES_PER_H * elapsed_s / 3600 + _PULSES_PER_MM * moved_mm)


def air(t_s: float, soil: SoilWater) -> Air:
    """The air at a Unix time; a wet ground means that it rains or just did.

    Source:
        Relative humidity from a steady dew point by Magnus (17.62, 243.12 C);
        semidiurnal pressure tide of 1 hPa.
    """
    storm = 1 - math.exp(-soil.s1_mm / _WET_MM)
    day = 2 * math.pi * t_s / _DAY_S
    temp_c = _CALM_C + _DAY_C * math.sin(day) * (1 - storm) - _STORM_C * storm
    dry_pct = 100 * _vapour(_DEW_POINT_C) / _vapour(temp_c)
    humidity_pct = min(dry_pct + (98.0 - dry_pct) * storm, 100.0)
    tide_hpa = _TIDE_HPA * math.sin(2 * day)
    return Air(temp_c, humidity_pct, _CALM_HPA + tide_hpa - _STORM_HPA * storm)


def _vapour(temp_c: float) -> float:
    """Saturation vapour pressure of water, up to a constant factor."""
    return math.exp(17.62 * temp_c / (243.12 + temp_c))
