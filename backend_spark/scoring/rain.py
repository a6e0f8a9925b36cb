"""Rain of each step from gauge counters, and soil water. Missing rain is never zero."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from backend_spark.scoring.observation import (
    STEP_S,
    Observation,
    split_by_step,
    step_end_s,
)
from slope_science.quality import Flag, most_rain_mm, restarted_depth_mm
from slope_science.rain_and_soil_water import STEPS_PER_HOUR, TEN_MINUTES_H, SoilWater
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

SPREAD_S: Final = 3600.0
"""Maximum time between two readings that are no catch-up."""

MAX_CATCH_UP_S: Final = 48 * 3600.0
"""Maximum time over which the rain of a longer gap is spread."""

MIN_COVERED_S: Final = STEP_S / 2
"""Minimum covered time of a step with known rain."""

NOT_BEGUN: Final = 1e-9
"""Share of a step of which no report has come yet; not 0, so that tanks take it."""

_LEAST_MM: Final = 1e-6
"""Depth below which a difference of sums is none."""

_WHOLE: Final = 1 - 1e-6
"""Share from which a step is covered; sums of intervals are not exact."""

DEPTH_DOUBT_CODES: Final = frozenset({
    ReasonCode.RANGE,
    ReasonCode.RAIN_RANGE,
    ReasonCode.EXTREME,
    ReasonCode.RELEASED,
    ReasonCode.ALONE,
    ReasonCode.BURSTS,
    ReasonCode.BOUNCE,
    ReasonCode.COUNTER_REGAINED,
    ReasonCode.GRID_EXCESS,
    ReasonCode.NODE_FLAG,
    ReasonCode.NODE_FLAG_UNKNOWN,
})
"""Reasons of suspect rain whose true value may be lower."""

LOW_CODES: Final = frozenset({
    ReasonCode.CLOGGED,
    ReasonCode.UNDERCATCH,
    ReasonCode.GRID_DEFICIT,
    ReasonCode.BOUNCE,  # tips between the refused closures are not counted
})
"""Reasons of suspect rain whose true value is higher, or may be."""


@dataclass(frozen=True, order=True, slots=True)
class RainReading:
    """One report of a gauge.

    Attributes:
        at_s: Unix time of the report.
        sum_mm: Counter; None if the gauge has none.
        value_mm: Rain since the previous report; None if not reported.
        failed: Whether it failed a test, so that its rain is unknown.
        suspect: Whether its depth is doubtful.
        low: Whether its depth is only a lower bound.
        boot: Boot id of the node, which does not count while it is off.
    """

    at_s: float
    sum_mm: float | None = None
    value_mm: float | None = None
    failed: bool = False
    suspect: bool = False
    low: bool = False
    boot: str = ""


def rain_reading(o: Observation) -> RainReading:
    """The report of a gauge with its flag."""
    codes = {reason.code for reason in o.reasons} if o.flag == Flag.SUSPECT else set()
    # What the counter rose by is rain, and other tips were missed.
    is_incomplete = o.flag == Flag.MISSING and o.value is None and o.sum is not None
    return RainReading(
        o.at_s,
        o.sum,
        o.value,
        failed=not (o.counts or is_incomplete),
        suspect=not DEPTH_DOUBT_CODES.isdisjoint(codes)
        or (o.value is None and ReasonCode.COUNTER_BACK in codes),
        low=is_incomplete or not LOW_CODES.isdisjoint(codes),
        boot=o.boot,
    )


@dataclass(frozen=True)
class PartRain:
    """Rain of a gauge in a step that its last report does not cover to the end.

    Attributes:
        depth_mm: Depth up to that report.
        doubted_mm: Part of it from doubtful readings.
        share: Covered share of the step, 0 to 1.
    """

    depth_mm: float
    doubted_mm: float
    share: float


@dataclass(frozen=True)
class StepRain:
    """Rain of one step.

    Attributes:
        depth_mm: Known depth, zero or more.
        is_known: Whether it is complete; otherwise it is a lower bound.
        doubted_mm: Part of it from doubtful readings only.
        catch_up_h: Length of the gap over which its rain is spread; 0 for none.
        share: Share of the step up to the last report, where the reports end in it; 1
            for other steps, and `NOT_BEGUN` for a new one without a report.
        parts: The gauges whose reports end in it.
    """

    depth_mm: float = 0.0
    is_known: bool = False
    doubted_mm: float = 0.0
    catch_up_h: float = 0.0
    share: float = 1.0
    parts: tuple[PartRain, ...] = ()

    def completed(self, earlier: "StepRain") -> "StepRain":
        """The step with rain in place of what its gauges have not reported yet.

        Args:
            earlier: The step an hour earlier: its rain stands for the same share.
        """
        before_mm, sure_mm = earlier.depth_mm, without_doubt(earlier).depth_mm
        depths, sure = [self.depth_mm], [self.depth_mm - self.doubted_mm]
        for part in self.parts:
            rest = 1 - part.share
            depths.append(part.depth_mm + rest * before_mm)
            sure.append(part.depth_mm - part.doubted_mm + rest * sure_mm)
        most_mm = max(depths)
        return replace(self, depth_mm=most_mm, doubted_mm=most_mm - max(sure))

    def notes(self) -> tuple[Reason, ...]:
        """Reason of a step whose rain came with a catch-up."""
        if not self.catch_up_h:
            return ()
        return (Reason(ReasonCode.CATCH_UP, hours=self.catch_up_h),)


NO_DATA = StepRain()


@dataclass
class Gauge:
    """Rain of one gauge, by the end of each step.

    Attributes:
        depth_mm: Rain.
        covered_s: Covered seconds, between two readings of which the later has the
            rain.
        long_steps: Steps with the rain of a gap over which it is not spread.
        doubted_mm: Part of `depth_mm` from doubtful readings.
        catch_up_h: Length of the gap, for steps with the rain of a catch-up.
        gaps_s: Begin and end of the gaps of more than `SPREAD_S`.
        last_s: Time of the last reading; None without any.
        known_s: Time of the last one whose rain counts in full; None likewise.
    """

    depth_mm: dict[int, float] = field(default_factory=dict)
    covered_s: dict[int, float] = field(default_factory=dict)
    long_steps: set[int] = field(default_factory=set)
    doubted_mm: dict[int, float] = field(default_factory=dict)
    catch_up_h: dict[int, float] = field(default_factory=dict)
    gaps_s: list[tuple[float, float]] = field(default_factory=list)
    last_s: float | None = None
    known_s: float | None = None

    def is_known(self, end_s: int, is_open: bool) -> bool:
        """Whether the rain of a step is known; the open step as far as covered."""
        watched_s = self.covered_s.get(end_s, 0.0)
        return (
            watched_s >= MIN_COVERED_S
            or end_s in self.long_steps
            or (is_open and watched_s > 0)
        )

    def share(self, end_s: int) -> float:
        """Covered share of a step, 0 to 1."""
        return min(1.0, self.covered_s.get(end_s, 0.0) / STEP_S)

    def part(self, end_s: int) -> PartRain:
        """Rain of a step up to the last report in it."""
        return PartRain(
            self.depth_mm.get(end_s, 0.0),
            self.doubted_mm.get(end_s, 0.0),
            self.share(end_s),
        )

    def ends_in(self, end_s: int, *, is_last: bool) -> bool:
        """Whether the reports end in a step, or in the one before if it is the last."""
        if self.share(end_s) > 0 or not is_last or self.known_s is None:
            is_over = self.share(end_s) >= _WHOLE or self.share(end_s + STEP_S) > 0
            return self.share(end_s) > 0 and not is_over
        before_s = end_s - STEP_S
        has_report = self.last_s is not None and self.last_s > before_s
        return not has_report and before_s - STEP_S < self.known_s <= before_s

    def may_change(self, at_s: float, reach_s: float) -> bool:
        """Whether a later reading may change the rain before a moment.

        So it is within a gap, which a catch-up fills and readings from a backlog split.

        Args:
            at_s: The moment.
            reach_s: Time before a gap in which the rain that fills it changes flags.
        """
        until_s = at_s + reach_s
        is_last = self.last_s is not None and self.last_s < until_s
        return is_last or any(from_s < until_s and at_s < to_s
                              for from_s, to_s in self.gaps_s)  # fmt: skip


def read_gauge(readings: Iterable[RainReading]) -> Gauge:
    """Distribute the rain between the readings of one gauge over steps.

    Rain is spread evenly between two readings. After a gap of more than `SPREAD_S` it
    is a catch-up: spread over the gap, at most `MAX_CATCH_UP_S`, and marked. It was not
    necessarily dry where a gap ends without rain, or where the node was off: then the
    steps of the gap are unknown. What the counter rose by above the depth of the report
    is a lower bound of their rain. If the counter decreased, the reading's own value
    counts; without one that of the counter, as doubtful rain.
    """
    gauge = Gauge()
    before: RainReading | None = None
    for reading in sorted(readings, key=lambda r: r.at_s):
        depth_mm = _between(before, reading)
        if depth_mm is not None:
            _add_interval(gauge, before, reading, depth_mm)
        is_known = depth_mm is not None or before is None
        if is_known and not reading.failed and not reading.low:
            gauge.known_s = reading.at_s
        if before is not None and reading.at_s - before.at_s > SPREAD_S:
            gauge.gaps_s.append((before.at_s, reading.at_s))
        gauge.last_s = reading.at_s
        before = reading
    return gauge


def _add_interval(
    gauge: Gauge, before: RainReading | None, reading: RainReading, depth_mm: float
) -> None:
    from_s = reading.at_s - STEP_S if before is None else before.at_s
    length_s = reading.at_s - from_s
    is_suspect, is_timed = reading.suspect, not reading.low
    if length_s > SPREAD_S:
        was_on = before is not None and before.boot == reading.boot
        if depth_mm <= 0 or not was_on:
            # The gap stays unknown, the step of the report does not.
            depth_mm -= _put_report(gauge, reading, depth_mm)
            is_timed = False
            if depth_mm < _LEAST_MM:
                return
        is_suspect = is_suspect or length_s > MAX_CATCH_UP_S
        from_s = max(from_s, reading.at_s - MAX_CATCH_UP_S)
        for end_s, _ in split_by_step(from_s, reading.at_s):
            gauge.catch_up_h[end_s] = length_s / 3600
    _put(gauge.depth_mm, from_s, reading.at_s, depth_mm)
    if is_suspect:
        _put(gauge.doubted_mm, from_s, reading.at_s, depth_mm)
    if is_timed:
        for end_s, share_s in split_by_step(from_s, reading.at_s):
            gauge.covered_s[end_s] = gauge.covered_s.get(end_s, 0.0) + share_s


def _put_report(gauge: Gauge, reading: RainReading, most_mm: float) -> float:
    """Put the depth of a report into its step; returns the depth, at most another."""
    depth_mm = min(max(reading.value_mm or 0.0, 0.0), most_mm)
    for into in (gauge.depth_mm, *([gauge.doubted_mm] if reading.suspect else [])):
        _put(into, reading.at_s, reading.at_s, depth_mm)
    if not reading.low:
        gauge.long_steps.add(step_end_s(reading.at_s))
    return depth_mm


def cell_rain(gauges: Sequence[Gauge], ends_s: Sequence[int]) -> list[StepRain]:
    """Rain of a cell in each step: the maximum of its gauges.

    Not the mean, because a blocked or sheltered gauge reads too little and must not
    delay a warning.
    """
    last_s = ends_s[-1] if ends_s else 0
    return [_step_rain(gauges, end_s, last_s) for end_s in ends_s]


def _step_rain(gauges: Sequence[Gauge], end_s: int, last_s: int) -> StepRain:
    depths = [g.depth_mm.get(end_s, 0.0) for g in gauges]
    sure = [
        depth_mm - g.doubted_mm.get(end_s, 0.0)
        for g, depth_mm in zip(gauges, depths, strict=True)
    ]
    most_mm = max(depths, default=0.0)
    covered = max((g.share(end_s) for g in gauges), default=0.0)
    is_new = end_s >= last_s - STEP_S
    # The gauges of whole steps of the past need no search.
    is_past = covered >= _WHOLE and not is_new
    is_over = is_past or any(g.is_known(end_s + STEP_S, True) for g in gauges)
    parts = () if is_past else _find_parts(gauges, end_s, last_s, is_over)
    is_ended = parts and not is_over and not any(end_s in g.long_steps for g in gauges)
    return StepRain(
        most_mm,
        any(g.is_known(end_s, is_new and not is_over) for g in gauges),
        max(0.0, most_mm - max(sure, default=0.0)),
        _catch_up_h(gauges, end_s),
        max(NOT_BEGUN, covered) if is_ended else 1.0,
        parts,
    )


def _find_parts(
    gauges: Sequence[Gauge], end_s: int, last_s: int, is_over: bool
) -> tuple[PartRain, ...]:
    """The gauges whose reports end in a step.

    Where the reports of others go on, one whose next report is due counts in the two
    newest steps only.
    """
    if is_over and end_s < last_s - STEP_S:
        return ()
    is_last = end_s == last_s
    return tuple(g.part(end_s) for g in gauges if g.ends_in(end_s, is_last=is_last))


def _catch_up_h(gauges: Iterable[Gauge], end_s: int) -> float:
    """Length of the gap over which a step's rain is spread; 0 if a gauge timed it."""
    timed = (g for g in gauges if g.covered_s.get(end_s) and end_s not in g.catch_up_h)
    if next(timed, None) is not None:
        return 0.0
    return max((g.catch_up_h.get(end_s, 0.0) for g in gauges), default=0.0)


