"""QARTOD flags of readings: of each alone on arrival, then with its neighbours.

A flag depends on the readings, not on the order of their arrival: later readings change
the flags of earlier ones, and scoring returns these changes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from backend_spark.scoring.observation import (
    RAIN,
    TEMPERATURE_UNIT,
    Observation,
    reading_limits,
)
from backend_spark.scoring.rain import SPREAD_S, report_depth_mm
from slope_science import quality
from slope_science.quality import (
    FLAT_S,
    NEIGHBOUR_S,
    NOT_EVALUATED,
    SPIKE_SHARE,
    STEP_S,
    Flag,
    QuantityLimits,
    Verdict,
    check_clock,
    check_flat_line,
    check_node_flag,
    check_range,
    check_rate_of_change,
    check_spike,
    check_step,
    worst_verdict,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

LOOK_BACK_S = FLAT_S + NEIGHBOUR_S
"""Time before a reading in which its neighbours lie."""

NO_NUMBER = Verdict(Flag.MISSING, (Reason(ReasonCode.NO_NUMBER),))

FLAG_REACH_S = NEIGHBOUR_S + SPREAD_S
"""Time before a reading in which it changes rain: flags up to an hour before it, and by
a changed flag the rain since the previous reading."""


def flag_single(o: Observation) -> Verdict:
    """Verdict of a reading from its own columns."""
    if o.value is not None and o.node_flag is None and o.synchronised:
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
    return worst_verdict(verdicts)


def flag_number(name: str, unit: str | None, value: float) -> Verdict:
    """Verdict of a reading from its value alone."""
    limits = reading_limits(name, unit)
    if limits is None:
        return NOT_EVALUATED
    return check_range(value, limits.fail, limits.suspect)


def flag_with_neighbours(
    observations: Sequence[Observation], from_s: float = float("-inf")
) -> list[Observation]:
    """Flag observations with their neighbours.

    Args:
        observations: All of a cell, in any order.
        from_s: Unix time of the earliest new reading; flags that it cannot change are
            kept.

    Returns:
        All observations in time order.
    """
    series: dict[tuple[str, str], list[Observation]] = {}
    for o in sorted(observations, key=lambda o: (o.at_s, o.seq)):
        series.setdefault((o.node, o.name), []).append(o)
    since_s = from_s - NEIGHBOUR_S
    flagged: list[Observation] = []
    for key, whole in series.items():
        begin = bisect_left(whole, since_s - LOOK_BACK_S, key=lambda o: o.at_s)
        # The last one before is needed for the rain in between.
        series[key] = whole[max(begin - 1, 0) :]
        flagged += whole[: max(begin - 1, 0)]
    air = {node: _air(series, node) for node in {node for node, _ in series}}
    others = _Gauges(series)
    for (node, name), readings in series.items():
        limits = reading_limits(name, readings[0].unit)
        start = bisect_left(readings, since_s, key=lambda o: o.at_s)
        flagged += readings[:start]
        if name == RAIN and limits is not None:
            flagged += _gauge(readings, start, others.of(node), air[node])
        elif limits is not None:
            flagged += _sensor(readings, start, limits)
        else:
            flagged += [_flagged(o, []) for o in readings[start:]]
    return sorted(flagged, key=lambda o: (o.at_s, o.node, o.name))


def _flagged(o: Observation, more: Iterable[Verdict]) -> Observation:
    verdict = worst_verdict([flag_single(o), *more])
    why = verdict.why
    if o.flag == verdict.flag and (o.why or "") == why:
        return o
    return replace(o, flag=int(verdict.flag), why=why or None)


def _sensor(
    readings: Sequence[Observation], start: int, limits: QuantityLimits
) -> Iterator[Observation]:
    """Flag readings from an index on with their neighbours."""
    good = [
        o
        for o in readings
        if o.value is not None and flag_single(o).flag <= Flag.SUSPECT
    ]
    times_s = [o.at_s for o in good]
    values = [o.value or 0.0 for o in good]
    places = {id(o): at for at, o in enumerate(good)}
    was_spike, jumped, min_jump = False, 0, limits.flat or 0.0
    for place, o in enumerate(readings):
        at = places.get(id(o))
        if at is None:
            verdicts: list[Verdict] = []
        else:
            if at and abs(values[at] - values[at - 1]) >= min_jump:
                jumped = at
            verdicts = [*_changes(times_s, values, at, limits, was_spike)]
            codes = {reason.code for verdict in verdicts for reason in verdict.reasons}
            was_spike = ReasonCode.SPIKE in codes
            verdicts.append(_flat(times_s, values, at, limits, jumped))
        if place >= start:
            yield _flagged(o, verdicts)


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


@dataclass(frozen=True)
class _Depths:
    """Times of one gauge's reports, and the cumulative rain at each."""

    times_s: list[float]
    totals_mm: list[float]

    def within(self, from_s: float, to_s: float) -> float | None:
        """Rain between two moments; None without reports on both sides."""
        first, last = (bisect_right(self.times_s, at_s) for at_s in (from_s, to_s))
        if not first or to_s - self.times_s[last - 1] > NEIGHBOUR_S:
            return None
        return self.totals_mm[last - 1] - self.totals_mm[first - 1]


