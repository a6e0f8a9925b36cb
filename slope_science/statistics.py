"""A straight line through readings, and how sure it is.

Student's t for a whole number of degrees of freedom, without a table.

Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.

Counts against their own background.

Event counts of a single MEMS or piezo element mean nothing as absolute numbers;
median + 8 MAD of the place's own past is a proposal of ours, without a source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from slope_science.errors import ScienceError

FEWEST_POINTS = 3


@dataclass(frozen=True)
class Line:
    """Least squares: value = at_mean + slope (time - mean time).

    Attributes:
        mean_time: Mean of the times; there slope and height are independent.
        at_mean: Height of the line there.
        slope: Per unit of time.
        variance: Of the readings about the line, n - 2 degrees of freedom.
        spread: Sum of the squared times about their mean.
        points: Readings behind it, at least `FEWEST_POINTS`.
        r2: Share of the readings' variance that the line explains; 1 when they
            have none.
    """

    mean_time: float
    at_mean: float
    slope: float
    variance: float
    spread: float
    points: int
    r2: float

    @property
    def sigma_slope(self) -> float:
        """Standard error of the slope."""
        return math.sqrt(self.variance / self.spread)

    @property
    def sigma_at_mean(self) -> float:
        """Standard error of the height at the mean time."""
        return math.sqrt(self.variance / self.points)


def fit_line(times: Sequence[float], values: Sequence[float]) -> Line | None:
    """Fit a line; None with fewer than `FEWEST_POINTS` or no spread in time.

    Raises:
        ScienceError: There are not as many values as times.
    """
    count = len(times)
    if count != len(values):
        raise ScienceError("values", f"as many as times ({count})", len(values))
    if count < FEWEST_POINTS:
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
    return Line(mean_time, mean, slope, rest / (count - 2), spread, count, r2)


_HALVINGS = 60
_HIGHEST = 1e6


def outside(t: float, freedom: int) -> float:
    """Probability that noise alone lies further from zero than t, on either side.

    Args:
        t: Ratio of an estimate and its standard error, zero or more.
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
def quantile(share: float, freedom: int) -> float:
    """The t that noise alone passes, on either side, in that share of cases."""
    if not 0 < share < 1:
        raise ScienceError("share", "between 0 and 1", share)
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if outside(middle, freedom) > share else (low, middle)
        )
    return high


MADS = 8.0


def median(values: Sequence[float]) -> float:
    """The middle of some values, at least one."""
    ordered, half = sorted(values), len(values) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def background_limit(
    counts: Sequence[float], least: float, mads: float = MADS
) -> float:
    """The count from which on a window stands out of its past.

    Args:
        counts: Of earlier windows of the same length, at least one.
        least: No fewer ever stand out: a quiet place has a MAD of zero.
        mads: Median absolute deviations over the median.
    """
    middle = median(counts)
    mad = median([abs(count - middle) for count in counts])
    return max(least, middle + mads * mad)
