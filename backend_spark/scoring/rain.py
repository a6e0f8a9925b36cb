"""From a gauge's counter to the rain of each step; missing is never zero.

Rain run through the soil of a cell: a gap is never zero rain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from backend_spark.scoring.observation import STEP_S, shares, step_end_s
from slope_science.rain import STEPS_PER_HOUR, TEN_MINUTES_H, SoilWater

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
        failed: Whether it failed a test: the rain before it is then unknown.
        suspect: Whether it is doubtful.
    """

    at_s: float
    sum_mm: float | None = None
    value_mm: float | None = None
    failed: bool = False
    suspect: bool = False


@dataclass(frozen=True)
class StepRain:
    """Rain of one step.

    Attributes:
        depth_mm: What is known to have fallen, zero or more.
        is_known: Whether that is all of it; otherwise it is a lower bound.
        doubted_mm: How much of it only doubtful readings tell.
    """

    depth_mm: float = 0.0
    is_known: bool = False
    doubted_mm: float = 0.0


NO_DATA = StepRain()


@dataclass
class Gauge:
    """What one gauge tells of each step, keyed by the step's end.

    Attributes:
        depth_mm: Rain.
        watched_s: Seconds of the step that lie between two near readings.
        told: Steps that took the whole rain of a longer interval.
        doubted_mm: Rain that a doubtful reading tells, part of `depth_mm`.
    """

    depth_mm: dict[int, float] = field(default_factory=dict)
    watched_s: dict[int, float] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    doubted_mm: dict[int, float] = field(default_factory=dict)

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
            _put(gauge.depth_mm, from_s, reading.at_s, depth_mm)
            if reading.suspect:
                _put(gauge.doubted_mm, from_s, reading.at_s, depth_mm)
            _watch(gauge, from_s, reading.at_s)
        before = reading
    return gauge


def cell_rain(gauges: Sequence[Gauge], ends_s: Sequence[int]) -> list[StepRain]:
    """Rain of a cell in each step: the most that any of its gauges saw.

    The greatest and not the mean, because a blocked or sheltered gauge reads low
    and a warning must not wait for it.
    """
    last_s = ends_s[-1] if ends_s else 0
    return [_step_rain(gauges, end_s, end_s == last_s) for end_s in ends_s]


def _step_rain(gauges: Sequence[Gauge], end_s: int, is_open: bool) -> StepRain:
    depths = [g.depth_mm.get(end_s, 0.0) for g in gauges]
    sure = [
        depth_mm - g.doubted_mm.get(end_s, 0.0)
        for g, depth_mm in zip(gauges, depths, strict=True)
    ]
    most_mm = max(depths, default=0.0)
    return StepRain(
        most_mm,
        any(g.knows(end_s, is_open) for g in gauges),
        max(0.0, most_mm - max(sure, default=0.0)),
    )


def depth_mm(
    sum_before_mm: float | None, sum_mm: float | None, value_mm: float | None
) -> float | None:
    """Rain between two reports of a gauge; None when nothing tells.

    Args:
        sum_before_mm: The counter at the report before.
        sum_mm: The counter at this one.
        value_mm: What this one says by itself.
    """
    if sum_before_mm is not None and sum_mm is not None and sum_mm >= sum_before_mm:
        return sum_mm - sum_before_mm
    return value_mm if value_mm is not None and value_mm >= 0 else None


def _between(before: RainReading | None, reading: RainReading) -> float | None:
    """Rain since the reading before; None when nothing tells, or the reading failed."""
    if reading.failed:
        return None
    return depth_mm(before.sum_mm if before else None, reading.sum_mm, reading.value_mm)


def _put(into: dict[int, float], from_s: float, to_s: float, depth_mm: float) -> None:
    length_s = to_s - from_s
    if 0 < length_s <= SPREAD_S:
        for end_s, share_s in shares(from_s, to_s):
            into[end_s] = into.get(end_s, 0.0) + depth_mm * share_s / length_s
        return
    end_s = step_end_s(to_s)
    into[end_s] = into.get(end_s, 0.0) + depth_mm


