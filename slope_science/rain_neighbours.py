"""Comparison of a rain gauge with those around it, over hours and a day.

Source: neighbour checks after pypwsqc (faulty zeros, high influx). All weights and
limits are our proposals.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slope_science.quality import (
    GOOD,
    NOT_EVALUATED,
    Verdict,
    suspect_because,
    worst_verdict,
)
from slope_science.rain_quality import (
    DAY_S,
    HOUR_S,
    ROUNDING_MM,
    NeighbourGauge,
    RainRecord,
)
from slope_science.reason_codes import ReasonCode

Span = tuple[float, float]
"""Begin and end of a time, Unix seconds."""


@dataclass(frozen=True)
class ComparisonLimits:
    """Limits of the comparison of gauges over one duration.

    Attributes:
        seconds: The duration.
        excess_mm: Minimum rain of a gauge that has too much.
        clog_mm: Minimum rain beside a gauge that has none; at most `low_mm`.
        low_mm: Minimum rain beside a gauge that has too little.
    """

    seconds: float
    excess_mm: float
    clog_mm: float
    low_mm: float


COMPARISONS: Final = (
    ComparisonLimits(3 * HOUR_S, 20.0, 10.0, 20.0),
    ComparisonLimits(DAY_S, 50.0, 20.0, 20.0),
)
"""Three hours show a clog or a fault while it rains; a day shows a wrong unit or factor
in rain that is never heavy."""

RATIO: Final = 5.0
"""Ratio of two gauges from which they contradict each other. Inches are 25 times too
little, a lost decimal point is ten times too much."""

AGREES_RATIO: Final = 2.0
"""Ratio up to which they support each other."""

DRY_MM: Final = 2.0
"""Rain of a gauge that supports a dry one."""

DECAY_KM: Final = 3.0
"""Distance over which the weight of a gauge falls by 1/e. Convective cells are a few km
wide: one gauge at 1 km outvotes a gauge, five at 4 km do, five at 5 km do not."""

ONE_VOTE: Final = 1.0
TWO_VOTES: Final = 2.0
"""A gauge that reports rain works; one that reports none may be clogged."""


def check_beside(
    record: RainRecord, neighbours: Sequence[NeighbourGauge], at_s: float
) -> Verdict:
    """Compare a gauge with those around it, over each duration of `COMPARISONS`.

    Each neighbour that contradicts or supports it has a vote of
    ``exp(-distance / DECAY_KM)``, twice that if it reported rain. The gauge is suspect
    where the votes against it exceed its own and those for it. So exact zeros can
    outvote a wet gauge, and rain of more than one report can outvote exact zeros.
    """
    return worst_verdict(
        _compare(record, neighbours, at_s, limits) for limits in COMPARISONS
    )


MOST_AT_ONCE: Final = 64
"""Most reports that are judged together: about an hour, if they come each minute."""


def check_each_beside(
    record: RainRecord, neighbours: Sequence[NeighbourGauge], times_s: Sequence[float]
) -> list[Verdict]:
    """Result of `check_beside` for each of some reports, ascending.

    Reports of an hour share most of their rain. Where the least and the most rain of
    all their durations exclude that a neighbour contradicts one of them, they are good
    without a comparison of each; otherwise each half is judged so.
    """
    if not neighbours:
        return [NOT_EVALUATED] * len(times_s)
    verdicts: list[Verdict] = []
    parts = [
        times_s[first : first + MOST_AT_ONCE]
        for first in range(0, len(times_s), MOST_AT_ONCE)
    ][::-1]
    while parts:
        part = parts.pop()
        if len(part) == 1:
            verdicts.append(check_beside(record, neighbours, part[0]))
        elif all(_agree_all(record, neighbours, part, each) for each in COMPARISONS):
            verdicts += [GOOD] * len(part)
        else:
            half = len(part) // 2
            parts += [part[half:], part[:half]]
    return verdicts


def _agree_all(
    record: RainRecord,
    neighbours: Sequence[NeighbourGauge],
    times_s: Sequence[float],
    limits: ComparisonLimits,
) -> bool:
    """Whether `_compare` certainly gives `GOOD` for each of some reports, ascending.

    The rain of each duration lies between that of the time which all durations share
    and that of all of them together.
    """
    first_s, last_s = (max(at_s - limits.seconds, record.times_s[1])
                       for at_s in (times_s[0], times_s[-1]))  # fmt: skip
    whole, shared = (first_s, times_s[-1]), (last_s, max(last_s, times_s[0]))
    ours, most_mm = record.known_spans(*whole), record.rain_mm(*whole)
    is_any_known = False
    for gauge in neighbours:
        other, beside_mm = gauge.record, gauge.record.rain_mm(*whole)
        # The rain of the known time matters only where it rained enough.
        is_open = _may_contradict((0.0, most_mm), (0.0, beside_mm), limits)
        if is_any_known and not is_open:
            continue
        spans = _clipped(_known_to_both(ours, other, whole), shared)
        is_any_known = is_any_known or _length_s(spans) >= _least_known_s(whole)
        own_mm, other_mm = _rain_of(record, spans), _rain_of(other, spans)
        both = (own_mm, most_mm), (other_mm, beside_mm)
        if is_open and _may_contradict(*both, limits):
            return False
    return is_any_known


def _may_contradict(
    own_mm: tuple[float, float], other_mm: tuple[float, float], limits: ComparisonLimits
) -> bool:
    """Whether a gauge may have too much or too little rain beside another one.

    Args:
        own_mm: Its least and its most rain.
        other_mm: Those of the other gauge.
        limits: Limits of the comparison.
    """
    excess_mm = max(limits.excess_mm, other_mm[0] * RATIO)
    is_excess = own_mm[1] + ROUNDING_MM >= excess_mm
    return is_excess or other_mm[1] + ROUNDING_MM >= _most_beside_mm(own_mm[0], limits)


@dataclass(frozen=True)
class _Witness:
    """Another gauge's rain of a duration, its votes, and the own rain of that time."""

    rain_mm: float
    own_mm: float
    votes: float
    record: RainRecord

    @property
    def does_agree(self) -> bool:
        """Whether it supports the gauge."""
        low_mm, high_mm = sorted((self.rain_mm, self.own_mm))
        return high_mm <= DRY_MM or high_mm <= low_mm * AGREES_RATIO


