"""Soil moisture above its own 95th percentile and rising: supporting evidence only.

The rules need no calibration. Without surveyed strength and depth neither moisture nor
pore pressure gives a factor of safety, so each contributes level 2 at most.

Source: shallow slides near Seattle come at 60 to 80 % of saturation (Baum 2005,
Godt 2009); a threshold of rain and antecedent wetness beats one of rain alone (Mirus
et al. 2018). The percentile, the rises and the hold are our proposals.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.findings import ADVISORY, Finding
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

WET_PERCENTILE = 95.0
"""Percentile of the sensor's own past."""

MIN_MOISTURE_RISE = 0.005
"""Water content; a rise in an hour above a probe's noise."""

MIN_PORE_RISE_HPA = 2.0
MIN_RAIN_MM = 1.0
"""Minimum rain within `RAIN_H` that counts as rain."""

RISE_WITHIN_S = 3900.0
"""An hour, and the jitter of hourly readings; beyond it two readings show no rise."""

HOLD_H = 1.0
RAIN_H = 1.0 + HOLD_H
"""An hour and the hold: rain and rise may have ended shortly before."""

SUCTION_H = 24.0
"""Maximum time since suction for a pressure that has turned positive."""


@dataclass(frozen=True)
class SoilWetness:
    """State of one soil sensor at a moment.

    Attributes:
        sensor: Its name, with the node's.
        value: Water content, or pore pressure in hPa.
        rise: Largest rise within an hour that ended during the hold.
        percentile: Rank in the sensor's own past, 0 to 100; None while the past is
            too short.
        lowest: Minimum within `SUCTION_H`.
    """

    sensor: str
    value: float
    rise: float
    percentile: float | None
    lowest: float


def summarize_wetness(
    sensor: str,
    times_h: Sequence[float],
    values: Sequence[float],
    percentile: float | None,
) -> SoilWetness | None:
    """Summarize the readings up to a moment; None without a recent one.

    Args:
        sensor: Name, with the node's.
        times_h: Times of the readings relative to that moment, ascending, at most 0.
        values: Readings at these times.
        percentile: Percentile of the last one.
    """
    if not times_h or times_h[-1] < -HOLD_H:
        return None
    first = bisect_left(times_h, -SUCTION_H)
    return SoilWetness(
        sensor,
        values[-1],
        _rise(times_h, values),
        percentile,
        min(values[first:]),
    )


def judge_moisture(wetness: SoilWetness, rain_mm: float) -> Finding | None:
    """Level of a water content that is high for this sensor and rose during rain.

    Args:
        wetness: State of the sensor.
        rain_mm: Rain of the last `RAIN_H`.
    """
    if not _is_wet(wetness, rain_mm, MIN_MOISTURE_RISE):
        return None
    reason = Reason(
        ReasonCode.SOIL_WET,
        sensor=wetness.sensor,
        water_content=wetness.value,
        rise=wetness.rise,
        rain_mm=rain_mm,
        percentile=wetness.percentile,
    )
    return Finding(ADVISORY, reason)


def judge_pore_pressure(wetness: SoilWetness, rain_mm: float) -> Finding | None:
    """Level of a pore pressure that turned positive, or is high and rose.

    Args:
        wetness: State of the sensor, in hPa.
        rain_mm: Rain of the last `RAIN_H`; a turn to positive needs none.
    """
    if wetness.lowest < 0 <= wetness.value and wetness.rise >= MIN_PORE_RISE_HPA:
        turned = Reason(
            ReasonCode.PORE_TURNED,
            sensor=wetness.sensor,
            pressure_hpa=wetness.value,
            rise_hpa=wetness.rise,
        )
        return Finding(ADVISORY, turned)
    if not _is_wet(wetness, rain_mm, MIN_PORE_RISE_HPA):
        return None
    reason = Reason(
        ReasonCode.PORE_HIGH,
        sensor=wetness.sensor,
        pressure_hpa=wetness.value,
        percentile=wetness.percentile,
        rise_hpa=wetness.rise,
        rain_mm=rain_mm,
    )
    return Finding(ADVISORY, reason)


def _is_wet(now: SoilWetness, rain_mm: float, min_rise: float) -> bool:
    is_high = now.percentile is not None and now.percentile >= WET_PERCENTILE
    return is_high and now.rise >= min_rise and rain_mm >= MIN_RAIN_MM


def _rise(times_h: Sequence[float], values: Sequence[float]) -> float:
    """Largest rise in an hour that ended within the hold."""
    rises = [0.0]
    within_h = RISE_WITHIN_S / 3600.0 + 1e-6
    for at in range(bisect_left(times_h, -HOLD_H), len(times_h)):
        before = bisect_left(times_h, times_h[at] - 1.0 - 1e-6)
        if before == at > 0 and times_h[at] - times_h[at - 1] <= within_h:
            before = at - 1  # hourly readings
        rises.append(values[at] - values[before])
    return max(rises)
