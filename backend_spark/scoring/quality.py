"""QARTOD flags of readings: of each alone on arrival, then with its neighbours.

A flag depends on the readings, not on the order of their arrival: later readings change
the flags of earlier ones, and scoring returns these changes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from backend_spark.scoring.observation import (
    COUNT_UNIT,
    HUMIDITY_UNIT,
    RAIN,
    TEMPERATURE_UNIT,
    Observation,
    reading_limits,
)
from backend_spark.scoring.rain import MAX_CATCH_UP_S, SPREAD_S, report_depth_mm
from backend_spark.scoring.reviews import reviewed_verdict
from slope_science import quality
from slope_science.quality import (
    CLOCK_LAG_S,
    CLOCK_WINDOW_S,
    FLAT_S,
    NEIGHBOUR_S,
    NOT_EVALUATED,
    SPIKE_SHARE,
    STEP_S,
    Flag,
    QuantityLimits,
    Verdict,
    check_clock,
    check_clock_lag,
    check_flat_line,
    check_node_flag,
    check_range,
    check_rate_of_change,
    check_spike,
    check_step,
)
from slope_science.rain_neighbours import check_each_beside
from slope_science.rain_quality import (
    FIRST_REPORT_S,
    MAX_RELEASE_S,
    USUAL_REPORTS,
    NeighbourGauge,
    RainRecord,
    check_bounce,
    check_bursts,
    check_release,
    check_rolling_limits,
    find_bursts,
    find_extreme_sums,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

LOOK_BACK_S = FLAT_S + NEIGHBOUR_S
"""Time before a reading in which its neighbours lie."""

NO_NUMBER = Verdict(Flag.MISSING, (Reason(ReasonCode.NO_NUMBER),))

SAME_CELL_KM = 0.5
"""Assumed distance of two gauges in one cell, which is about 1 km wide."""

REFUSED = f"{RAIN}/refused"
"""Name of a gauge's closures that were too fast for rain."""

Series = dict[tuple[str, str, str | None], list[Observation]]
"""Readings in time order by node, name and unit: a sensor of another unit, under the
name of the one that it replaces, has other limits."""

TimedValues = tuple[list[float], list[float]]
"""Times and values of a series."""

FLAG_REACH_S = NEIGHBOUR_S + SPREAD_S
"""Time before a reading in which it changes rain: flags up to an hour before it, and by
a changed flag the rain since the previous reading."""


_BY_RECEIPT: Final = attrgetter("at_s", "seq")
_BY_SERIES: Final = attrgetter("at_s", "node", "name")
_AT_S: Final = attrgetter("at_s")


def _is_plain(o: Observation) -> bool:
    """Whether the value of a reading alone decides on its own verdict."""
    return o.review is None and o.node_flag is None and o.synchronised


def flag_single(o: Observation) -> Verdict:
    """Verdict of a reading from its own columns."""
    if _is_plain(o) and o.value is not None:
        return flag_number(o.name, o.unit, o.value)
    limits = reading_limits(o.name, o.unit)
    verdicts = [check_node_flag(o.node_flag), check_clock(o.synchronised)]
    if limits is not None:
        if o.value is None and o.sum is None:
            verdicts.append(NO_NUMBER)
        else:
            verdicts += [
                check_range(number, limits.fail, limits.suspect)
                for number in (o.value,)
                if number is not None
            ]
    return reviewed_verdict(o, verdicts)


def flag_number(name: str, unit: str | None, value: float) -> Verdict:
    """Verdict of a reading from its value alone."""
    limits = reading_limits(name, unit)
    if limits is None:
        return NOT_EVALUATED
    return check_range(value, limits.fail, limits.suspect)


def with_new_flags(
    known: Sequence[Observation], before: Sequence[Observation]
) -> list[Observation]:
    """Readings whose flag is not the one that they had before."""
    same = set(map(id, before))  # a reading whose flag stays is the same object
    others = [o for o in known if id(o) not in same]
    times_s = {o.at_s for o in others}
    had = {_flag_of(o) for o in before if o.at_s in times_s}
    return [o for o in others if _flag_of(o) not in had]


def _flag_of(o: Observation) -> tuple[object, ...]:
    """A reading with its flag; equal if the flag did not change."""
    return o.node, o.boot, o.seq, o.name, o.at_s, o.flag, o.why