def report_depth_mm(
    sum_before_mm: float | None,
    sum_mm: float | None,
    value_mm: float | None,
    length_s: float,
) -> float | None:
    """Rain between two reports of a gauge; None if unknown.

    The depth of the report counts where its counter fell, or rose by more than rain.

    Args:
        sum_before_mm: Counter at the previous report.
        sum_mm: Counter at this report.
        value_mm: Depth of this report.
        length_s: Time between both.
    """
    if sum_before_mm is not None and sum_mm is not None and sum_mm >= sum_before_mm:
        if sum_mm - sum_before_mm <= most_rain_mm(length_s):
            return sum_mm - sum_before_mm
    elif value_mm is None and sum_before_mm is not None:
        return restarted_depth_mm(sum_mm)
    return value_mm if value_mm is not None and value_mm >= 0 else None


def _between(before: RainReading | None, reading: RainReading) -> float | None:
    """Rain since the previous reading; None if unknown or failed."""
    if reading.failed:
        return None
    return report_depth_mm(
        before.sum_mm if before else None,
        reading.sum_mm,
        reading.value_mm,
        reading.at_s - before.at_s if before else 0.0,
    )


def _put(into: dict[int, float], from_s: float, to_s: float, depth_mm: float) -> None:
    length_s = to_s - from_s
    if length_s > 0:
        for end_s, share_s in split_by_step(from_s, to_s):
            into[end_s] = into.get(end_s, 0.0) + depth_mm * share_s / length_s
        return
    end_s = step_end_s(to_s)
    into[end_s] = into.get(end_s, 0.0) + depth_mm


