"""Tilt rate with its noise, its thermal part, and its largest single step.

Thermal part: an accelerometer's zero drifts by up to 0.15 mg/K (0.0086 deg/K), so a
sunny morning resembles 0.01 deg/h. The regression uses changes from hour to hour, so
that neither the mounting nor a steady creep enters it.

Single step: a kick against the pile shifts it once, and a line fitted through the
step has a significant slope. Real creep keeps a slope without its largest step.

Source: Uchimura et al. 2015 (Soils and Foundations 55(5)): precaution at
0.01 deg/h, warning at 0.1 deg/h.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul

PRECAUTION_DEG_PER_H = 0.01
WARNING_DEG_PER_H = 0.1
WINDOW_H = 1.0
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
    """

    deg_per_h: float
    sigma_deg_per_h: float
    points: int

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
        freedom = 2 * (self.points - 2)
        sigmas = math.sqrt(freedom * (false_share ** (-2 / freedom) - 1))
        return sigmas * self.sigma_deg_per_h


def fit_tilt_rate(
    times_h: Sequence[float], x_deg: Sequence[float], y_deg: Sequence[float]
) -> TiltRate | None:
    """Fit x and y separately by least squares; the rate is the vector's length.

    The composite angle is not fitted: it is always positive, so noise biases it.

    Args:
        times_h: Times of the readings in hours, any origin.
        x_deg: Tilt about one axis.
        y_deg: Tilt about the other.

    Returns:
        The rate, or None with fewer than `MIN_POINTS` or no spread in time.
    """
    count = len(times_h)
    if count < MIN_POINTS:
        return None
    mean_h = sum(times_h) / count
    apart_h = [t - mean_h for t in times_h]
    spread = sum(map(mul, apart_h, apart_h))
    if spread <= 0:
        return None
    slope_x, rest_x = _fit(apart_h, x_deg, spread)
    slope_y, rest_y = _fit(apart_h, y_deg, spread)
    variance = (rest_x + rest_y) / (2 * (count - 2))
    rate = math.hypot(slope_x, slope_y)
    return TiltRate(rate, math.sqrt(variance / spread), count)


def tilt_resolution_deg_per_h(sigma_deg: float, times_h: Sequence[float]) -> float:
    """Smallest tilt rate that can be distinguished from the noise.

    Args:
        sigma_deg: Noise of one reading of an axis.
        times_h: Times of the readings of a rate.

    Returns:
        Three standard errors of a slope; infinite without a spread in time.

    Source:
        Standard error of a slope: for 7 readings in an hour sigma_deg / 0.882 h, so
        that 0.01 deg/h needs 0.0029 deg.
    """
    if len(times_h) < MIN_POINTS:
        return math.inf
    mean_h = sum(times_h) / len(times_h)
    spread = sum((t - mean_h) ** 2 for t in times_h)
    return 3 * sigma_deg / math.sqrt(spread) if spread > 0 else math.inf


def _fit(
    apart_h: Sequence[float], values: Sequence[float], spread: float
) -> tuple[float, float]:
    """Slope and sum of squared residuals; times relative to their mean."""
    mean = sum(values) / len(values)
    apart = [v - mean for v in values]
    slope = sum(map(mul, apart_h, apart)) / spread
    rest = [v - slope * t for t, v in zip(apart_h, apart, strict=True)]
    return slope, sum(map(mul, rest, rest))


LEARNING_TIME_H = 14 * 24.0
"""Time constant of the exponential weights."""

MIN_LEARNING_H = 72.0
MIN_TEMPERATURE_K2 = 30.0
"""Minimum sum of squared temperature changes; buried sensors never reach it."""

MAX_DEG_PER_K = 0.02
"""No accelerometer drifts more; a larger slope has another cause."""

MAX_STEP_DEG = 0.05
"""A larger change in an hour is movement and is not used for learning."""


@dataclass(frozen=True)
class ThermalRegression:
    """Regression through zero of tilt changes on temperature changes.

    Attributes:
        hours: Weighted number of changes.
        tt_k2: Sum of squared changes of temperature.
        tx_k_deg: Sum of products of the changes of temperature and x.
        ty_k_deg: The same for y.
    """

    hours: float = 0.0
    tt_k2: float = 0.0
    tx_k_deg: float = 0.0
    ty_k_deg: float = 0.0

    def updated(
        self, change_k: float, x_deg: float, y_deg: float
    ) -> "ThermalRegression":
        """The regression with the changes of one more hour.

        Args:
            change_k: Change of the temperature.
            x_deg: Change of x.
            y_deg: Change of y.
        """
        changes = (change_k, x_deg, y_deg)
        if (
            not all(map(math.isfinite, changes))
            or math.hypot(x_deg, y_deg) > MAX_STEP_DEG
        ):
            return self
        kept = 1 - 1 / LEARNING_TIME_H
        return ThermalRegression(
            self.hours * kept + 1,
            self.tt_k2 * kept + change_k * change_k,
            self.tx_k_deg * kept + change_k * x_deg,
            self.ty_k_deg * kept + change_k * y_deg,
        )

    @property
    def deg_per_k(self) -> tuple[float, float] | None:
        """Tilt of x and y per kelvin; None while the data do not suffice."""
        if self.hours < MIN_LEARNING_H or self.tt_k2 < MIN_TEMPERATURE_K2:
            return None
        x, y = self.tx_k_deg / self.tt_k2, self.ty_k_deg / self.tt_k2
        return (x, y) if math.hypot(x, y) <= MAX_DEG_PER_K else None


