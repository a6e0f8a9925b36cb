"""Displacement speed of a slope, and its time of failure by inverse velocity.

Sources: management values of ground extensometers: 道路土工 切土工・斜面安定工指針
(2009) and 現場に役立つ地すべり工学; time of failure: Fukuzono 1985, Voight 1988,
d2x/dt2 = A (dx/dt)^2, so that 1/v = A (tf - t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.errors import ScienceError
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason
from slope_science.statistics import RegressionLine, fit_line, student_t_quantile

CAUTION_MM_PER_H = 2.0
"""注意体制; lower end of 避難準備 (2 to 4) and 避難 (2 to 10). After 2 h entry to the
slide is banned."""

EVACUATION_MM_PER_H = 4.0
"""Upper end of 警戒 (避難準備, 2 to 4 mm/h), so surely within 避難 (2 to 10)."""

IMMINENT_MM_PER_H = 10.0
"""Upper end of 避難 (2 to 10 mm/h)."""

ACTIVE_MM_PER_DAY = 10.0
"""Active movement over 2 days (2009 guideline)."""

CAUTION_DURATION_H = 2.0
FALSE_SHARE = 1e-3
"""Share of windows in which noise alone may exceed the bound."""

MIN_READINGS = 4
VELOCITY_SPAN_H = 3.0
VELOCITY_SPACING_H = 1.0
FORECAST_WINDOW_H = 12.0
MIN_R2 = 0.9
MIN_VELOCITIES = 8
MIN_SIGMAS = 3.0
MAX_WINDOWS_AHEAD = 3.0
_FAR_H = 1e15  # a nearly flat line can give more than a whole number holds
_INTERVAL_SHARE = 0.05  # of a 95 % interval, outside


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


@dataclass(frozen=True)
class FailureForecast:
    """Time of failure by inverse velocity, with the quality of its fit.

    Attributes:
        failure_h: Time of failure, on the time axis of the readings.
        half_width_h: Half width of the 95 % interval.
        r2: R2 of the straight line through 1/v.
        points: Number of velocities.
        a_per_mm: Fukuzono's A.
        is_above_noise: Whether each velocity exceeds `MIN_SIGMAS` of its own noise.
        window_h: Length of the window that was fitted.
    """

    failure_h: float
    half_width_h: float
    r2: float
    points: int
    a_per_mm: float
    is_above_noise: bool
    window_h: float

    def is_usable(self, now_h: float) -> bool:
        """Whether it passes all gates; typically in the last quarter of the creep."""
        return self.failed_gate(now_h) is None

    def failed_gate(self, now_h: float) -> Reason | None:
        """The first gate that it fails; None if it passes all.

        Source:
            Our gates: R2 >= 0.9, v > 3 sigma, 8 points or more, and at most 3
            windows ahead.
        """
        left_h, farthest_h = self.failure_h - now_h, MAX_WINDOWS_AHEAD * self.window_h
        gate: Reason | None = None
        if self.points < MIN_VELOCITIES:
            gate = Reason(ReasonCode.FEW_SPEEDS, points=self.points)
        elif not self.is_above_noise:
            gate = Reason(ReasonCode.SPEED_IN_NOISE)
        elif not self.r2 >= MIN_R2:
            gate = Reason(ReasonCode.LOW_R2, r2=self.r2)
        elif not left_h >= 0:
            gate = Reason(ReasonCode.FAILURE_PASSED)
        elif not left_h < farthest_h:
            gate = Reason(
                ReasonCode.FAILURE_FAR, left_h=min(left_h, _FAR_H), max_h=farthest_h
            )
        return gate


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
    times_h: Sequence[float], moved_mm: Sequence[float], span_h: float = VELOCITY_SPAN_H
) -> list[Velocity]:
    """Speed at each reading with a full span of readings before it.

    Args:
        times_h: Times of the readings, ascending.
        moved_mm: Displacements at these times.
        span_h: Length of past readings that each speed is fitted to.
    """
    found = []
    for end, end_h in enumerate(times_h):
        begin = next(i for i, t in enumerate(times_h) if t >= end_h - span_h * 1.001)
        if end_h - times_h[begin] >= span_h * 0.75:
            fitted = fit_velocity(times_h[begin : end + 1], moved_mm[begin : end + 1])
            found += [fitted] if fitted else []
    return found


def thin_out(
    speeds: Sequence[Velocity], spacing_h: float = VELOCITY_SPACING_H
) -> list[Velocity]:
    """Thin out speeds to a minimum spacing, starting from the last one.

    Speeds from nearly the same readings always lie on a line and would pass the R2
    gate.

    Args:
        speeds: Ascending in time.
        spacing_h: Minimum spacing.
    """
    kept: list[Velocity] = []
    for speed in reversed(speeds):
        if not kept or kept[-1].at_h - speed.at_h >= spacing_h * 0.95:
            kept.append(speed)
    return kept[::-1]


def forecast_failure(
    speeds: Sequence[Velocity], window_h: float = FORECAST_WINDOW_H
) -> FailureForecast | None:
    """Time at which 1/v reaches zero; None if 1/v does not fall or v <= 0.

    Args:
        speeds: Ascending in time; only the last window is used.
        window_h: Length of that window.

    Source:
        1/v = c0 + c1 t, tf = -c0/c1, A = -c1; var(tf) = g' C g. With time relative
        to its mean, c0 and c1 are independent: c0/c1 has the variance
        (s0^2 + (c0/c1)^2 s1^2) / c1^2.
    """
    recent = [s for s in speeds if s.at_h > speeds[-1].at_h - window_h * 1.001]
    if any(speed.mm_per_h <= 0 for speed in recent):
        return None
    line = fit_line([s.at_h for s in recent], [1 / s.mm_per_h for s in recent])
    if line is None or line.slope >= 0:
        return None
    ahead_h = -line.at_mean / line.slope
    sigmas = student_t_quantile(_INTERVAL_SHARE, line.points - 2)
    return FailureForecast(
        failure_h=line.mean_time + ahead_h,
        half_width_h=sigmas * _sigma_h(line, ahead_h),
        r2=line.r2,
        points=line.points,
        a_per_mm=-line.slope,
        is_above_noise=all(s.mm_per_h > MIN_SIGMAS * s.sigma_mm_per_h for s in recent),
        window_h=window_h,
    )


def _sigma_h(line: RegressionLine, ahead_h: float) -> float:
    return math.hypot(line.sigma_at_mean, ahead_h * line.sigma_slope) / abs(line.slope)


def fukuzono_speed_mm_per_h(left_h: float, a_per_mm: float) -> float:
    """Speed of tertiary creep at a time before the failure (alpha = 2)."""
    if left_h <= 0:
        raise ScienceError("left_h", "more than 0", left_h)
    return 1 / (a_per_mm * left_h)


def fukuzono_displacement_mm(t_h: float, failure_h: float, a_per_mm: float) -> float:
    """Displacement since time 0 of a tertiary creep with a given failure time."""
    if not t_h < failure_h:
        raise ScienceError("t_h", f"less than failure_h ({failure_h:g})", t_h)
    return math.log(failure_h / (failure_h - t_h)) / a_per_mm