def _compare(
    record: RainRecord,
    neighbours: Sequence[NeighbourGauge],
    at_s: float,
    limits: ComparisonLimits,
) -> Verdict:
    # In a record that is shorter, what has fallen so far is compared.
    from_s = max(at_s - limits.seconds, record.times_s[1])
    whole, ours = (from_s, at_s), record.known_spans(from_s, at_s)
    own_mm = record.rain_mm(*whole)
    least_mm = _most_beside_mm(own_mm, limits)
    records = [gauge.record for gauge in neighbours]
    if own_mm < limits.excess_mm and not _has_any(records, whole, least_mm):
        # Nothing contradicts it; of the neighbours only whether one is known matters.
        known_mm = (_in_known_time(record, ours, each, whole) for each in records)
        return NOT_EVALUATED if all(each is None for each in known_mm) else GOOD
    known = [
        _Witness(*both, _votes(both[0], gauge.distance_km), gauge.record)
        for gauge in neighbours
        if (both := _in_known_time(record, ours, gauge.record, whole)) is not None
    ]
    if not known:
        return NOT_EVALUATED
    hours = round((at_s - from_s) / HOUR_S, 1)
    less = [
        each
        for each in known
        if each.own_mm >= max(limits.excess_mm, each.rain_mm * RATIO)
    ]
    if _is_outvoted(less, known):
        other_mm = max(each.rain_mm for each in less)
        return _contradicted(ReasonCode.ALONE, own_mm, hours, other_mm)
    # Rain that fell in one report may be a released clog or a wrong number.
    more = [
        each
        for each in known
        if each.rain_mm >= (least_mm := _most_beside_mm(each.own_mm, limits))
        and each.record.without_largest_mm(from_s, at_s) >= least_mm
    ]
    return _check_low(own_mm, known, more, hours)


KNOWN_SHARE: Final = 1 / 3
"""Minimum share of a duration that both gauges must know: an hour of three. In less
time two gauges a few km apart may have one shower each."""

ENOUGH_KNOWN_S: Final = 3 * HOUR_S
"""Known time that suffices of any duration: three hours alone suffice, with limits that
are not higher."""


