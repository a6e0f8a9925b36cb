"""Soil that is wetter than nearly ever, and gets wetter: evidence, no trigger.

Rules that need no calibration. Without surveyed strength and depth a moisture or a
pressure says nothing of the factor of safety, so either adds level 2 and no more.

Source: shallow slides near Seattle come at 60 to 80 % of saturation (Baum 2005,
Godt 2009); a threshold of rain and antecedent wetness beats one of rain alone (Mirus
et al. 2018). The percentile, the rises and the hold are proposals of ours.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.findings import ADVISORY, Finding
from slope_science.reasons import Reason, ReasonCode

WET_PERCENTILE = 95.0
"""Of the sensor's own past."""

MOISTURE_RISE = 0.005
"""Water content; a rise in an hour that stands out of the noise of a probe."""

PORE_RISE_HPA = 2.0
RAIN_MM = 1.0
"""It rains when so much fell within `RAIN_H`."""

HOLD_H = 1.0
RAIN_H = 1.0 + HOLD_H
"""An hour, and the hold: neither rain nor rise need go on at this very moment."""

SUCTION_H = 24.0
"""So long ago a pressure that is positive may have been suction."""


@dataclass(frozen=True)
class Wetness:
    """What one sensor tells at a moment.

    Attributes:
        sensor: Its name, with the node's.
        value: Water content, or pore pressure in hPa.
        rise: The most that it rose within an hour up to now, or up to a moment
            within the hold.
        percentile: Where it lies in its own past, 0 to 100; None while that is too
            short.
        lowest: Within `SUCTION_H`.
    """

    sensor: str
    value: float
    rise: float
    percentile: float | None
    lowest: float


def seen(
    sensor: str,
    times_h: Sequence[float],
    values: Sequence[float],
    percentile: float | None,
) -> Wetness | None:
    """Gather what readings up to a moment tell; None without a fresh one.

    Args:
        sensor: Name, with the node's.
        times_h: Hours of the readings by that moment, ascending, none beyond 0.
        values: Readings then.
        percentile: Of the last one.
    """
    if not times_h or times_h[-1] < -HOLD_H:
        return None
    first = bisect_left(times_h, -SUCTION_H)
    return Wetness(
        sensor,
        values[-1],
        _rise(times_h, values),
        percentile,
        min(values[first:]),
    )


def moisture_finding(now: Wetness, rain_mm: float) -> Finding | None:
    """Judge a water content: among the wettest, and risen in the rain.

    Args:
        now: What the sensor tells.
        rain_mm: Rain of the last `RAIN_H`.
    """
    if not _is_wet(now, rain_mm, MOISTURE_RISE):
        return None
    reason = Reason(
        ReasonCode.SOIL_WET,
        sensor=now.sensor,
        water_content=now.value,
        rise=now.rise,
        rain_mm=rain_mm,
        percentile=now.percentile,
    )
    return Finding(ADVISORY, reason)


def pore_finding(now: Wetness, rain_mm: float) -> Finding | None:
    """Judge a pore pressure: from suction to positive, or among the highest.

    Args:
        now: What the sensor tells, in hPa.
        rain_mm: Rain of the last `RAIN_H`; a pressure that passes zero needs none.
    """
    if now.lowest < 0 <= now.value and now.rise >= PORE_RISE_HPA:
        turned = Reason(
            ReasonCode.PORE_TURNED,
            sensor=now.sensor,
            pressure_hpa=now.value,
            rise_hpa=now.rise,
        )
        return Finding(ADVISORY, turned)
    if not _is_wet(now, rain_mm, PORE_RISE_HPA):
        return None
    reason = Reason(
        ReasonCode.PORE_HIGH,
        sensor=now.sensor,
        pressure_hpa=now.value,
        percentile=now.percentile,
        rise_hpa=now.rise,
        rain_mm=rain_mm,
    )
    return Finding(ADVISORY, reason)


def _is_wet(now: Wetness, rain_mm: float, least_rise: float) -> bool:
    is_high = now.percentile is not None and now.percentile >= WET_PERCENTILE
    return is_high and now.rise >= least_rise and rain_mm >= RAIN_MM


def _rise(times_h: Sequence[float], values: Sequence[float]) -> float:
    """The most of any hour that ended within the hold."""
    rises = [0.0]
    for at in range(bisect_left(times_h, -HOLD_H), len(times_h)):
        before = bisect_left(times_h, times_h[at] - 1.0 - 1e-6)
        rises.append(values[at] - values[before])
    return max(rises)
