"""A straight line through readings, and how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