def flag_with_neighbours(
    observations: Sequence[Observation],
    from_s: float = float("-inf"),
    nearby: Sequence[NeighbourGauge] = (),
    records: Mapping[str, RainRecord] | None = None,
    *,
    is_checked: bool = False,
) -> list[Observation]:
    """Flag observations with their neighbours.

    Args:
        observations: All of a cell, in any order.
        from_s: Unix time of the earliest new reading; flags that it cannot change are
            kept.
        nearby: Gauges in other cells.
        records: Result of `find_rain_records`, where it is known.
        is_checked: Whether all earlier readings have the flags of an earlier call, and
            none of them was late. Then a new reading changes no more than the flag of
            the one before it, except for rain, which has neighbours.

    Returns:
        All observations in time order.
    """
    series = _group(observations)
    rain_from_s = _first_confirmed_s(series, from_s)
    flagged = _take_unneeded(series, rain_from_s - NEIGHBOUR_S - LOOK_BACK_S)
    if records is None:
        records = find_rain_records(each for part in series.values() for each in part)
    gauges, clocks = _Gauges(records, nearby), _Clocks(series)
    for (node, name, unit), readings in series.items():
        limits = reading_limits(name, unit)
        is_gauge = name == RAIN and limits is not None
        only_last = is_checked and not is_gauge
        since_s = rain_from_s if is_gauge else from_s
        start = _first_to_check(readings, since_s, only_last=only_last)
        flagged += readings[:start]
        if is_gauge:
            others = _other_readings(series, node)
            verdicts = _gauge(readings, start, gauges.of(node), others)
        elif limits is not None:
            verdicts = _sensor(readings, start, limits)
        else:
            verdicts = ([] for _ in readings[start:])
        flagged += [
            _flagged(o, [*each, clocks.check(o)])
            for o, each in zip(readings[start:], verdicts, strict=True)
        ]
    return sorted(flagged, key=_BY_SERIES)


def _group(observations: Iterable[Observation]) -> Series:
    series: Series = {}
    for o in sorted(observations, key=_BY_RECEIPT):
        series.setdefault((o.node, o.name, o.unit), []).append(o)
    return series


def _take_unneeded(series: Series, since_s: float) -> list[Observation]:
    """Take the readings from all series that flags since a time do not need."""
    taken: list[Observation] = []
    for key, whole in series.items():
        first = _first_needed(whole, since_s)
        series[key] = whole[first:]
        taken += whole[:first]
    return taken


def _first_needed(readings: Sequence[Observation], since_s: float) -> int:
    """Index of the last usable reading before a time; for rain of an earlier report.

    A flat line begins there; the rain in between does at the last report, and those
    before it show whether the next one is late.
    """
    first = max(0, bisect_left(readings, since_s, key=_AT_S) - 1)
    if readings[first].name == RAIN:
        return max(0, first - USUAL_REPORTS)
    while first and not _is_usable(readings[first]):
        first -= 1
    return first


def _first_confirmed_s(series: Series, from_s: float) -> float:
    """Unix time from which new reports, and catch-ups among them, may confirm rain."""
    begins_s = [from_s]
    for (_, name, _), readings in series.items():
        at = bisect_left(readings, from_s, key=_AT_S) if name == RAIN else 0
        if not 0 < at < len(readings):
            continue
        before_s, at_s = readings[at - 1].at_s, readings[at].at_s
        if at_s - before_s > SPREAD_S:
            begins_s.append(max(before_s, at_s - MAX_CATCH_UP_S))
    return min(begins_s)


def _first_to_check(
    readings: Sequence[Observation], from_s: float, *, only_last: bool
) -> int:
    """Index of the first reading whose flag readings from a time on may change.

    Args:
        readings: Of one series.
        from_s: The time.
        only_last: Whether of the earlier ones it is only the last usable one, which is
            compared with the next.
    """
    first = bisect_left(readings, from_s, key=_AT_S)
    if readings[0].is_rain and first:
        # The hour after a report ends between the last report and the new one. One that
        # ends in a gap of more than `MAX_RELEASE_S` is not found, only in a replay.
        from_s = max(readings[first - 1].at_s, from_s - MAX_RELEASE_S)
    begin = bisect_left(readings, from_s - NEIGHBOUR_S, hi=first, key=_AT_S)
    if not only_last:
        return begin
    before = (at for at in range(first - 1, begin - 1, -1) if _is_usable(readings[at]))
    return next(before, first)


