"""Skill scores of warnings; duration matrix and lead times.

A case is a place and a period such as a day, with a score, and with or without an
event. The duration matrix shows in addition how long each level lasted and how strong
the event was.

Source: Wilks, Statistical Methods in the Atmospheric Sciences, ch. 9 (scores); Mason
and Graham 2002 (area under the ROC curve by ranks); EDuMaP, Calvello and Piciullo 2016
(NHESS 16, 103-122): events, duration matrix, performance criteria.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slope_science.levels import EMERGENCY, LOWEST

SCORES = ("pod", "far", "pofd", "tss", "csi", "hss")
"""Names of the scores of `Contingency`, in the order of reports."""

_TAIL = 0.025


@dataclass(frozen=True)
class Contingency:
    """Two-by-two table of warnings and events; a score without cases is None.

    Attributes:
        hits: Cases with warning and event.
        false_alarms: With warning only.
        misses: With event only.
        quiet: With neither.
    """

    hits: int
    false_alarms: int
    misses: int
    quiet: int

    @classmethod
    def from_threshold(
        cls, scores: Sequence[float], events: Sequence[bool], threshold: float
    ) -> "Contingency":
        """The table where a score at or above a threshold is a warning."""
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
        """Probability of false detection: share of event-free cases with a warning."""
        return _ratio(self.false_alarms, self.false_alarms + self.quiet)

    @property
    def tss(self) -> float | None:
        """True skill statistic: POD - POFD."""
        if self.pod is None or self.pofd is None:
            return None
        return self.pod - self.pofd

    @property
    def csi(self) -> float | None:
        """Critical success index: hits as a share of all but the quiet cases."""
        return _ratio(self.hits, self.hits + self.false_alarms + self.misses)

    @property
    def hss(self) -> float | None:
        """Heidke skill score: accuracy beyond that of chance."""
        a, b, c, d = self.hits, self.false_alarms, self.misses, self.quiet
        return _ratio(2 * (a * d - b * c), (a + c) * (c + d) + (a + b) * (b + d))


def area_under_roc(scores: Sequence[float], events: Sequence[bool]) -> float | None:
    """Area under the ROC curve: share of pairs in which the event scores higher.

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
    """Threshold with the highest TSS; of equal ones the lowest, with fewest misses.

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
    """Highest threshold without a miss; None without events."""
    return min((s for s, e in zip(scores, events, strict=True) if e), default=None)


_HALVINGS = 50


def share_interval(hits: int, cases: int) -> tuple[float, float]:
    """Exact 95 % interval of a share, for independent cases.

    Args:
        hits: Number of cases that count, up to `cases`.
        cases: Number of cases; without any, the interval is 0 to 1.

    Source:
        Clopper and Pearson 1934: the shares that make as few, or as many, hits an
        outcome with a probability of 2.5 %.
    """
    low = _share_with(hits - 1, cases, 1 - _TAIL) if hits else 0.0
    high = _share_with(hits, cases, _TAIL) if hits < cases else 1.0
    return low, high


def _share_with(hits: int, cases: int, probability: float) -> float:
    """The share with which up to some number of hits has a probability."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_most(hits, cases, middle) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(hits: int, cases: int, share: float) -> float:
    """Probability of up to some number of hits (binomial distribution)."""
    log_hit, log_miss = math.log(share), math.log1p(-share)
    return math.fsum(
        math.exp(
            math.lgamma(cases + 1)
            - math.lgamma(n + 1)
            - math.lgamma(cases - n + 1)
            + n * log_hit
            + (cases - n) * log_miss
        )
        for n in range(hits + 1)
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


EVENT_CLASSES = ("none", "small", "intermediate", "large")
"""Classes of landslide events by number of slides: 0, 1, 2 to 4, more."""

_FEW, _MANY = 2, 5
EVENT_GAP_S = 12 * 3600.0
"""Landslides less than this apart are one event."""


@dataclass(frozen=True)
class Slide:
    """Period in which landslides happened.

    Attributes:
        from_s: Earliest Unix time.
        to_s: Latest Unix time; equal to `from_s` if exactly known.
        count: Number of landslides.
        begins_exactly: Whether one of them happened at `from_s`, as always where both
            times are equal; otherwise all are after it.
    """

    from_s: float
    to_s: float
    count: int = 1
    begins_exactly: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Derive `begins_exactly` from equal times."""
        if self.from_s == self.to_s:
            object.__setattr__(self, "begins_exactly", True)


@dataclass(frozen=True)
class LeadTime:
    """Time between the issue of a level and an event.

    Attributes:
        level: The level.
        least_s: For the earliest time of the event; negative: too late.
        most_s: For the latest time of the event.
    """

    level: int
    least_s: float
    most_s: float


def merge_slides(slides: Sequence[Slide]) -> list[Slide]:
    """Merge landslides that are close in time into events."""
    events: list[Slide] = []
    for slide in sorted(slides, key=lambda s: (s.from_s, s.to_s)):
        if events and slide.from_s - events[-1].to_s < EVENT_GAP_S:
            last = events[-1]
            to_s = max(last.to_s, slide.to_s)
            events[-1] = replace(last, to_s=to_s, count=last.count + slide.count)
        else:
            events.append(slide)
    return events


def event_class(count: int) -> int:
    """Index in `EVENT_CLASSES` of an event with a number of slides."""
    if count < 1:
        return 0
    return 1 + (count >= _FEW) + (count >= _MANY)


def duration_matrix(
    ends_s: Sequence[float],
    levels: Sequence[int],
    events: Sequence[Slide],
    step_s: float,
) -> list[list[float]]:
    """Hours of each level in each class of event.

    Args:
        ends_s: Unix times of the ends of equal steps, ascending; some may be missing.
        levels: Level 1 to 5 in each step.
        events: Landslide events.
        step_s: Length of a step.

    Returns:
        One row per level from 1, one column per class; it contains all steps.
    """
    classes = [0] * len(ends_s)
    for event in events:
        first = _first_step(ends_s, event)
        last = max(bisect_left(ends_s, event.to_s + step_s), first + 1)
        for at in range(first, min(last, len(ends_s))):
            classes[at] = max(classes[at], event_class(event.count))
    matrix = [[0.0] * len(EVENT_CLASSES) for _ in range(LOWEST, EMERGENCY + 1)]
    for level, kind in zip(levels, classes, strict=True):
        matrix[level - LOWEST][kind] += step_s / 3600.0
    return matrix


def lead_time(
    ends_s: Sequence[float], levels: Sequence[int], event: Slide, level: int
) -> LeadTime | None:
    """Time from the first issue of a level to an event.

    The first issue begins the uninterrupted period at the level or above that reaches
    into the event's period; None if there is none.
    """
    last = bisect_right(ends_s, event.to_s) - 1
    first = _first_step(ends_s, event)
    standing = [at for at in range(max(first - 1, 0), last + 1) if levels[at] >= level]
    if not standing:
        return None
    start = standing[0]
    while start > 0 and levels[start - 1] >= level:
        start -= 1
    issued_s = ends_s[start]
    return LeadTime(level, event.from_s - issued_s, event.to_s - issued_s)


def _first_step(ends_s: Sequence[float], event: Slide) -> int:
    """Index of the first step of an event; one that ends as a period begins is not."""
    bisect = bisect_left if event.begins_exactly else bisect_right
    return bisect(ends_s, event.from_s)
