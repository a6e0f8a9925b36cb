"""A multi-level warning judged by its hours: the duration matrix and lead times.

A two-by-two table hides how long each level stood and how strong the event was.

Source: EDuMaP, Calvello and Piciullo 2016 (NHESS 16, 103-122): events, duration
matrix, performance criteria.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from slope_science.levels import EMERGENCY, LOWEST

CLASSES = ("none", "small", "intermediate", "large")
"""Of landslide events by their number of slides: 0, 1, 2 to 4, more."""

_FEW, _MANY = 2, 5
JOIN_S = 12 * 3600.0
"""Landslides nearer in time than this are one event."""


@dataclass(frozen=True)
class Slide:
    """When landslides happened, as exactly as it is known.

    Attributes:
        from_s: Unix time from which they may have happened.
        to_s: Unix time by which they had; equal to `from_s` when known.
        count: How many.
    """

    from_s: float
    to_s: float
    count: int = 1


@dataclass(frozen=True)
class LeadTime:
    """How long before an event a level stood.

    Attributes:
        level: The level.
        least_s: Were the event as early as it may have been; negative: too late.
        most_s: Were it as late as it may have been.
    """

    level: int
    least_s: float
    most_s: float


def joined(slides: Sequence[Slide], join_s: float = JOIN_S) -> list[Slide]:
    """Landslide events: slides that lie near each other in time, together."""
    events: list[Slide] = []
    for slide in sorted(slides, key=lambda s: (s.from_s, s.to_s)):
        if events and slide.from_s - events[-1].to_s < join_s:
            last = events[-1]
            events[-1] = Slide(
                last.from_s, max(last.to_s, slide.to_s), last.count + slide.count
            )
        else:
            events.append(slide)
    return events


def class_of(count: int) -> int:
    """Place in `CLASSES` of an event with so many slides."""
    if count < 1:
        return 0
    return 1 + (count >= _FEW) + (count >= _MANY)


def duration_matrix(
    ends_s: Sequence[float], levels: Sequence[int], events: Sequence[Slide]
) -> list[list[float]]:
    """Hours of every level in every class of event.

    Args:
        ends_s: Unix times of the ends of steps of one length, in order.
        levels: 1 to 5 in each step.
        events: Landslide events.

    Returns:
        One row a level from 1, one column of each of `CLASSES`; all steps are in it.
    """
    step_h = (ends_s[1] - ends_s[0]) / 3600.0 if len(ends_s) > 1 else 0.0
    classes = [0] * len(ends_s)
    for event in events:
        first = bisect_left(ends_s, event.from_s)
        last = max(bisect_right(ends_s, event.to_s), first + 1)
        for at in range(first, min(last, len(ends_s))):
            classes[at] = max(classes[at], class_of(event.count))
    matrix = [[0.0] * len(CLASSES) for _ in range(LOWEST, EMERGENCY + 1)]
    for level, kind in zip(levels, classes, strict=True):
        matrix[level - LOWEST][kind] += step_h
    return matrix


def lead_time(
    ends_s: Sequence[float], levels: Sequence[int], event: Slide, level: int
) -> LeadTime | None:
    """Time from the first issue of a level to an event.

    The first issue is that of the unbroken period, at the level or above, which
    reaches into the event's time; None when there is none.
    """
    last = bisect_right(ends_s, event.to_s) - 1
    first = bisect_left(ends_s, event.from_s)
    standing = [at for at in range(max(first - 1, 0), last + 1) if levels[at] >= level]
    if not standing:
        return None
    start = standing[0]
    while start > 0 and levels[start - 1] >= level:
        start -= 1
    issued_s = ends_s[start]
    return LeadTime(level, event.from_s - issued_s, event.to_s - issued_s)