def _is_usable(o: Observation) -> bool:
    """Whether a reading has a number to compare others with."""
    if o.value is None:
        return False
    if _is_plain(o):  # then only its range can fail
        limits = reading_limits(o.name, o.unit)
        return limits is None or limits.fail.contains(o.value)
    return flag_single(o).flag <= Flag.SUSPECT


def _flagged(o: Observation, more: Iterable[Verdict]) -> Observation:
    verdict = reviewed_verdict(o, [flag_single(o), *more])
    why = verdict.why
    if o.flag == verdict.flag and (o.why or "") == why:
        return o
    return replace(o, flag=int(verdict.flag), why=why or None)


def _sensor(
    readings: Sequence[Observation], start: int, limits: QuantityLimits
) -> Iterator[list[Verdict]]:
    """Verdicts of readings from an index on with their neighbours."""
    good = [place for place, o in enumerate(readings) if _is_usable(o)]
    times_s = [readings[place].at_s for place in good]
    values = [readings[place].value or 0.0 for place in good]
    first = bisect_left(good, start)
    was_spike, jumped = _before(times_s, values, first, limits)
    min_jump, at = limits.flat or 0.0, first
    for place in range(start, len(readings)):
        if at == len(good) or good[at] != place:
            yield []
            continue
        if at and abs(values[at] - values[at - 1]) >= min_jump:
            jumped = at
        verdicts = [*_changes(times_s, values, at, limits, was_spike)]
        was_spike = _has_spike(verdicts)
        yield [*verdicts, _flat(times_s, values, at, limits, jumped)]
        at += 1


def _before(
    times_s: Sequence[float], values: Sequence[float], end: int, limits: QuantityLimits
) -> tuple[bool, int]:
    """Whether the reading before an index is a spike, and the index of the last jump.

    A reading is compared with the one before the last where that is a spike, so the
    result depends on all those before, up to the last one without a sharp change.
    """
    was_spike, min_jump = False, limits.flat or 0.0
    jumps = (at for at in range(end - 1, 0, -1)
             if abs(values[at] - values[at - 1]) >= min_jump)  # fmt: skip
    jumped = next(jumps, 0)
    if limits.step is not None:
        sharp, first = limits.step * SPIKE_SHARE, end
        while first > 1 and abs(values[first - 1] - values[first - 2]) > sharp:
            first -= 1
        for at in range(max(0, first - 1), end):
            was_spike = _has_spike(_changes(times_s, values, at, limits, was_spike))
    return was_spike, jumped


def _has_spike(verdicts: Iterable[Verdict]) -> bool:
    return any(
        reason.code is ReasonCode.SPIKE
        for verdict in verdicts
        for reason in verdict.reasons
    )


def _changes(
    times_s: Sequence[float],
    values: Sequence[float],
    at: int,
    limits: QuantityLimits,
    was_spike: bool,
) -> Iterator[Verdict]:
    """Step or rate from the previous reading, and spike between both neighbours."""
    if limits.step is None:
        return
    last = at - 1 - was_spike
    if last < 0 or times_s[at] - times_s[last] > NEIGHBOUR_S:
        yield NOT_EVALUATED
        return
    seconds, change = times_s[at] - times_s[last], values[at] - values[last]
    after = at + 1 < len(values) and times_s[at + 1] - times_s[at] <= NEIGHBOUR_S
    following = values[at + 1] if after else None
    yield check_spike(values[last], values[at], following, limits.step * SPIKE_SHARE)
    if seconds <= STEP_S:
        yield check_step(values[last], values[at], limits.step)
    else:
        yield check_rate_of_change(change, seconds, limits.step * 3600.0 / STEP_S)


