"""Movement or a knock: whether a rate rests on one single jump.

A foot against a pile shifts it once; a line fitted through such a step has a slope
that stands clear of its noise. A slope that creeps still has one without its
largest step.
"""

import math
from collections.abc import Sequence
from itertools import pairwise


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
