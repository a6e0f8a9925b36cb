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


@dataclass(frozen=True)
class ComparisonLimits:
    """Limits of the comparison of gauges over one duration.

    Attributes:
        seconds: The duration.
        excess_mm: Minimum rain of a gauge that has too much.
        clog_mm: Minimum rain beside a gauge that has none.
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
    own_mm = record.rain_mm(from_s, at_s)
    least_mm = _most_beside_mm(own_mm, limits)
    records = [gauge.record for gauge in neighbours]
    if own_mm < limits.excess_mm and not _has_any(records, (from_s, at_s), least_mm):
        # Nothing contradicts it; of the neighbours only whether one is known matters.
        known_mm = (_in_known_time(record, each, from_s, at_s) for each in records)
        return NOT_EVALUATED if all(each is None for each in known_mm) else GOOD
    known = [
        _Witness(*both, _votes(both[0], gauge.distance_km), gauge.record)
        for gauge in neighbours
        if (both := _in_known_time(record, gauge.record, from_s, at_s)) is not None
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
    own: RainRecord, other: RainRecord, from_s: float, to_s: float
) -> tuple[float, float] | None:
    """Rain of another gauge and of a gauge in the time in which both are known.

    A gauge that lacks a report is compared by its others: the rain of neither counts
    in the time of the missing one.

    Returns:
        None if that time is less than `KNOWN_SHARE` and `ENOUGH_KNOWN_S`.
    """
    own_mm, other_mm = own.known_mm(from_s, to_s), other.known_mm(from_s, to_s)
    if own_mm is not None and other_mm is not None:
        return other_mm, own_mm
    spans = [
        (max(begin_s, other_begin_s), min(end_s, other_end_s))
        for begin_s, end_s in own.known_spans(from_s, to_s)
        for other_begin_s, other_end_s in other.known_spans(from_s, to_s)
        if max(begin_s, other_begin_s) < min(end_s, other_end_s)
    ]
    least_s = min(KNOWN_SHARE * (to_s - from_s), ENOUGH_KNOWN_S)
    if sum(end_s - begin_s for begin_s, end_s in spans) < least_s:
        return None
    return (
        sum(other.rain_mm(*span) for span in spans),
        sum(own.rain_mm(*span) for span in spans),
    )


def _has_any(
    records: Iterable[RainRecord], span_s: tuple[float, float], least_mm: float
) -> bool:
    """Whether any gauge had at least some rain between two moments."""
    for record in records:
        # Most gauges have less than that in their whole record.
        is_possible = record.whole_mm + ROUNDING_MM >= least_mm
        if is_possible and record.rain_mm(*span_s) >= least_mm:
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