def _flat(
    times_s: Sequence[float],
    values: Sequence[float],
    at: int,
    limits: QuantityLimits,
    jumped: int,
) -> Verdict:
    """Verdict of the flat-line test; `jumped` is the index of the last jump."""
    # One more than the window, so that the line spans it.
    begin = bisect_right(times_s, times_s[at] - FLAT_S) - 1
    if limits.flat is None or begin < 0 or begin + 1 < jumped:
        return NOT_EVALUATED
    return check_flat_line(
        times_s[begin : at + 1], values[begin : at + 1], FLAT_S, limits.flat
    )


def make_rain_record(
    readings: Sequence[Observation],
    past: RainRecord | None = None,
    refused: TimedValues | None = None,
    *,
    has_flags: bool = False,
) -> RainRecord:
    """Rain between the reports of one gauge; failed ones are blind.

    Args:
        readings: Reports in time order.
        past: Record up to a report, which is one of `readings`; not changed.
        refused: Times and numbers of the gauge's closures that were too fast for rain.
        has_flags: Whether the readings have the flags of a scored cell.
    """
    record, first = RainRecord(), 0
    if past is not None:
        record = past.between(-inf, inf)
        first = bisect_right(readings, past.times_s[-1], key=_AT_S)
    before = readings[first - 1] if first else None
    for o in readings[first:]:
        depth_mm = None
        is_usable = flag_single(o).flag <= Flag.SUSPECT and (o.counts or not has_flags)
        if is_usable:
            before_mm = before.sum if before else None
            length_s = o.at_s - before.at_s if before else 0.0
            depth_mm = report_depth_mm(before_mm, o.sum, o.value, length_s)
        begin_s = before.at_s if before else o.at_s - FIRST_REPORT_S
        if not depth_mm and refused and _count_between(refused, begin_s, o.at_s):
            depth_mm = None
        record.add(o.at_s, depth_mm or 0.0, failed=depth_mm is None)
        before = o
    return record


def find_rain_records(
    observations: Iterable[Observation], past: Mapping[str, RainRecord] = {}
) -> dict[str, RainRecord]:
    """Rain between the reports of each gauge, by node.

    Args:
        observations: Readings in any order.
        past: Records up to a moment; the observations include the last report of each.
    """
    reports: dict[str, list[Observation]] = {}
    refused: dict[str, list[Observation]] = {}
    for o in sorted(filter(_is_of_gauge, observations), key=_BY_RECEIPT):
        into = reports if o.is_rain else refused
        into.setdefault(o.node, []).append(o)
    return {
        n: make_rain_record(each, past.get(n), _timed(refused.get(n, ())))
        for n, each in reports.items()
    }


def _is_of_gauge(o: Observation) -> bool:
    """Whether it is a report of a gauge, or a count of its refused closures."""
    return o.is_rain or (o.name == REFUSED and o.unit == COUNT_UNIT and _is_usable(o))


class _Clocks:
    """Ages of the nodes' messages at their receipt.

    Args:
        series: Readings of the cell.
    """

    def __init__(self, series: Series) -> None:
        self._series = series
        self._receipts: dict[str, list[tuple[float, float]]] = {}

    def check(self, o: Observation) -> Verdict:
        """Verdict of a reading by the clock of its node."""
        received_s = o.received_us / 1e6
        if not o.synchronised or received_s - o.at_s < CLOCK_LAG_S:
            return NOT_EVALUATED
        receipts = self._of(o.node)
        # With the infinite age all readings of a message are before the end.
        first = bisect_left(receipts, (received_s - CLOCK_WINDOW_S, 0.0))
        return check_clock_lag(
            receipts[first : bisect_right(receipts, (received_s, inf))]
        )

    def _of(self, node: str) -> list[tuple[float, float]]:
        """Times of receipt and ages of a node's messages, ascending."""
        if node not in self._receipts:
            messages = {
                (o.received_us / 1e6, o.received_us / 1e6 - o.at_s)
                for (owner, _, _), readings in self._series.items()
                if owner == node
                for o in readings
            }
            self._receipts[node] = sorted(messages)
        return self._receipts[node]


class _Gauges:
    """The gauges of a cell, for comparison with each other and with those around.

    Args:
        records: Rain of the cell's own gauges by node.
        nearby: Gauges in other cells.
    """

    def __init__(
        self, records: Mapping[str, RainRecord], nearby: Sequence[NeighbourGauge]
    ) -> None:
        self._nearby = list(nearby)
        self._records = records

    def of(self, node: str) -> tuple[RainRecord, list[NeighbourGauge]]:
        """A node's own gauge, and the others."""
        others = [
            NeighbourGauge(SAME_CELL_KM, record)
            for other, record in self._records.items()
            if other != node
        ]
        return self._records[node], others + self._nearby


