"""Student's t for a whole number of degrees of freedom, without a table.

Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
"""

import math
from functools import lru_cache

from slope_science.errors import ScienceError

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
