"""How fast a slope tilts, and how sure that is.

Source: Uchimura et al. 2015 (Soils and Foundations 55(5)): precaution at
0.01 deg/h, warning at 0.1 deg/h.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