@dataclass(frozen=True)
class NodeReadings:
    """Other readings of a node that tell the quality of its gauge.

    Attributes:
        air: Times and temperatures of its air sensor.
        refused: Times and numbers of closures that were too fast for rain.
    """

    air: TimedValues
    refused: TimedValues

    def refused_between(self, from_s: float, to_s: float) -> int:
        """Number of refused closures of an interval."""
        return _count_between(self.refused, from_s, to_s)


def _count_between(counts: TimedValues, from_s: float, to_s: float) -> int:
    times_s, values = counts
    first, last = bisect_right(times_s, from_s), bisect_right(times_s, to_s)
    return round(sum(values[first:last]))


def _gauge(
    readings: Sequence[Observation],
    start: int,
    gauge: tuple[RainRecord, list[NeighbourGauge]],
    others: NodeReadings,
) -> Iterator[list[Verdict]]:
    """Verdicts of the reports of a gauge from an index on."""
    if start == len(readings):
        return
    record, neighbours = gauge
    since_s = readings[start - 1].at_s if start else readings[0].at_s - FIRST_REPORT_S
    sums = find_extreme_sums(record, neighbours, since_s)
    bursts = find_bursts(record, since_s)
    before = readings[start - 1] if start else None
    earlier_mm = _value_before(readings[:start])
    times_s = [o.at_s for o in readings[start:]]
    beside = check_each_beside(record, neighbours, times_s)
    for o, verdict in zip(readings[start:], beside, strict=True):
        begin_s = before.at_s if before else o.at_s - FIRST_REPORT_S
        is_wet = record.rain_mm(begin_s, o.at_s) > 0
        before_mm = before.sum if before else None
        verdicts = [
            quality.check_counter(before_mm, o.sum, earlier_mm),
            quality.check_rise(before_mm, o.sum, o.at_s - begin_s),
            quality.check_frost(_latest(others.air, o.at_s)),
            verdict,
            check_bounce(others.refused_between(begin_s, o.at_s), is_wet=is_wet),
        ]
        if is_wet:
            verdicts += [
                check_rolling_limits(sums, begin_s, o.at_s),
                check_bursts(bursts, begin_s, o.at_s),
                check_release(record, begin_s, o.at_s, neighbours),
            ]
        yield verdicts
        if before is not None and before.sum != o.sum:
            earlier_mm = before.sum
        before = o


def _value_before(readings: Sequence[Observation]) -> float | None:
    """The last value of a counter that differs from the newest one."""
    if not readings:
        return None
    newest = readings[-1].sum
    return next((o.sum for o in reversed(readings) if o.sum != newest), None)


def _other_readings(series: Series, node: str) -> NodeReadings:
    counts = series.get((node, REFUSED, COUNT_UNIT), ())
    refused = _timed(filter(_is_usable, counts))
    return NodeReadings(_air(series, node), refused)


def _timed(readings: Iterable[Observation]) -> TimedValues:
    known = [(o.at_s, o.value) for o in readings if o.value is not None]
    return [at_s for at_s, _ in known], [value for _, value in known]


def _air(series: Series, node: str) -> TimedValues:
    """Times and temperatures of a node's air sensor, which also measures humidity.

    Failed ones do not count: those of a broken sensor look like frost.
    """
    names = [
        name
        for owner, name, unit in series
        if owner == node and unit == TEMPERATURE_UNIT
    ]
    for name in sorted(names):
        sensor, _, part = name.rpartition("/")
        if part == "temp" and (node, f"{sensor}/humidity", HUMIDITY_UNIT) in series:
            return _timed(filter(_is_usable, series[node, name, TEMPERATURE_UNIT]))
    return [], []


def _latest(air: TimedValues, at_s: float) -> float | None:
    times_s, values = air
    last = bisect_right(times_s, at_s) - 1
    if last < 0 or at_s - times_s[last] > NEIGHBOUR_S:
        return None
    return values[last]