def _in_known_time(
    own: RainRecord, ours: Sequence[Span], other: RainRecord, whole: Span
) -> tuple[float, float] | None:
    """Rain of another gauge and of a gauge in the time in which both are known.

    A gauge that lacks a report is compared by its others: the rain of neither counts
    in the time of the missing one.

    Args:
        own: The gauge.
        ours: Its known time.
        other: The other gauge.
        whole: The time in which they are compared.

    Returns:
        None if that time is less than `KNOWN_SHARE` and `ENOUGH_KNOWN_S`.
    """
    spans = _known_to_both(ours, other, whole)
    if _length_s(spans) < _least_known_s(whole):
        return None
    return _rain_of(other, spans), _rain_of(own, spans)


def _known_to_both(ours: Sequence[Span], other: RainRecord, whole: Span) -> list[Span]:
    """The known time of a gauge in which another one is known, too."""
    others = other.known_spans(*whole)
    return [span for each in ours for span in _clipped(others, each)]


def _clipped(spans: Iterable[Span], to: Span) -> list[Span]:
    """Spans of time within another one."""
    both = ((max(begin_s, to[0]), min(end_s, to[1])) for begin_s, end_s in spans)
    return [each for each in both if each[0] < each[1]]


def _length_s(spans: Iterable[Span]) -> float:
    return sum(end_s - begin_s for begin_s, end_s in spans)


def _rain_of(record: RainRecord, spans: Iterable[Span]) -> float:
    return sum(record.rain_mm(*span) for span in spans)


def _least_known_s(whole: Span) -> float:
    return min(KNOWN_SHARE * (whole[1] - whole[0]), ENOUGH_KNOWN_S)


def _has_any(records: Iterable[RainRecord], whole: Span, least_mm: float) -> bool:
    """Whether any gauge had at least some rain between two moments."""
    for record in records:
        # Most gauges have less than that in their whole record.
        is_possible = record.whole_mm + ROUNDING_MM >= least_mm
        if is_possible and record.rain_mm(*whole) >= least_mm:
            return True
    return False


def _check_low(
    own_mm: float,
    known: Sequence[_Witness],
    more: Sequence[_Witness],
    hours: float,
) -> Verdict:
    """Suspect a gauge with no rain, or much less than those around it."""
    is_dry = own_mm < ROUNDING_MM
    if not _is_outvoted(more, known, TWO_VOTES if len(more) == 1 else ONE_VOTE):
        return GOOD
    # Of two gauges with rain, the one with more may be the faulty one.
    if not is_dry and len(more) == 1:
        return GOOD
    other_mm = max(each.rain_mm for each in more)
    if is_dry:
        shown_mm = round(other_mm, 1)
        return suspect_because(ReasonCode.CLOGGED, hours=hours, other_mm=shown_mm)
    return _contradicted(ReasonCode.UNDERCATCH, own_mm, hours, other_mm)


def _most_beside_mm(own_mm: float, limits: ComparisonLimits) -> float:
    """Rain of a neighbour from which a gauge has too little."""
    least_mm = limits.clog_mm if own_mm < ROUNDING_MM else limits.low_mm
    return max(least_mm, own_mm * RATIO)


def _contradicted(
    code: ReasonCode, own_mm: float, hours: float, other_mm: float
) -> Verdict:
    rain_mm, other_mm = round(own_mm, 1), round(other_mm, 1)
    return suspect_because(code, rain_mm=rain_mm, hours=hours, other_mm=other_mm)


def _votes(rain_mm: float, distance_km: float) -> float:
    votes = TWO_VOTES if rain_mm > ROUNDING_MM else ONE_VOTE
    return votes * math.exp(-distance_km / DECAY_KM)


def _is_outvoted(
    against: Sequence[_Witness], known: Sequence[_Witness], weight: float = ONE_VOTE
) -> bool:
    """Whether votes exceed a gauge's own and those of its supporters.

    Args:
        against: Gauges that contradict it.
        known: All other gauges.
        weight: Of the supporters: of one wet and two dry gauges the wet one is faulty,
            or had a shower, more probably than two are clogged.
    """
    supporters = (each.votes for each in known if each.does_agree)
    return sum(each.votes for each in against) > ONE_VOTE + weight * sum(supporters)
