"""Counts against their own background.

Event counts of a single MEMS or piezo element mean nothing as absolute numbers;
median + 8 MAD of the place's own past is a proposal of ours, without a source.
"""

from collections.abc import Sequence

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
