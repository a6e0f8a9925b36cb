"""How far a value has stepped, and whether more than one reading says so.

A ranger hears a branch or its own ring once in a while, and one false echo is a jump
there and a jump back. So a step counts alone when two readings before it and the
last two agree; one reading counts beside another sensor's sign.
"""

from collections.abc import Sequence
from itertools import pairwise

from edge_agent.triage.recent import Bin


def agreed_step(bins: Sequence[Bin], within_s: float) -> float:
    """The largest change between two readings in a row and the last two.

    Args:
        bins: In the order of time.
        within_s: Longest time between the two pairs.

    Returns:
        The least change from one of the pair before to one of the last; 0.0 where
        they disagree which way it went, or are too few.
    """
    last = bins[-2:]
    steps = [
        _least([b.values[0] - r.values[0] for b in last for r in pair])
        for pair in pairwise(bins[:-2])
        if last[0].at_s - pair[1].at_s <= within_s
    ]
    return max(steps, key=abs, default=0.0)


def lone_step(bins: Sequence[Bin], within_s: float) -> float:
    """The largest change up to the last reading alone."""
    steps = [
        bins[-1].values[0] - b.values[0]
        for b in bins
        if bins[-1].at_s - b.at_s <= within_s
    ]
    return max(steps, key=abs, default=0.0)


def _least(changes: Sequence[float]) -> float:
    is_one_way = min(changes) > 0 or max(changes) < 0
    return min(changes, key=abs) if is_one_way else 0.0
