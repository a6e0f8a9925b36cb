"""Dot product, linear regression, Student's t, and a robust limit for counts.

Source of Student's t for whole degrees of freedom: Abramowitz and Stegun 1964, 26.7.3
and 26.7.4. The limit of median + 8 MAD is our proposal without a source: event counts
of a single MEMS or piezo element have no meaning as absolute numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

from slope_science import ScienceError

MIN_LINE_POINTS = 3


@dataclass(frozen=True)
class RegressionLine:
    """Least-squares line through the means of times and values.

    Attributes:
        mean_time: Mean of the times, where slope and value are independent.
        slope: Slope per unit of time.
        variance: Residual variance, n - 2 degrees of freedom.
        spread: Sum of the squared times about their mean.
        points: Number of readings, at least `MIN_LINE_POINTS`.
        r2: Share of the variance that the line explains; 1 for constant readings.
    """

    mean_time: float
    slope: float
    variance: float
    spread: float
    points: int
    r2: float

    @property
    def sigma_slope(self) -> float:
        """Standard error of the slope."""
        return math.sqrt(self.variance / self.spread)


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Dot product of two columns of one length."""
    total: float = sum(map(mul, left, right))
    return total


def fit_line(times: Sequence[float], values: Sequence[float]) -> RegressionLine | None:
    """Fit a line; None with fewer than `MIN_LINE_POINTS` or no spread in time.

    Raises:
        ScienceError: The numbers of values and times differ.
    """
    count = len(times)
    if count != len(values):
        raise ScienceError("values", f"as many as times ({count})", len(values))
    if count < MIN_LINE_POINTS:
        return None
    mean_time, mean = sum(times) / count, sum(values) / count
    spread = sum((t - mean_time) ** 2 for t in times)
    if spread <= 0:
        return None
    pairs = [(t - mean_time, v - mean) for t, v in zip(times, values, strict=True)]
    slope = sum(t * v for t, v in pairs) / spread
    rest = sum((v - slope * t) ** 2 for t, v in pairs)
    whole = sum(v * v for _, v in pairs)
    r2 = 1 - rest / whole if whole > 0 else 1.0
    return RegressionLine(mean_time, slope, rest / (count - 2), spread, count, r2)


_HALVINGS = 60
_HIGHEST = 1e6


def two_sided_probability(t: float, freedom: int) -> float:
    """Two-sided probability that noise alone exceeds t.

    Args:
        t: Ratio of an estimate to its standard error, zero or more.
        freedom: Degrees of freedom, 1 or more.
    """
    if freedom < 1:
        raise ScienceError("freedom", "1 or more", freedom)
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term = cosine if is_odd else 1.0
    total, at = 0.0, 3 if is_odd else 2
    while at <= freedom:
        total += term
        term *= cosine * cosine * (at - 1) / at
        at += 2
    if is_odd:
        return 1 - 2 / math.pi * (angle + sine * total)
    return 1 - sine * total


@lru_cache(maxsize=1024)
def student_t_quantile(share: float, freedom: int) -> float:
    """The t that noise alone exceeds, on either side, in a share of cases."""
    if not 0 < share < 1:
        raise ScienceError("share", "between 0 and 1", share)
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if two_sided_probability(middle, freedom) > share
            else (low, middle)
        )
    return high


BACKGROUND_MADS = 8.0


def median(values: Sequence[float]) -> float:
    """Median of at least one value."""
    ordered, half = sorted(values), len(values) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def background_limit(
    counts: Sequence[float], min_limit: float, mads: float = BACKGROUND_MADS
) -> float:
    """Count from which a window is an outlier of its past.

    Args:
        counts: Counts of earlier windows of the same length, at least one.
        min_limit: Minimum of the result; at a quiet place the MAD is zero.
        mads: Number of median absolute deviations above the median.
    """
    middle = median(counts)
    mad = median([abs(count - middle) for count in counts])
    return max(min_limit, middle + mads * mad)
