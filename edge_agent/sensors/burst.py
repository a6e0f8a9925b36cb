"""One value from a burst of samples, and how sure it is."""

import math
import statistics
from collections.abc import Sequence

TRIMMED = 0.25
"""Share of the samples that is left out at each end."""

EFFICIENCY = 0.83
"""Of such a mean under Gaussian noise: variance of the plain mean over its own."""


def middle_mean(values: Sequence[float]) -> float:
    """Mean of the middle half: a knock counts for nothing, and noise averages."""
    cut = int(len(values) * TRIMMED)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def standard_error(values: Sequence[float]) -> float:
    """Noise of `middle_mean`, as the samples themselves tell it; 0 for fewer than 2.

    Source:
        Tukey and McLaughlin 1963: standard deviation of the winsorized samples,
        over (1 - 2 x trimmed share) sqrt(n).
    """
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return 0.0
    cut = int(len(values) * TRIMMED)
    ordered = sorted(values)
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    winsorized = [min(max(value, low), high) for value in ordered]
    kept = 1 - 2 * cut / len(ordered)
    return statistics.stdev(winsorized) / (kept * math.sqrt(len(ordered)))
