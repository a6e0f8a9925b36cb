"""From a gauge's counter to the rain of each step; missing is never zero."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from backend_spark.transforms.steps import STEP_S, shares, step_end_s

SPREAD_S: Final = 3600.0
"""Up to this long between two readings, rain is taken as even between them."""

ENOUGH_S: Final = STEP_S / 2
"""A step is known when a gauge watched at least so much of it."""


@dataclass(frozen=True, order=True)
class RainReading:
    """One report of a gauge.

    Attributes:
        at_s: Unix time of the report.
        sum_mm: Rain since the gauge's life began; None when it does not count.
        value_mm: Rain since the report before; None when it does not say.
    """

    at_s: float
    sum_mm: float | None = None
    value_mm: float | None = None


@dataclass(frozen=True)
class StepRain:
    """Rain of one step.

    Attributes:
        depth_mm: What is known to have fallen, zero or more.
        is_known: Whether that is all of it; otherwise it is a lower bound.
    """

    depth_mm: float = 0.0
    is_known: bool = False


NO_DATA = StepRain()


@dataclass
class Gauge:
    """What one gauge tells of each step, keyed by the step's end.

    Attributes:
        depth_mm: Rain.
        watched_s: Seconds of the step that lie between two near readings.
        told: Steps that took the whole rain of a longer interval.
    """

    depth_mm: dict[int, float] = field(default_factory=dict)
    watched_s: dict[int, float] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)

    def knows(self, end_s: int, is_open: bool) -> bool:
        """Whether the gauge knows a step; an open one is known so far."""
        watched_s = self.watched_s.get(end_s, 0.0)
        return (
            watched_s >= ENOUGH_S or end_s in self.told or (is_open and watched_s > 0)
        )


def read_gauge(readings: Iterable[RainReading]) -> Gauge:
    """Put the rain between the readings of one gauge into steps.

    Between two readings at most an hour apart the rain is even, each step taking
    its share of the time. After a longer silence it all falls into the step of
    the later reading, and the steps between stay unknown. A counter that went
    down was replaced: then the reading's own value counts.
    """
    gauge = Gauge()
    before: RainReading | None = None
    for reading in sorted(readings, key=lambda r: r.at_s):
        depth_mm = _between(before, reading)
        if depth_mm is not None:
            from_s = reading.at_s - STEP_S if before is None else before.at_s
            _put(gauge, from_s, reading.at_s, depth_mm)
        before = reading
    return gauge


def cell_rain(gauges: Sequence[Gauge], ends_s: Sequence[int]) -> list[StepRain]:
    """Rain of a cell in each step: the most that any of its gauges saw.

    The greatest and not the mean, because a blocked or sheltered gauge reads low
    and a warning must not wait for it.
    """
    last_s = ends_s[-1] if ends_s else 0
    return [
        StepRain(
            max((g.depth_mm.get(end_s, 0.0) for g in gauges), default=0.0),
            any(g.knows(end_s, end_s == last_s) for g in gauges),
        )
        for end_s in ends_s
    ]


def _between(before: RainReading | None, reading: RainReading) -> float | None:
    """Rain since the reading before; None when nothing tells."""
    has_sums = before and before.sum_mm is not None and reading.sum_mm is not None
    if has_sums and reading.sum_mm >= before.sum_mm:  # type: ignore[operator, union-attr]
        return reading.sum_mm - before.sum_mm  # type: ignore[operator, union-attr]
    value_mm = reading.value_mm
    return value_mm if value_mm is not None and value_mm >= 0 else None


def _put(gauge: Gauge, from_s: float, to_s: float, depth_mm: float) -> None:
    length_s = to_s - from_s
    if 0 < length_s <= SPREAD_S:
        for end_s, share_s in shares(from_s, to_s):
            share_mm = depth_mm * share_s / length_s
            gauge.depth_mm[end_s] = gauge.depth_mm.get(end_s, 0.0) + share_mm
            gauge.watched_s[end_s] = gauge.watched_s.get(end_s, 0.0) + share_s
        return
    end_s = step_end_s(to_s)
    gauge.depth_mm[end_s] = gauge.depth_mm.get(end_s, 0.0) + depth_mm
    if length_s > 0:
        gauge.told.add(end_s)
