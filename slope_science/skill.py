"""How well a number warned of what happened: skill scores and their uncertainty.

A case is a place and a window of time, such as a day; it had a score, and an event
or none. Few events leave wide intervals: that is why each score has one here.

Source: Wilks, Statistical Methods in the Atmospheric Sciences, ch. 9 (scores);
Mason and Graham 2002 (area under the ROC curve by ranks); Künsch 1989 (blocks).

A multi-level warning judged by its hours: the duration matrix and lead times.

A two-by-two table hides how long each level stood and how strong the event was.

Source: EDuMaP, Calvello and Piciullo 2016 (NHESS 16, 103-122): events, duration
matrix, performance criteria.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slope_science.errors import ScienceError
from slope_science.findings import EMERGENCY, LOWEST

RESAMPLES = 1000
BLOCK_CASES = 30
"""Neighbouring days share their weather: cases are drawn a month at a time."""

_TAIL = 0.025


@dataclass(frozen=True)
class Contingency:
    """Cases by warning and event; a score without cases to measure it is None.

    Attributes:
        hits: Warned, and it happened.
        false_alarms: Warned, and nothing happened.
        misses: Not warned, and it happened.
        quiet: Neither.
    """

    hits: int
    false_alarms: int
    misses: int
    quiet: int

    @classmethod
    def at(
        cls, scores: Sequence[float], events: Sequence[bool], threshold: float
    ) -> "Contingency":
        """Cases when a warning is a score at or above a threshold."""
        warned = [score >= threshold for score in scores]
        pairs = list(zip(warned, events, strict=True))
        return cls(
            pairs.count((True, True)),
            pairs.count((True, False)),
            pairs.count((False, True)),
            pairs.count((False, False)),
        )

    @property
    def pod(self) -> float | None:
        """Probability of detection (捕捉率)."""
        return _ratio(self.hits, self.hits + self.misses)

    @property
    def far(self) -> float | None:
        """False alarm ratio: the share of warnings without an event."""
        return _ratio(self.false_alarms, self.hits + self.false_alarms)

    @property
    def pofd(self) -> float | None:
        """Probability of false detection: the share of quiet cases warned of."""
        return _ratio(self.false_alarms, self.false_alarms + self.quiet)

    @property
    def tss(self) -> float | None:
        """True skill statistic: POD - POFD."""
        if self.pod is None or self.pofd is None:
            return None
        return self.pod - self.pofd

    @property
    def csi(self) -> float | None:
        """Critical success index: hits of all but the quiet cases."""
        return _ratio(self.hits, self.hits + self.false_alarms + self.misses)

    @property
    def hss(self) -> float | None:
        """Heidke skill score: accuracy beyond that of chance."""
        a, b, c, d = self.hits, self.false_alarms, self.misses, self.quiet
        return _ratio(2 * (a * d - b * c), (a + c) * (c + d) + (a + b) * (b + d))


def auc(scores: Sequence[float], events: Sequence[bool]) -> float | None:
    """Area under the ROC curve: how often an event outscores a quiet case.

    Ties count half. None without both events and quiet cases.
    """
    ranked = sorted(zip(scores, events, strict=True))
    n_events = sum(events)
    n_quiet = len(ranked) - n_events
    if not n_events or not n_quiet:
        return None
    rank_sum = 0.0
    first = 0
    while first < len(ranked):
        end = first
        while end < len(ranked) and ranked[end][0] == ranked[first][0]:
            end += 1
        tied = sum(event for _, event in ranked[first:end])
        rank_sum += tied * (first + 1 + end) / 2
        first = end
    return (rank_sum - n_events * (n_events + 1) / 2) / (n_events * n_quiet)


def best_threshold(scores: Sequence[float], events: Sequence[bool]) -> float | None:
    """The threshold of the greatest TSS; of equal ones the lowest, which misses less.

    None without both events and quiet cases.
    """
    n_events = sum(events)
    n_quiet = len(events) - n_events
    if not n_events or not n_quiet:
        return None
    best: tuple[float, float] | None = None
    hits = alarms = 0
    ranked = sorted(zip(scores, events, strict=True), reverse=True)
    for at, (score, event) in enumerate(ranked):
        hits += event
        alarms += not event
        if at + 1 < len(ranked) and ranked[at + 1][0] == score:
            continue
        skill = hits / n_events - alarms / n_quiet
        if best is None or skill >= best[0]:
            best = skill, score
    return None if best is None else best[1]


def safe_threshold(scores: Sequence[float], events: Sequence[bool]) -> float | None:
    """The highest threshold that would have missed no event; None without one."""
    return min((s for s, e in zip(scores, events, strict=True) if e), default=None)


Statistic = Callable[[Sequence[float], Sequence[bool]], float | None]
Draw = Callable[[int], int]


def interval(
    statistic: Statistic,
    scores: Sequence[float],
    events: Sequence[bool],
    draw: Draw,
) -> tuple[float, float] | None:
    """95 % interval of a statistic by the moving-block bootstrap.

    Args:
        statistic: Of scores and events.
        scores: In the order of time.
        events: Of the same cases.
        draw: A whole number from 0 to below its argument, each as likely.

    Returns:
        Low and high end; None when most draws leave the statistic undefined.

    Raises:
        ScienceError: Scores and events differ in number, or there are none.
    """
    count = len(scores)
    if not count or count != len(events):
        raise ScienceError("events", f"one for each of {count} scores", len(events))
    length = min(BLOCK_CASES, count)
    found = []
    for _ in range(RESAMPLES):
        starts = [draw(count - length + 1) for _ in range(-(-count // length))]
        cases = [at for start in starts for at in range(start, start + length)][:count]
        value = statistic([scores[at] for at in cases], [events[at] for at in cases])
        if value is not None:
            found.append(value)
    if len(found) < RESAMPLES / 2:
        return None
    found.sort()
    last = len(found) - 1
    return found[round(_TAIL * last)], found[round((1 - _TAIL) * last)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


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