LOWER_BOUND_S: Final = 60 * 86_400
"""Time after a gap until the index is no longer a lower bound."""


@dataclass(frozen=True)
class RainState:
    """Rain and soil water at the end of a step.

    Attributes:
        r60_mm: Rain of the last hour; None if nothing of it is known.
        tanks: Water in the soil; None before the first rain data.
        is_known: Whether the step's rain is known.
        is_lower_bound: Whether missed rain may still be in the soil.
        gap_s: Time without rain data.
        history_s: Time since the first rain data.
        missed_s: Time since rain was missed; None if none was.
        is_open: Whether it is that at the last report, before the end of the step.
    """

    r60_mm: float | None = None
    tanks: SoilWater | None = None
    is_known: bool = False
    is_lower_bound: bool = False
    gap_s: int = 0
    history_s: int = 0
    missed_s: int | None = None
    is_open: bool = False


@dataclass(frozen=True)
class RainPast:
    """Rain up to a moment, as far as it affects later steps.

    Attributes:
        state: State at the last step.
        sure: Rain and soil water without doubtful rain; None if there was none.
        short_mm: Effective rain with a half-life of 1.5 h.
        long_mm: With 72 h.
        depths_mm: Rain of each step of the last seven days with data.
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


NO_RAIN_PAST: Final = RainPast()


@dataclass(frozen=True)
class SubstituteRain:
    """Rain of a step from elsewhere, in place of missing rain.

    Attributes:
        depth_mm: Depth.
        reason: Where it is from.
    """

    depth_mm: float
    reason: Reason


Substitute = Callable[[int], SubstituteRain | None]
"""Gives the rain of a step by its end; None if it has none."""


def fill_missing(
    series: Sequence[StepRain], ends_s: Sequence[int], substitute: Substitute
) -> tuple[list[StepRain], dict[int, Reason]]:
    """Fill steps with unknown rain from elsewhere; they stay unknown.

    A new step without a report is not filled: its rain is not missing yet.

    Args:
        series: Rain of the steps.
        ends_s: End of each step.
        substitute: Gives rain in place of missing rain.

    Returns:
        The steps, and by index where the rain of a filled one is from.
    """
    filled, sources = list(series), {}
    for at, (step, end_s) in enumerate(zip(series, ends_s, strict=True)):
        is_due = not step.is_known and step.share > NOT_BEGUN
        found = substitute(end_s) if is_due else None
        if found is not None:
            most_mm = max(step.depth_mm, found.depth_mm)
            filled[at] = replace(step, depth_mm=most_mm, share=1.0)
            sources[at] = found.reason
    return filled, sources


def last_hour(series: Sequence[StepRain], at: int) -> Sequence[StepRain]:
    """Steps of the hour up to a step.

    Where reports end in the step, it is the hour up to them: the rain of an hour before
    stands for what they do not cover.
    """
    first = max(0, at + 1 - STEPS_PER_HOUR)
    hour = list(series[first : at + 1])
    if series[at].parts:
        for place in range(max(first, at - 1), at + 1):
            back = place - STEPS_PER_HOUR
            earlier = series[back] if back >= 0 else NO_DATA
            hour[place - first] = series[place].completed(earlier)
    return hour


def rain_states(
    series: Iterable[StepRain],
    state: RainState = RainState(),
    before: Sequence[StepRain] = (),
) -> Iterator[RainState]:
    """Compute the state of rain and soil water at the end of each step.

    Args:
        series: Rain of the steps.
        state: State before the first step.
        before: At least the steps of the hour before.
    """
    recent = list(before)
    for rain in series:
        recent = [*recent[1 - STEPS_PER_HOUR :], rain]
        if state.tanks is None and not rain.is_known:
            yield state  # before the first rain data
            continue
        tanks = state.tanks or SoilWater()
        any_known = any(step.is_known or step.depth_mm > 0 for step in recent)
        missed_s = _missed_s(state, rain)
        state = RainState(
            r60_mm=sum(step.depth_mm for step in recent) if any_known else None,
            tanks=tanks.step(rain.depth_mm, TEN_MINUTES_H),
            is_known=rain.is_known,
            is_lower_bound=missed_s is not None and missed_s < LOWER_BOUND_S,
            gap_s=0 if rain.is_known else state.gap_s + STEP_S,
            history_s=state.history_s + STEP_S,
            missed_s=missed_s,
        )
        yield state


def undoubted_states(
    series: Sequence[StepRain], past: RainPast = NO_RAIN_PAST
) -> Iterator[RainState | None]:
    """States without doubtful rain; None where there is none."""
    if past.sure is None and not any(step.doubted_mm for step in series):
        return iter([None] * len(series))
    before = map(without_doubt, past.hour)
    start = past.sure or past.state
    return rain_states(map(without_doubt, series), start, list(before))


def without_doubt(step: StepRain) -> StepRain:
    """A step without its doubtful rain."""
    return StepRain(max(0.0, step.depth_mm - step.doubted_mm), step.is_known)


def _missed_s(state: RainState, rain: StepRain) -> int | None:
    if not rain.is_known:
        return 0
    return None if state.missed_s is None else state.missed_s + STEP_S


def gap_begins(observations: Iterable[Observation], since_s: float) -> Iterator[float]:
    """Begin of the rain in each gauge's first report since a time.

    New readings change the rain from there on: the time of the report before, or
    `MAX_CATCH_UP_S` before the first if that is later, as after a longer gap.
    """
    gauges: dict[str, list[float]] = {}
    for o in observations:
        if o.is_rain:
            gauges.setdefault(o.node, []).append(o.at_s)
    for times_s in gauges.values():
        before = max((at_s for at_s in times_s if at_s < since_s), default=None)
        after = min((at_s for at_s in times_s if at_s >= since_s), default=None)
        if before is not None and after is not None:
            yield max(before, after - MAX_CATCH_UP_S)
