"""How fast a slope tilts, and how sure that is.

Source: Uchimura et al. 2015 (Soils and Foundations 55(5)): precaution at
0.01 deg/h, warning at 0.1 deg/h.

The tilt that follows a sensor's temperature, learnt from its own days.

An accelerometer's zero moves with its temperature, by up to 0.15 mg/K (0.0086 deg/K)
for a good one: a sunny morning then looks like 0.01 deg/h. Changes from hour to
hour are compared, so neither the mounting nor a steady creep is mistaken for it.

Movement or a knock: whether a rate rests on one single jump.

A foot against a pile shifts it once; a line fitted through such a step has a slope
that stands clear of its noise. A slope that creeps still has one without its
largest step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul

PRECAUTION_DEG_PER_H = 0.01
WARNING_DEG_PER_H = 0.1
WINDOW_H = 1.0
FEWEST_POINTS = 4
FALSE_SHARE = 1e-3
"""Share of windows in which noise alone may look like movement."""


@dataclass(frozen=True)
class TiltRate:
    """A rate of tilt and its noise.

    Attributes:
        deg_per_h: Length of the rate vector (x, y); never negative.
        sigma_deg_per_h: Standard error of the slopes, from their residuals.
        points: Readings behind it, at least `FEWEST_POINTS`.
    """

    deg_per_h: float
    sigma_deg_per_h: float
    points: int

    def exceeds(
        self, threshold_deg_per_h: float, false_share: float = FALSE_SHARE
    ) -> bool:
        """Whether the rate reaches a threshold and stands clear of its noise.

        A fixed number of sigmas will not do: they are estimated from the same few
        readings. With four of them, noise passes 3 sigmas in 9.5 % of windows.

        Source:
            For two axes of Gaussian noise the squared ratio of rate and sigma,
            halved, follows F(2, v) with v = 2 (points - 2) degrees of freedom, so
            P(ratio > k) = (1 + k^2 / v)^(-v / 2), solved for k at the share of
            windows that may look like movement.
        """
        is_clear = self.deg_per_h > self.noise_deg_per_h(false_share)
        return is_clear and self.deg_per_h >= threshold_deg_per_h

    def noise_deg_per_h(self, false_share: float = FALSE_SHARE) -> float:
        """Bound of noise: a rate that noise alone passes only so rarely."""
        freedom = 2 * (self.points - 2)
        sigmas = math.sqrt(freedom * (false_share ** (-2 / freedom) - 1))
        return sigmas * self.sigma_deg_per_h


def tilt_rate(
    times_h: Sequence[float], x_deg: Sequence[float], y_deg: Sequence[float]
) -> TiltRate | None:
    """Fit x and y apart by least squares, then take the length of the slopes.

    The composite angle is not fitted: it is always positive, so noise biases it.

    Args:
        times_h: Times of the readings in hours, any origin.
        x_deg: Tilt about one axis.
        y_deg: Tilt about the other.

    Returns:
        The rate, or None with fewer than `FEWEST_POINTS` or no spread in time.
    """
    count = len(times_h)
    if count < FEWEST_POINTS:
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


def resolution_deg_per_h(sigma_deg: float, times_h: Sequence[float]) -> float:
    """The slowest tilt that readings of that noise can tell from none.

    Args:
        sigma_deg: Noise of one reading of an axis.
        times_h: Times of the readings behind a rate.

    Returns:
        Three standard errors of a slope; infinite without a spread in time.

    Source:
        Standard error of a slope: for 7 readings in an hour sigma_deg / 0.882 h, so
        that 0.01 deg/h needs 0.0029 deg.
    """
    if len(times_h) < FEWEST_POINTS:
        return math.inf
    mean_h = sum(times_h) / len(times_h)
    spread = sum((t - mean_h) ** 2 for t in times_h)
    return 3 * sigma_deg / math.sqrt(spread) if spread > 0 else math.inf


def _fit(
    apart_h: Sequence[float], values: Sequence[float], spread: float
) -> tuple[float, float]:
    """Slope, and the sum of squared residuals; times from their mean."""
    mean = sum(values) / len(values)
    apart = [v - mean for v in values]
    slope = sum(map(mul, apart_h, apart)) / spread
    rest = [v - slope * t for t, v in zip(apart_h, apart, strict=True)]
    return slope, sum(map(mul, rest, rest))


MEMORY_H = 14 * 24.0
"""Mean age of what is learnt."""

FEWEST_H = 72.0
LEAST_K2 = 30.0
"""Sum of the squared changes of temperature; buried sensors never have it."""

MOST_DEG_PER_K = 0.02
"""No accelerometer drifts more; what seems to is something else."""

MOST_STEP_DEG = 0.05
"""More in an hour is movement, and teaches nothing of temperature."""


@dataclass(frozen=True)
class Thermal:
    """A regression through zero, of changes in tilt on changes in temperature.

    Attributes:
        hours: How many changes count, older ones less.
        tt_k2: Sum of squared changes of temperature.
        tx_k_deg: Sum of changes of temperature and x, multiplied.
        ty_k_deg: The same with y.
    """

    hours: float = 0.0
    tt_k2: float = 0.0
    tx_k_deg: float = 0.0
    ty_k_deg: float = 0.0

    def after(self, change_k: float, x_deg: float, y_deg: float) -> "Thermal":
        """What is known after one more hour.

        Args:
            change_k: How the temperature changed in that hour.
            x_deg: How x did.
            y_deg: How y did.
        """
        told = (change_k, x_deg, y_deg)
        if (
            not all(map(math.isfinite, told))
            or math.hypot(x_deg, y_deg) > MOST_STEP_DEG
        ):
            return self
        kept = 1 - 1 / MEMORY_H
        return Thermal(
            self.hours * kept + 1,
            self.tt_k2 * kept + change_k * change_k,
            self.tx_k_deg * kept + change_k * x_deg,
            self.ty_k_deg * kept + change_k * y_deg,
        )

    @property
    def deg_per_k(self) -> tuple[float, float] | None:
        """Tilt of x and y for each kelvin; None while it is not known."""
        if self.hours < FEWEST_H or self.tt_k2 < LEAST_K2:
            return None
        x, y = self.tx_k_deg / self.tt_k2, self.ty_k_deg / self.tt_k2
        return (x, y) if math.hypot(x, y) <= MOST_DEG_PER_K else None


def without_largest_step(axes: Sequence[Sequence[float]]) -> list[list[float]]:
    """Readings with their largest step taken back, of all axes at the same moment.

    Args:
        axes: Readings in the order of time, as many of each axis.
    """
    moments = list(zip(*axes, strict=True))
    steps = [
        math.hypot(*(b - a for a, b in zip(before, after, strict=True)))
        for before, after in pairwise(moments)
    ]
    if not steps:
        return [list(axis) for axis in axes]
    at = steps.index(max(steps)) + 1
    return [
        [
            v - (axis[at] - axis[at - 1]) * (number >= at)
            for number, v in enumerate(axis)
        ]
        for axis in axes
    ]
