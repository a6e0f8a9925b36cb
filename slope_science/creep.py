"""How fast a slope moves, and when it may fail.

Sources: management values of ground extensometers: 道路土工 切土工・斜面安定工指針
(2009) and 現場に役立つ地すべり工学; time of failure: Fukuzono 1985, Voight 1988,
d2x/dt2 = A (dx/dt)^2, so that 1/v = A (tf - t).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.errors import ScienceError
from slope_science.reasons import Reason, ReasonCode
from slope_science.statistics import Line, fit_line, quantile

CAUTION_MM_PER_H = 2.0
"""注意体制; of 避難準備 (2 to 4) and 避難 (2 to 10) the lower end; after 2 h the ban
to enter a slide."""

EVACUATION_MM_PER_H = 4.0
"""Upper end of 警戒 (避難準備, 2 to 4 mm/h), so surely within 避難 (2 to 10)."""

IMMINENT_MM_PER_H = 10.0
"""Upper end of 避難 (2 to 10 mm/h)."""

ACTIVE_MM_PER_DAY = 10.0
"""Quite active movement (2009 guideline), there for 2 days."""

LASTING_H = 2.0
FALSE_SHARE = 1e-3
"""Share of windows in which noise alone may look like movement."""

FEWEST_READINGS = 4
VELOCITY_H = 3.0
APART_H = 1.0
FORECAST_H = 12.0
LEAST_R2 = 0.9
FEWEST_VELOCITIES = 8
SIGMAS = 3.0
FARTHEST_WINDOWS = 3.0
_FAR_H = 1e15  # a nearly flat line can give more than a whole number holds
_INTERVAL_SHARE = 0.05  # of a 95 % interval, outside


@dataclass(frozen=True)
class Velocity:
    """A speed and its noise.

    Attributes:
        at_h: Middle of the readings it was fitted to, where it is least biased.
        mm_per_h: Positive as the reading grows.
        sigma_mm_per_h: Its standard error.
        points: Readings behind it.
    """

    at_h: float
    mm_per_h: float
    sigma_mm_per_h: float
    points: int

    def exceeds(self, limit_mm_per_h: float) -> bool:
        """Whether the speed, either way, reaches a limit and stands clear of noise."""
        speed = abs(self.mm_per_h)
        sigmas = quantile(FALSE_SHARE, self.points - 2)
        return speed >= limit_mm_per_h and speed > sigmas * self.sigma_mm_per_h


@dataclass(frozen=True)
class Forecast:
    """When a slope fails, if it goes on as it does.

    Attributes:
        failure_h: Time of failure, by the clock of the readings.
        half_width_h: Half of the 95 % interval.
        r2: How straight 1/v runs to zero.
        points: Velocities behind it.
        a_per_mm: Fukuzono's A.
        is_clear: Whether each velocity passes `SIGMAS` of its own noise.
        window_h: How much of the past it rests on.
    """

    failure_h: float
    half_width_h: float
    r2: float
    points: int
    a_per_mm: float
    is_clear: bool
    window_h: float

    def is_usable(self, now_h: float) -> bool:
        """Whether it may be acted on: only the last quarter of a creep gives one."""
        return self.closed_gate(now_h) is None

    def closed_gate(self, now_h: float) -> Reason | None:
        """The first gate that it does not pass; None when it may be acted on.

        Source:
            Gates of ours: R2 >= 0.9, v > 3 sigma, 8 points or more, and
            no further ahead than 3 windows.
        """
        left_h, farthest_h = self.failure_h - now_h, FARTHEST_WINDOWS * self.window_h
        gate: Reason | None = None
        if self.points < FEWEST_VELOCITIES:
            gate = Reason(ReasonCode.FEW_SPEEDS, points=self.points)
        elif not self.is_clear:
            gate = Reason(ReasonCode.SPEED_IN_NOISE)
        elif not self.r2 >= LEAST_R2:
            gate = Reason(ReasonCode.LOW_R2, r2=self.r2)
        elif not left_h >= 0:
            gate = Reason(ReasonCode.FAILURE_PASSED)
        elif not left_h < farthest_h:
            gate = Reason(
                ReasonCode.FAILURE_FAR, left_h=min(left_h, _FAR_H), max_h=farthest_h
            )
        return gate


def velocity(times_h: Sequence[float], moved_mm: Sequence[float]) -> Velocity | None:
    """Fit a speed; None with fewer than `FEWEST_READINGS` or no spread in time."""
    if len(times_h) < FEWEST_READINGS:
        return None
    line = fit_line(times_h, moved_mm)
    if line is None:
        return None
    return Velocity(line.mean_time, line.slope, line.sigma_slope, line.points)


def velocities(
    times_h: Sequence[float], moved_mm: Sequence[float], span_h: float = VELOCITY_H
) -> list[Velocity]:
    """Speed at each reading that has a whole span behind it.

    Args:
        times_h: Times of the readings, ascending.
        moved_mm: Displacements then.
        span_h: Each speed is fitted to the readings of so long a past.
    """
    found = []
    for end, end_h in enumerate(times_h):
        begin = next(i for i, t in enumerate(times_h) if t >= end_h - span_h * 1.001)
        if end_h - times_h[begin] >= span_h * 0.75:
            fitted = velocity(times_h[begin : end + 1], moved_mm[begin : end + 1])
            found += [fitted] if fitted else []
    return found


def spaced(speeds: Sequence[Velocity], apart_h: float = APART_H) -> list[Velocity]:
    """The last speed, and of those before it every one so far apart.

    Speeds of nearly the same readings lie on a line whatever the slope does, and
    pass for a good fit.

    Args:
        speeds: Ascending in time.
        apart_h: Least distance.
    """
    kept: list[Velocity] = []
    for speed in reversed(speeds):
        if not kept or kept[-1].at_h - speed.at_h >= apart_h * 0.95:
            kept.append(speed)
    return kept[::-1]


def forecast(
    speeds: Sequence[Velocity], window_h: float = FORECAST_H
) -> Forecast | None:
    """Where 1/v meets zero; None where it does not fall, or v is not positive.

    Args:
        speeds: Ascending in time; only the last window counts.
        window_h: Length of that window.

    Source:
        1/v = c0 + c1 t, tf = -c0/c1, A = -c1; var(tf) = g' C g. With the time taken
        from its mean, c0 and c1 are independent: c0/c1 about the mean has the
        variance (s0^2 + (c0/c1)^2 s1^2) / c1^2.
    """
    recent = [s for s in speeds if s.at_h > speeds[-1].at_h - window_h * 1.001]
    if any(speed.mm_per_h <= 0 for speed in recent):
        return None
    line = fit_line([s.at_h for s in recent], [1 / s.mm_per_h for s in recent])
    if line is None or line.slope >= 0:
        return None
    ahead_h = -line.at_mean / line.slope
    sigmas = quantile(_INTERVAL_SHARE, line.points - 2)
    return Forecast(
        failure_h=line.mean_time + ahead_h,
        half_width_h=sigmas * _sigma_h(line, ahead_h),
        r2=line.r2,
        points=line.points,
        a_per_mm=-line.slope,
        is_clear=all(s.mm_per_h > SIGMAS * s.sigma_mm_per_h for s in recent),
        window_h=window_h,
    )


def _sigma_h(line: Line, ahead_h: float) -> float:
    return math.hypot(line.sigma_at_mean, ahead_h * line.sigma_slope) / abs(line.slope)


def fukuzono_mm_per_h(left_h: float, a_per_mm: float) -> float:
    """Speed of tertiary creep so long before the failure (alpha = 2)."""
    if left_h <= 0:
        raise ScienceError("left_h", "more than 0", left_h)
    return 1 / (a_per_mm * left_h)


def fukuzono_mm(t_h: float, failure_h: float, a_per_mm: float) -> float:
    """Displacement since time 0 of a tertiary creep that fails at a time."""
    if not t_h < failure_h:
        raise ScienceError("t_h", f"less than failure_h ({failure_h:g})", t_h)
    return math.log(failure_h / (failure_h - t_h)) / a_per_mm
