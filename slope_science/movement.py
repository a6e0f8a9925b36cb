"""Movement of a slope: tilt rate, displacement speed with its creep, and single steps.

Tilt rate: Uchimura et al. 2015 (Soils and Foundations 55(5)): precaution at 0.01 deg/h,
warning at 0.1 deg/h.

Speed: management values of ground extensometers: 道路土工 切土工・斜面安定工指針
(2009) and 現場に役立つ地すべり工学; tertiary creep: Fukuzono 1985, Voight 1988,
d2x/dt2 = A (dx/dt)^alpha, so that v^(1-alpha) = A (alpha-1) (tf - t). The time of
failure is in `slope_science.failure_time`. Tangent angle: Xu, Zeng, Qian et al. 2011.

Single step: a kick against the pile shifts it once, and a line fitted through the
step has a significant slope. Real creep keeps a slope without its largest step.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from slope_science import ScienceError
from slope_science.statistics import dot, fit_line, student_t_quantile

MIN_POINTS = 4
FALSE_SHARE = 1e-3
"""Share of windows in which noise alone may exceed the bound."""


@dataclass(frozen=True)
class TiltRate:
    """Tilt rate with its standard error.

    Attributes:
        deg_per_h: Length of the rate vector (x, y); never negative.
        sigma_deg_per_h: Standard error of the slopes, from their residuals.
        points: Number of readings, at least `MIN_POINTS`.
        uneven_sigma_deg_per_h: Standard error in the direction of the rate, with
            noise that differs between the axes and in time; 0 if unknown.
        steps: Number of steps between which the rate was fitted.
    """

    deg_per_h: float
    sigma_deg_per_h: float
    points: int
    uneven_sigma_deg_per_h: float = 0.0
    steps: int = 0

    def exceeds(
        self, threshold_deg_per_h: float, false_share: float = FALSE_SHARE
    ) -> bool:
        """Whether the rate reaches a threshold and exceeds its noise bound.

        A fixed number of sigmas is not enough, because sigma is estimated from the
        same few readings: with four, noise exceeds 3 sigmas in 9.5 % of windows.

        Source:
            For two axes of Gaussian noise the squared ratio of rate and sigma,
            halved, follows F(2, v) with v = 2 (points - 2) degrees of freedom, so
            P(ratio > k) = (1 + k^2 / v)^(-v / 2), solved for k at the share of
            windows that may exceed it.
        """
        is_clear = self.deg_per_h > self.noise_deg_per_h(false_share)
        return is_clear and self.deg_per_h >= threshold_deg_per_h

    def noise_deg_per_h(self, false_share: float = FALSE_SHARE) -> float:
        """Rate that noise alone exceeds only in `false_share` of the windows."""
        sigma = max(self.sigma_deg_per_h, self.uneven_sigma_deg_per_h)
        return noise_sigmas(2 * (self.points - 2 - self.steps), false_share) * sigma


def noise_sigmas(freedom: float, false_share: float = FALSE_SHARE) -> float:
    """Standard errors that the rate of noise exceeds in `false_share` of the windows.

    Args:
        freedom: Degrees of freedom of the standard error, more than 0.
        false_share: Between 0 and 1.
    """
    return math.sqrt(freedom * (false_share ** (-2 / freedom) - 1))


Step = tuple[int, int]
"""Numbers of the last reading before a step and of the first one after it."""


def uneven_sigma(times_h: Sequence[float], values: Sequence[float]) -> float:
    """Standard error of a slope whose readings differ in noise.

    Args:
        times_h: Times of the readings in hours, any origin; not all equal.
        values: Readings.

    Source:
        MacKinnon and White 1985 (HC3).
    """
    apart_h = _apart(times_h, ())
    spread = dot(apart_h, apart_h)
    _, rest = _fit(apart_h, _apart(values, ()), spread)
    return _uneven_sigma(apart_h, rest, spread)


def fit_tilt_rate(
    times_h: Sequence[float],
    x_deg: Sequence[float],
    y_deg: Sequence[float],
    steps: Sequence[Step] = (),
) -> TiltRate | None:
    """Fit x and y separately by least squares; the rate is the vector's length.

    The composite angle is not fitted: it is always positive, so noise biases it.

    Args:
        times_h: Times of the readings in hours, any origin.
        x_deg: Tilt about one axis.
        y_deg: Tilt about the other.
        steps: Steps of unknown size between which one rate is fitted; readings within
            a step are left out. Sorted, and not overlapping.

    Returns:
        The rate, or None with fewer than `MIN_POINTS` or no spread in time.

    Source:
        Common slope of parallel lines: analysis of covariance. Noise that differs
        between readings: MacKinnon and White 1985 (HC3).
    """
    apart_h = _apart(times_h, steps)
    spread = dot(apart_h, apart_h)
    freedom = len(apart_h) - len(steps) - 2
    if len(apart_h) < MIN_POINTS or freedom < 1 or spread <= 0:
        return None
    slope_x, rest_x = _fit(apart_h, _apart(x_deg, steps), spread)
    slope_y, rest_y = _fit(apart_h, _apart(y_deg, steps), spread)
    rate = math.hypot(slope_x, slope_y)
    whole = dot(rest_x, rest_x) + dot(rest_y, rest_y)
    sigma = math.sqrt(whole / (2 * freedom * spread))
    uneven = 0.0
    if rate:
        along = [
            (slope_x * x + slope_y * y) / rate
            for x, y in zip(rest_x, rest_y, strict=True)
        ]
        uneven = _uneven_sigma(apart_h, along, spread)
    return TiltRate(rate, sigma, len(apart_h), uneven, len(steps))


def _apart(values: Sequence[float], steps: Sequence[Step]) -> list[float]:
    """Values between steps, each part less its own mean."""
    if not steps:
        mean = sum(values) / max(len(values), 1)
        return [value - mean for value in values]
    begins, ends = [0, *(end for _, end in steps)], [*(b + 1 for b, _ in steps), None]
    found: list[float] = []
    for begin, end in zip(begins, ends, strict=True):
        part = values[begin:end]
        mean = sum(part) / max(len(part), 1)
        found += [value - mean for value in part]
    return found


def _uneven_sigma(
    apart_h: Sequence[float], rest: Sequence[float], spread: float
) -> float:
    """Standard error of a slope whose readings differ in noise."""
    parts = [
        t * r / (1 - t * t / spread)
        for t, r in zip(apart_h, rest, strict=True)
        if t * t < spread
    ]
    return math.sqrt(dot(parts, parts)) / spread


def tilt_resolution_deg_per_h(
    sigma_deg: float, times_h: Sequence[float], steps: Sequence[Step] = ()
) -> float:
    """Smallest tilt rate that can be distinguished from the noise.

    Args:
        sigma_deg: Noise of one reading of an axis.
        times_h: Times of the readings of a rate.
        steps: Steps between which the rate is fitted, as in `fit_tilt_rate`.

    Returns:
        Three standard errors of a slope; infinite without a spread in time.

    Source:
        Standard error of a slope: for 7 readings in an hour sigma_deg / 0.882 h, so
        that 0.01 deg/h needs 0.0029 deg.
    """
    if len(times_h) < MIN_POINTS:
        return math.inf
    spread = sum(t**2 for t in _apart(times_h, steps))
    return 3 * sigma_deg / math.sqrt(spread) if spread > 0 else math.inf


def _fit(
    apart_h: Sequence[float], apart: Sequence[float], spread: float
) -> tuple[float, list[float]]:
    """Slope and residuals; times and values relative to their means."""
    slope = dot(apart_h, apart) / spread
    return slope, [v - slope * t for t, v in zip(apart_h, apart, strict=True)]


ALERT_ANGLE_DEG, EMERGENCY_ANGLE_DEG = 80.0, 85.0
"""Tangent angles from which tertiary creep is in its middle and in its last stage."""

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


STEP_INTERVALS = 2
"""A kick during a reading spreads over two intervals."""

STEP_WITHIN_S = 300.0
MANY_READINGS = 18
STEP_SIGMAS = 6.0
STEP_SHARE = 0.85
SECOND_SHARE = 0.6


MOST_STEPS = 2
"""Most steps of a sensor that is at more than two values."""


def find_steps(
    times_s: Sequence[float], axes: Sequence[Sequence[float]], sigma: float
) -> list[Step] | None:
    """The step, or the steps, that explain the change of some readings.

    One or two: two kicks, or a kick and the way back. Creep has its largest changes
    side by side, so that a second step within one interval is half of the first within
    two, less than `SECOND_SHARE` of it. Of a sensor at one of two values, such as one
    with a loose contact, each change is a step: three and more, and fewer where such
    changes are its usual noise.

    Args:
        times_s: Times of the readings, ascending.
        axes: Readings; the same number for each axis.
        sigma: Noise of a reading.

    Returns:
        In the order of time; None if no step explains the change.
    """
    switches = _changes_between_two_values(axes)
    if len(switches) > MOST_STEPS:
        return switches
    return _one_or_two_steps(times_s, axes, sigma) or switches or None


def _one_or_two_steps(
    times_s: Sequence[float], axes: Sequence[Sequence[float]], sigma: float
) -> list[Step] | None:
    first = single_step(times_s, axes, sigma)
    if first is not None:
        rest = without_step(axes, first)
        second = single_step(times_s, rest, sigma)
        again = second is not None and _range(rest) > SECOND_SHARE * _range(axes)
        return _in_order(first, second) if second and again else [first]
    first = _largest(axes, STEP_INTERVALS)
    rest = without_step(axes, first)
    # of many readings, creep gives a small part within two intervals, too
    second = _largest(rest, STEP_INTERVALS if len(times_s) > MANY_READINGS else 1)
    least = max(SECOND_SHARE * _size(axes, first), STEP_SIGMAS * sigma)
    if _size(rest, second) < least:
        return None
    left = (1 - STEP_SHARE) * _range(axes) + STEP_SIGMAS * sigma
    is_rest_still = _range(without_step(rest, second)) <= left
    return _in_order(first, second) if is_rest_still else None


def _changes_between_two_values(axes: Sequence[Sequence[float]]) -> list[Step]:
    """Changes from one to the other of two values; none if other values occur.

    A reading is at a value within what `STEP_SHARE` leaves of their distance. Creep
    has readings in between, and so has noise.
    """
    moments = list(zip(*axes, strict=True))
    one = moments[0]
    other = max(moments, key=lambda each: math.dist(one, each))
    near = (1 - STEP_SHARE) * math.dist(one, other)
    if any(min(math.dist(one, m), math.dist(other, m)) > near for m in moments):
        return []
    sides = [math.dist(one, each) > near for each in moments]
    return [(at, at + 1) for at, (was, now) in enumerate(pairwise(sides)) if was != now]


def step_times(
    times_s: Sequence[float], steps: Sequence[Step]
) -> tuple[tuple[float, float], ...]:
    """Times of the readings before and after each step."""
    return tuple((times_s[begin], times_s[end]) for begin, end in steps)


def _in_order(one: Step, other: Step) -> list[Step]:
    """Two steps in the order of time; as one where they overlap."""
    (begin, end), (again, last) = sorted((one, other))
    return [(begin, max(end, last))] if again < end else [(begin, end), (again, last)]


def _range(axes: Sequence[Sequence[float]]) -> float:
    return math.hypot(*(max(axis) - min(axis) for axis in axes))


def _size(axes: Sequence[Sequence[float]], step: Step) -> float:
    return math.hypot(*(axis[step[1]] - axis[step[0]] for axis in axes))


def _largest(axes: Sequence[Sequence[float]], intervals: int) -> Step:
    """Largest change over a number of intervals."""
    over = min(intervals, len(axes[0]) - 1)
    steps = [(at, at + over) for at in range(len(axes[0]) - over)]
    return max(steps, key=lambda step: _size(axes, step))


def is_steady(axes: Sequence[Sequence[float]], sigma: float) -> bool:
    """Whether readings move in one direction, apart from noise.

    Source:
        The distance of two readings of two axes with Gaussian noise is 1.77 sigma on
        average; the share is our proposal.
    """
    moments = list(zip(*axes, strict=True))
    path = sum(math.dist(a, b) for a, b in pairwise(moments))
    noise = _MEAN_DISTANCE * sigma * (len(moments) - 1)
    return math.dist(moments[0], moments[-1]) >= _STEADY_SHARE * (path - noise)


def has_reversal(axes: Sequence[Sequence[float]], sigma: float) -> bool:
    """Whether readings go forth and back by more than their noise.

    Noise and spikes do; creep does not, however jerky it is or quickly it begins.

    Args:
        axes: Readings; the same number for each axis.
        sigma: Noise of a reading.

    Returns:
        True if the smaller of a change and a later one in the opposite direction
        exceeds `REVERSAL_SIGMAS` of the noise, and `REVERSAL_SHARE` of the change from
        the first reading to the last, along any axis.

    Source:
        Spike test of Argo (quality control manual, test 9), whose value
        |v2 - (v3 + v1) / 2| - |(v3 - v1) / 2| is the smaller of two opposite changes;
        here also of readings that are not neighbours. The limits are our proposal.
    """
    least = REVERSAL_SIGMAS * sigma
    if all(max(axis) - min(axis) <= least for axis in axes):
        return False
    most = max(_largest_reversal(axis) for axis in axes)
    net = math.hypot(*(axis[-1] - axis[0] for axis in axes))
    return most > max(least, REVERSAL_SHARE * net)


def _largest_reversal(axis: Sequence[float]) -> float:
    """Largest height of a peak, or depth of a trough, over its lower side."""
    lows, highs = list(accumulate(axis, min)), list(accumulate(axis, max))
    lows_after = list(accumulate(reversed(axis), min))[::-1]
    highs_after = list(accumulate(reversed(axis), max))[::-1]
    return max(
        max(value - max(low, low_after), min(high, high_after) - value)
        for value, low, low_after, high, high_after in zip(
            axis, lows, lows_after, highs, highs_after, strict=True
        )
    )


def find_spikes(axes: Sequence[Sequence[float]], sigma: float) -> list[int]:
    """Numbers of single readings that went there and back, which is no movement.

    The reading after one is back at the value before it, up to what `STEP_SHARE`
    leaves of the change, which exceeds the range of the other readings: a smaller one
    matters little beside it. A last reading is none: it may stay.

    Args:
        axes: Readings; the same number for each axis.
        sigma: Noise of a reading.

    Returns:
        None of them if two are side by side, or if the other readings go forth and
        back, too: a sensor that does so is noisy.
    """
    least = STEP_SIGMAS * sigma
    if all(max(axis, default=0) - min(axis, default=0) <= least for axis in axes):
        return []
    moments = list(zip(*axes, strict=True))
    changes = [math.dist(*pair) for pair in pairwise(moments)]
    sizes = {at: size for at, size in enumerate(map(min, changes, changes[1:]), 1)
             if size > least and _is_back(moments[at - 1 : at + 2], size)}  # fmt: skip
    if not sizes:
        return []
    most = _range(_without(axes, sizes))
    found = [at for at, size in sizes.items() if size > most]
    is_apart = all(b - a > 1 for a, b in pairwise(found))
    return found if is_apart and not has_reversal(_without(axes, found), sigma) else []


def _without(
    axes: Sequence[Sequence[float]], left_out: Collection[int]
) -> list[list[float]]:
    return [[v for at, v in enumerate(axis) if at not in left_out] for axis in axes]


def _is_back(around: Sequence[Sequence[float]], size: float) -> bool:
    """Whether the reading after another is back where the one before it was.

    Args:
        around: These three.
        size: Size of the way there or back, the smaller one.
    """
    return math.dist(around[0], around[2]) <= (1 - STEP_SHARE) * size


REVERSAL_SIGMAS = 6.0
REVERSAL_SHARE = 0.1

_MEAN_DISTANCE = 1.77
_STEADY_SHARE = 0.7


def single_step(
    times_s: Sequence[float], axes: Sequence[Sequence[float]], sigma: float
) -> Step | None:
    """The step that explains the change of some readings.

    A kick may extend over two intervals between readings, or `STEP_WITHIN_S`, because
    it happens during a reading, or the ground settles.

    Args:
        times_s: Times of the readings, ascending.
        axes: Readings; the same number for each axis.
        sigma: Noise of a reading.

    Returns:
        The largest step, if it exceeds `STEP_SIGMAS` of the noise and is at least
        `STEP_SHARE` of the range of the readings above the noise, else None. Creep
        gives a third of its range within two of six intervals; the share is our
        proposal.
    """
    last, end = len(times_s) - 1, 0
    steps = []
    for begin in range(last):
        end = max(end, min(begin + STEP_INTERVALS, last))
        while end < last and times_s[end + 1] <= times_s[begin] + STEP_WITHIN_S:
            end += 1
        steps.append((begin, end))
    largest = max(steps, key=lambda step: _size(axes, step), default=None)
    noise = STEP_SIGMAS * sigma
    least = max(noise, STEP_SHARE * (_range(axes) - noise))
    return largest if largest and _size(axes, largest) >= least else None


def without_step(axes: Sequence[Sequence[float]], step: Step) -> list[list[float]]:
    """Readings without a step, taken at the same moment for all axes."""
    begin, end = step
    return [
        [
            *axis[: begin + 1],
            *([axis[begin]] * (end - begin - 1)),
            *(v - (axis[end] - axis[begin]) for v in axis[end:]),
        ]
        for axis in axes
    ]