class _Gauges:
    """The gauges of a cell, for comparison with each other."""

    def __init__(self, series: dict[tuple[str, str], list[Observation]]) -> None:
        self._depths = {
            node: _Depths(
                [o.at_s for o in readings], list(accumulate(_depths(readings)))
            )
            for (node, name), readings in series.items()
            if name == RAIN
        }

    def of(self, node: str) -> tuple[_Depths, list[_Depths]]:
        """A node's own gauge, and the others."""
        others = [depths for name, depths in self._depths.items() if name != node]
        return self._depths[node], others


def _depths(readings: Sequence[Observation]) -> list[float]:
    """Rain of each report; zero for a failed one."""
    before_mm: float | None = None
    found = []
    for o in readings:
        is_good = flag_single(o).flag <= Flag.SUSPECT
        found.append(
            (report_depth_mm(before_mm, o.sum, o.value) or 0.0) if is_good else 0.0
        )
        before_mm = o.sum
    return found


def _gauge(
    readings: Sequence[Observation],
    start: int,
    gauge: tuple[_Depths, list[_Depths]],
    air: tuple[list[float], list[float]],
) -> Iterator[Observation]:
    own, others = gauge
    depths = _depths(readings)
    for at in range(start, len(readings)):
        o, before = readings[at], readings[at - 1] if at else None
        seconds = o.at_s - before.at_s if before else 0.0
        verdicts = [
            quality.check_rain_depth(depths[at], seconds),
            quality.check_counter(before.sum if before else None, o.sum),
            quality.check_release(own.times_s, depths, at),
            *_beside(o.at_s, own, others),
            quality.check_frost(_latest(air, o.at_s)),
        ]
        yield _flagged(o, verdicts)


def _beside(at_s: float, own: _Depths, others: Iterable[_Depths]) -> Iterable[Verdict]:
    """Comparison of a gauge with its neighbours, in both directions."""
    from_s = at_s - quality.CLOGGED_S
    own_mm = own.within(from_s, at_s)
    others_mm = [
        mm for depths in others if (mm := depths.within(from_s, at_s)) is not None
    ]
    if own_mm is None:
        return (NOT_EVALUATED,)
    largest_mm = max(others_mm, default=None)
    return quality.check_clog(own_mm, largest_mm), quality.check_excess(
        own_mm, largest_mm
    )


def _air(
    series: dict[tuple[str, str], list[Observation]], node: str
) -> tuple[list[float], list[float]]:
    """Times and temperatures of a node's air sensor, which also measures humidity."""
    for (owner, name), readings in sorted(series.items(), key=lambda item: item[0]):
        sensor, _, part = name.rpartition("/")
        is_air = part == "temp" and (node, f"{sensor}/humidity") in series
        if owner == node and is_air and readings[0].unit == TEMPERATURE_UNIT:
            known = [(o.at_s, o.value) for o in readings if o.value is not None]
            return [at_s for at_s, _ in known], [value for _, value in known]
    return [], []


def _latest(air: tuple[list[float], list[float]], at_s: float) -> float | None:
    times_s, values = air
    last = bisect_right(times_s, at_s) - 1
    if last < 0 or at_s - times_s[last] > NEIGHBOUR_S:
        return None
    return values[last]
