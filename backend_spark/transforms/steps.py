"""The 10-minute grid that everything is judged on.

A step is known by the Unix time of its end and holds the moments in (end - 10 min,
end]: what a gauge reports at the full ten minutes fell before it.
"""

import math
from collections.abc import Iterator
from typing import Final

STEP_S: Final = 600


def step_end_s(at_s: float) -> int:
    """End of the step that holds a moment, in Unix seconds."""
    return math.ceil(at_s / STEP_S) * STEP_S


def step_ends(first_s: int, last_s: int) -> range:
    """Ends of all steps from one to another, both included."""
    return range(first_s, last_s + STEP_S, STEP_S)


def shares(from_s: float, to_s: float) -> Iterator[tuple[int, float]]:
    """The steps an interval touches: their ends, and the seconds in each."""
    end_s = step_end_s(from_s)
    while from_s < to_s:
        if end_s > from_s:
            until_s = min(to_s, end_s)
            yield end_s, until_s - from_s
            from_s = until_s
        end_s += STEP_S