STEP_INTERVALS = 2
"""A kick during a reading spreads over two intervals."""

STEP_WITHIN_S = 300.0
STEP_SIGMAS = 6.0
STEP_SHARE = 0.85
SECOND_SHARE = 0.6


def remove_steps(
    times_s: Sequence[float], axes: Sequence[Sequence[float]], sigma: float
) -> list[list[float]] | None:
    """Readings without the step, or the two steps, that explain their change.

    Two steps are two kicks, or a kick and the way back. Creep has its largest changes
    side by side, so that a second step within one interval is half of the first within
    two, less than `SECOND_SHARE` of it.

    Args:
        times_s: Times of the readings, ascending.
        axes: Readings; the same number for each axis.
        sigma: Noise of a reading.

    Returns:
        None if no step explains the change.
    """
    if is_single_step(times_s, axes, sigma):
        rest = remove_largest_step(axes, STEP_INTERVALS)
        again = is_single_step(times_s, rest, sigma) and _range(rest) > (
            SECOND_SHARE * _range(axes)
        )
        return remove_largest_step(rest, STEP_INTERVALS) if again else rest
    first, second = _largest(axes, STEP_INTERVALS), 0.0
    rest = remove_largest_step(axes, STEP_INTERVALS)
    second = _largest(rest, 1)
    if second < max(SECOND_SHARE * first, STEP_SIGMAS * sigma):
        return None
    rest = remove_largest_step(rest, 1)
    left = (1 - STEP_SHARE) * _range(axes) + STEP_SIGMAS * sigma
    return rest if _range(rest) <= left else None


def _range(axes: Sequence[Sequence[float]]) -> float:
    return math.hypot(*(max(axis) - min(axis) for axis in axes))


def _largest(axes: Sequence[Sequence[float]], intervals: int) -> float:
    """Largest change over a number of intervals; 0 with too few readings."""
    moments = list(zip(*axes, strict=True))
    pairs = zip(moments, moments[intervals:], strict=False)
    return max((math.dist(before, after) for before, after in pairs), default=0.0)


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


_MEAN_DISTANCE = 1.77
_STEADY_SHARE = 0.7


def is_single_step(
    times_s: Sequence[float], axes: Sequence[Sequence[float]], sigma: float
) -> bool:
    """Whether one step explains the change of some readings.

    A kick may extend over two intervals between readings, or `STEP_WITHIN_S`, because
    it happens during a reading, or the ground settles.

    Args:
        times_s: Times of the readings, ascending.
        axes: Readings; the same number for each axis.
        sigma: Noise of a reading.

    Returns:
        Whether the largest step exceeds `STEP_SIGMAS` of the noise, and is at least
        `STEP_SHARE` of the range of the readings above the noise. Creep gives a third
        of its range within two of six intervals; the share is our proposal.
    """
    moments = list(zip(*axes, strict=True))
    largest, end = 0.0, 0
    for begin, moment in enumerate(moments):
        last = min(begin + 2, len(moments) - 1)
        end = max(end, last)
        while end + 1 < len(moments) and times_s[end + 1] <= (
            times_s[begin] + STEP_WITHIN_S
        ):
            end += 1
        largest = max(largest, math.dist(moment, moments[end]))
    whole = math.hypot(*(max(axis) - min(axis) for axis in axes))
    noise = STEP_SIGMAS * sigma
    return largest >= noise and largest >= STEP_SHARE * (whole - noise)


def remove_largest_step(
    axes: Sequence[Sequence[float]], intervals: int = 1
) -> list[list[float]]:
    """Readings without their largest step, taken at the same moment for all axes.

    Args:
        axes: Readings in time order; the same number for each axis.
        intervals: Number of intervals between readings over which one step may extend,
            such as two for a kick during a reading.
    """
    moments = list(zip(*axes, strict=True))
    over = min(intervals, len(moments) - 1)
    if over < 1:
        return [list(axis) for axis in axes]
    sizes = [
        math.dist(before, after)
        for before, after in zip(moments, moments[over:], strict=False)
    ]
    begin = sizes.index(max(sizes))
    end = begin + over
    return [
        [
            *axis[: begin + 1],
            *([axis[begin]] * (over - 1)),
            *(v - (axis[end] - axis[begin]) for v in axis[end:]),
        ]
        for axis in axes
    ]