def _watch(gauge: Gauge, from_s: float, to_s: float) -> None:
    length_s = to_s - from_s
    if 0 < length_s <= SPREAD_S:
        for end_s, share_s in shares(from_s, to_s):
            gauge.watched_s[end_s] = gauge.watched_s.get(end_s, 0.0) + share_s
    elif length_s > 0:
        gauge.told.add(step_end_s(to_s))


FORGOTTEN_S: Final = 60 * 86_400
"""The tanks forget: so long after a gap the index is no lower bound any more."""


@dataclass(frozen=True)
class RainState:
    """Rain and soil water at the end of a step.

    Attributes:
        r60_mm: Rain of the last hour; None when no step of it is known.
        tanks: Water in the soil; None before the first rain data.
        is_known: Whether the step's rain is known.
        is_lower_bound: Whether rain was missed that the soil may still hold.
        gap_s: How long no rain data came.
        history_s: Time since the first rain data.
        missed_s: Time since rain was missed; None when it never was.
    """

    r60_mm: float | None = None
    tanks: SoilWater | None = None
    is_known: bool = False
    is_lower_bound: bool = False
    gap_s: int = 0
    history_s: int = 0
    missed_s: int | None = None


@dataclass(frozen=True)
class RainPast:
    """What of the rain up to a moment counts after it.

    Attributes:
        state: At the last step.
        sure: The same without doubtful rain; None when there never was any.
        short_mm: Effective rain with a half-life of 1.5 h.
        long_mm: With 72 h.
        depths_mm: Rain of each step of the last seven days, as far as there are data.
        known: Whether each of them is known.
        hour: Steps of the last hour.
    """

    state: RainState = RainState()
    sure: RainState | None = None
    short_mm: float = 0.0
    long_mm: float = 0.0
    depths_mm: tuple[float, ...] = ()
    known: tuple[bool, ...] = ()
    hour: tuple[StepRain, ...] = ()


NO_PAST: Final = RainPast()


def rain_states(
    series: Iterable[StepRain],
    state: RainState = RainState(),
    before: Sequence[StepRain] = (),
) -> Iterator[RainState]:
    """Run rain through the soil, one state for each step.

    Args:
        series: Rain of the steps.
        state: Before the first of them.
        before: Steps that led to it, the last hour of them at least.
    """
    recent = list(before)
    for rain in series:
        recent = [*recent[1 - STEPS_PER_HOUR :], rain]
        if state.tanks is None and not rain.is_known:
            yield state  # nothing to say before the first rain data
            continue
        tanks = state.tanks or SoilWater()
        any_known = any(step.is_known for step in recent)
        missed_s = _missed_s(state, rain)
        state = RainState(
            r60_mm=sum(step.depth_mm for step in recent) if any_known else None,
            tanks=tanks.after(rain.depth_mm, TEN_MINUTES_H),
            is_known=rain.is_known,
            is_lower_bound=missed_s is not None and missed_s < FORGOTTEN_S,
            gap_s=0 if rain.is_known else state.gap_s + STEP_S,
            history_s=state.history_s + STEP_S,
            missed_s=missed_s,
        )
        yield state


def sure_states(
    series: Sequence[StepRain], past: RainPast = NO_PAST
) -> Iterator[RainState | None]:
    """States without rain that only doubtful readings tell; None where all is sure."""
    if past.sure is None and not any(step.doubted_mm for step in series):
        return iter([None] * len(series))
    before = map(_sure, past.hour)
    start = past.sure or past.state
    return rain_states(map(_sure, series), start, list(before))


def _sure(step: StepRain) -> StepRain:
    return StepRain(max(0.0, step.depth_mm - step.doubted_mm), step.is_known)


def _missed_s(state: RainState, rain: StepRain) -> int | None:
    if not rain.is_known:
        return 0
    return None if state.missed_s is None else state.missed_s + STEP_S
