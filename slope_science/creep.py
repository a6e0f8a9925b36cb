"""Displacement speed of a slope, and the formula of its tertiary creep.

Sources: management values of ground extensometers: 道路土工 切土工・斜面安定工指針
(2009) and 現場に役立つ地すべり工学; tertiary creep: Fukuzono 1985, Voight 1988,
d2x/dt2 = A (dx/dt)^alpha, so that v^(1-alpha) = A (alpha-1) (tf - t). The time of
failure is in `slope_science.failure_time`. Tangent angle: Xu, Zeng, Qian et al. 2011.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science import ScienceError
from slope_science.statistics import fit_line, student_t_quantile

ALERT_ANGLE_DEG, EMERGENCY_ANGLE_DEG = 80.0, 85.0
"""Tangent angles from which tertiary creep is in its middle and in its last stage."""

FALSE_SHARE = 1e-3
"""Share of windows in which noise alone may exceed the bound."""

MIN_READINGS = 4
VELOCITY_SPAN_H = 3.0
VELOCITY_SPACING_H = 1.0


@dataclass(frozen=True)
class Velocity:
    """Displacement speed with its standard error.

    Attributes:
        at_h: Mean time of the fitted readings, where the bias is smallest.
        mm_per_h: Positive for a growing reading.
        sigma_mm_per_h: Standard error.
        points: Number of readings.
    """

    at_h: float
    mm_per_h: float
    sigma_mm_per_h: float
    points: int

    def exceeds(self, limit_mm_per_h: float) -> bool:
        """Whether the absolute speed reaches a limit and exceeds its noise."""
        speed = abs(self.mm_per_h)
        sigmas = student_t_quantile(FALSE_SHARE, self.points - 2)
        return speed >= limit_mm_per_h and speed > sigmas * self.sigma_mm_per_h


def fit_velocity(
    times_h: Sequence[float], moved_mm: Sequence[float]
) -> Velocity | None:
    """Fit a speed; None with fewer than `MIN_READINGS` or no spread in time."""
    if len(times_h) < MIN_READINGS:
        return None
    line = fit_line(times_h, moved_mm)
    if line is None:
        return None
    return Velocity(line.mean_time, line.slope, line.sigma_slope, line.points)


def fit_velocities(
    times_h: Sequence[float], moved_mm: Sequence[float]
) -> list[Velocity]:
    """Speed at each reading with a span of `VELOCITY_SPAN_H` before it.

    Args:
        times_h: Times of the readings, ascending.
        moved_mm: Displacements at these times.
    """
    found, span_h = [], VELOCITY_SPAN_H
    for end, end_h in enumerate(times_h):
        begin = next(i for i, t in enumerate(times_h) if t >= end_h - span_h * 1.001)
        if end_h - times_h[begin] >= span_h * 0.75:
            fitted = fit_velocity(times_h[begin : end + 1], moved_mm[begin : end + 1])
            found += [fitted] if fitted else []
    return found


def tangent_angle_deg(mm_per_h: float, steady_mm_per_h: float) -> float:
    """Tangent angle of the curve of displacement, both axes in units of time.

    45 degrees in secondary creep, where the speed is steady; 90 at failure.

    Args:
        mm_per_h: Speed; a slope that moves back has a negative angle.
        steady_mm_per_h: Speed of the secondary creep, more than 0.

    Raises:
        ScienceError: The steady speed is not positive.

    Source:
        Xu et al. 2011, improved tangential angle: arctan of v over the steady speed.
    """
    if steady_mm_per_h <= 0:
        raise ScienceError("steady_mm_per_h", "more than 0", steady_mm_per_h)
    return math.degrees(math.atan(mm_per_h / steady_mm_per_h))


def thin_out(speeds: Sequence[Velocity]) -> list[Velocity]:
    """Thin out speeds to a spacing of `VELOCITY_SPACING_H`, starting from the last one.

    Speeds from nearly the same readings always lie on a line and would pass the R2
    gate.

    Args:
        speeds: Ascending in time.
    """
    kept: list[Velocity] = []
    for speed in reversed(speeds):
        if not kept or kept[-1].at_h - speed.at_h >= VELOCITY_SPACING_H * 0.95:
            kept.append(speed)
    return kept[::-1]


def fukuzono_speed_mm_per_h(
    left_h: float, a_per_mm: float, exponent: float = 2.0
) -> float:
    """Speed of tertiary creep at a time before the failure.

    Args:
        left_h: Time to the failure.
        a_per_mm: A, per mm with alpha = 2; in general mm^(1-alpha) h^(alpha-2).
        exponent: Alpha, more than 1.
    """
    if left_h <= 0:
        raise ScienceError("left_h", "more than 0", left_h)
    return math.pow(a_per_mm * (exponent - 1) * left_h, -1 / (exponent - 1))


def fukuzono_displacement_mm(
    t_h: float, failure_h: float, a_per_mm: float, exponent: float = 2.0
) -> float:
    """Displacement since time 0 of a tertiary creep with a given failure time."""
    if not t_h < failure_h:
        raise ScienceError("t_h", f"less than failure_h ({failure_h:g})", t_h)
    passed, rest = math.log(failure_h / (failure_h - t_h)), 1 - 1 / (exponent - 1)
    start = fukuzono_speed_mm_per_h(failure_h, a_per_mm, exponent) * failure_h
    return start * (passed if rest == 0 else -math.expm1(-rest * passed) / rest)
