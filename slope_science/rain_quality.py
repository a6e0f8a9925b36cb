"""Tests of rain gauges: rolling limits, bursts of the switch, and released clogs.

All of them work on `RainRecord`, the rain between the reports of one gauge, so that a
limit applies to a duration and not to a report: a gauge that reports every minute and
one that reports every ten are treated alike.

Source: limits of rain by a Japanese prefecture's telemetry. The other tests are our
proposals. The comparison with other gauges is in `rain_neighbours`.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from slope_science.quality import (
    GOOD,
    NOT_EVALUATED,
    Flag,
    Verdict,
    check_rain_sum,
    rain_limit_mm,
    suspect_because,
)
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason

MAX_RELEASE_S: Final = 1800.0
"""Longest report whose rain may have come at once; a longer one holds a shower."""

MAX_REPORT_S = 3600.0
"""Longest interval between two reports that shows when its rain fell."""

LATE_SHARE: Final = 1.5
"""An interval up to this multiple of the usual one is of a late report, not of two: the
limit of a gauge that reports about every hour."""

USUAL_REPORTS: Final = 5
"""Number of the last intervals whose median is the usual one."""

FIRST_REPORT_S = 600.0
"""Assumed interval of a gauge's first report."""


@dataclass
class RainRecord:
    """Rain of one gauge, spread evenly over the interval before each report.

    Attributes:
        times_s: Ends of the intervals, ascending; the first is the begin of the first.
        totals_mm: Rain up to each of them.
        blind_s: Time up to each of them within intervals that are longer than
            `MAX_REPORT_S` and no late ones, whose begin is assumed, or whose report
            failed.
    """

    times_s: list[float] = field(default_factory=list)
    totals_mm: list[float] = field(default_factory=list)
    blind_s: list[float] = field(default_factory=list)

    def add(self, at_s: float, depth_mm: float, *, failed: bool = False) -> None:
        """Add a report.

        Args:
            at_s: Unix time, not before the last.
            depth_mm: Rain since the last report, zero or more.
            failed: Whether the depth is unknown; it counts as zero.
        """
        if not self.times_s:
            self._append(at_s - FIRST_REPORT_S, 0.0, 0.0)
        length_s = at_s - self.times_s[-1]
        if length_s <= 0:
            self.totals_mm[-1] += depth_mm
            return
        is_first = len(self.times_s) == 1
        is_blind = failed or is_first or length_s > self._longest_s(length_s)
        self._append(
            at_s,
            self.totals_mm[-1] + (0.0 if failed else depth_mm),
            self.blind_s[-1] + length_s * is_blind,
        )

    def _longest_s(self, length_s: float) -> float:
        """Longest interval that lacks no report, after the intervals before it."""
        if length_s <= MAX_REPORT_S or length_s > LATE_SHARE * MAX_REPORT_S:
            return MAX_REPORT_S
        last_s = self.times_s[-USUAL_REPORTS - 1 :]
        if len(last_s) <= USUAL_REPORTS:
            return MAX_REPORT_S
        usual_s = median(end_s - begin_s for begin_s, end_s in pairwise(last_s))
        return max(MAX_REPORT_S, LATE_SHARE * min(usual_s, MAX_REPORT_S))

    def _append(self, at_s: float, total_mm: float, blind_s: float) -> None:
        self.times_s.append(at_s)
        self.totals_mm.append(total_mm)
        self.blind_s.append(blind_s)

    def drop_before(self, at_s: float) -> None:
        """Forget the intervals before a moment, except the last of them."""
        first = bisect_right(self.times_s, at_s) - 1
        if first > 0:
            del self.times_s[:first], self.totals_mm[:first], self.blind_s[:first]

    def between(self, from_s: float, to_s: float) -> "RainRecord":
        """The intervals up to a moment, from the second before another one."""
        first = max(0, bisect_right(self.times_s, from_s) - 2)
        end = bisect_right(self.times_s, to_s)
        columns = (self.times_s, self.totals_mm, self.blind_s)
        return RainRecord(*(column[first:end] for column in columns))

    @property
    def whole_mm(self) -> float:
        """Rain of all intervals."""
        return self.totals_mm[-1] - self.totals_mm[0] if self.totals_mm else 0.0

    def rain_mm(self, from_s: float, to_s: float) -> float:
        """Rain between two moments, as far as it was reported."""
        return self._total_mm(to_s) - self._total_mm(from_s)

    def known_spans(self, from_s: float, to_s: float) -> list[tuple[float, float]]:
        """Begin and end of the times between two moments of which the rain is known.

        Up to `MAX_REPORT_S` after the last report may be missing, as it is not due yet.
        """
        times_s, spans = self.times_s, list[tuple[float, float]]()
        if not times_s:
            return spans
        begin_s, blind_s = max(from_s, times_s[0]), self.blind_s
        at = max(1, bisect_right(times_s, begin_s))
        end = min(bisect_left(times_s, to_s) + 1, len(times_s))
        # The next blind interval is that with the next larger sum: few of a day are.
        while (at := bisect_right(blind_s, blind_s[at - 1], at, max(at, end))) < end:
            spans.append((begin_s, times_s[at - 1]))
            begin_s = times_s[at]
            at += 1
        is_due = to_s > times_s[-1] + MAX_REPORT_S
        spans.append((begin_s, times_s[-1] if is_due else to_s))
        return [each for each in spans if each[1] > each[0]]

    def without_largest_mm(self, from_s: float, to_s: float) -> float:
        """Rain between two moments without the largest report that may be false.

        A released clog or a wrong number gives `MIN_RELEASED_MM` or more. A report that
        is longer than `MAX_RELEASE_S` may hold a shower; it counts, if its depth is
        within `quality.RAIN_LIMITS`.
        """
        first = max(1, bisect_right(self.times_s, from_s))
        end = bisect_left(self.times_s, to_s) + 1
        largest_mm = 0.0
        for at in range(first, min(end, len(self.times_s))):
            depth_mm = self.totals_mm[at] - self.totals_mm[at - 1]
            if depth_mm < MIN_RELEASED_MM or depth_mm <= largest_mm:
                continue
            length_s = self.times_s[at] - self.times_s[at - 1]
            limit_mm = rain_limit_mm(length_s) or math.inf
            is_one_shower = length_s > MAX_RELEASE_S and depth_mm <= limit_mm
            if not is_one_shower:
                largest_mm = depth_mm
        return self.rain_mm(from_s, to_s) - largest_mm

    def _total_mm(self, at_s: float) -> float:
        """Rain up to a moment, which each comparison of gauges needs twice."""
        totals_mm = self.totals_mm
        after = bisect_left(self.times_s, at_s)
        if after == len(totals_mm):
            return totals_mm[-1] if totals_mm else 0.0
        end_s = self.times_s[after]
        if not after or end_s == at_s:
            return totals_mm[after]
        begin_s, begin_mm = self.times_s[after - 1], totals_mm[after - 1]
        share = (at_s - begin_s) / (end_s - begin_s)
        return begin_mm + share * (totals_mm[after] - begin_mm)


@dataclass(frozen=True)
class NeighbourGauge:
    """Another gauge near the one that is tested.

    Attributes:
        distance_km: Its distance.
        record: Its rain.
    """

    distance_km: float
    record: RainRecord


DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0

ROLLING_S: Final = (
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 20, 30, 40, 50, 60)),
    *(HOUR_S * hours for hours in (3, 6, 12, 24)),
)
"""Durations over which the rain is summed. Those between the durations of
`quality.RAIN_LIMITS` matter: 49 mm in each ten minutes is within all of these for half
an hour, and after 40 minutes 29 mm above the line between two of them."""

EXTREME_LIMITS: Final = (
    (60.0, 8.0),
    (600.0, 40.0),
    (1800.0, 80.0),
    (HOUR_S, 120.0),
    (3 * HOUR_S, 300.0),
    (6 * HOUR_S, 450.0),
    (DAY_S, 900.0),
)
"""Pairs of seconds and rain in mm that one gauge alone does not prove. JMA announces
80 to 120 mm in an hour as record-breaking; it falls at a place once in many years, and
a faulty gauge reports it within minutes. Our proposal."""

ROLLING_LIMITS: Final = tuple(
    (seconds, rain_limit_mm(seconds, EXTREME_LIMITS) or math.inf)
    for seconds in ROLLING_S
)

ROUNDING_MM: Final = 1e-6
"""Differences of sums below this are rounding."""

DOUBT_S: Final = HOUR_S
"""Time before the end of a sum within which its rain is doubtful."""

CONFIRM_SHARE: Final = 0.5
"""Minimum share of a sum at another gauge that confirms it."""


@dataclass(frozen=True)
class RainSum:
    """Rain of a duration above its limit of `EXTREME_LIMITS`.

    Attributes:
        from_s: Begin.
        to_s: End.
        rain_mm: Rain between them.
        limit_mm: The limit.
    """

    from_s: float
    to_s: float
    rain_mm: float
    limit_mm: float

    @property
    def is_implausible(self) -> bool:
        """Whether the rain is above `quality.RAIN_LIMITS`, too."""
        limit_mm = rain_limit_mm(self.to_s - self.from_s)
        return limit_mm is not None and self.rain_mm > limit_mm + ROUNDING_MM

    @property
    def excess(self) -> float:
        """The rain as a multiple of the limit."""
        return self.rain_mm / self.limit_mm

    def doubts(self, begin_s: float, at_s: float) -> bool:
        """Whether the rain of a report's interval is doubtful because of it."""
        return self.from_s < at_s and begin_s < self.to_s <= at_s + DOUBT_S


def find_extreme_sums(
    record: RainRecord, neighbours: Sequence[NeighbourGauge], since_s: float
) -> list[RainSum]:
    """Sums of extreme rain that no other gauge confirms.

    A storm beyond all limits is possible (the national record of ten minutes is
    55.0 mm), and a second gauge confirms it: then no sum is returned.

    Args:
        record: Rain of the gauge.
        neighbours: Other gauges.
        since_s: Time after which the sums end.
    """
    times_s = record.times_s
    first = bisect_right(times_s, since_s)
    begin_s = since_s - ROLLING_S[-1]
    if record.rain_mm(begin_s, times_s[-1]) <= ROLLING_LIMITS[0][1]:
        return []
    exceeded = [
        (seconds, limit_mm)
        for seconds, limit_mm in ROLLING_LIMITS
        if record.rain_mm(since_s - seconds, times_s[-1]) > limit_mm
    ]
    return [
        each
        for end_s in times_s[first:]
        for each in _sums_until(record, end_s, exceeded)
        if not _is_confirmed(each, neighbours)
    ]


def _sums_until(
    record: RainRecord, end_s: float, limits: Iterable[tuple[float, float]]
) -> Iterator[RainSum]:
    for seconds, limit_mm in limits:
        rain_mm = record.rain_mm(end_s - seconds, end_s)
        if rain_mm > limit_mm + ROUNDING_MM:
            yield RainSum(end_s - seconds, end_s, rain_mm, limit_mm)


def _is_confirmed(found: RainSum, neighbours: Iterable[NeighbourGauge]) -> bool:
    """Whether another gauge had enough rain then, within an hour at least.

    Rain that the other gauge has not reported would be more, so a part of it suffices.
    """
    from_s = min(found.from_s, found.to_s - HOUR_S)
    return any(
        gauge.record.rain_mm(from_s, found.to_s) >= CONFIRM_SHARE * found.rain_mm
        for gauge in neighbours
    )


def check_rolling_limits(
    sums: Iterable[RainSum], begin_s: float, at_s: float
) -> Verdict:
    """Suspect a report whose rain belongs to a sum of extreme rain.

    The reason names the limit of `quality.RAIN_LIMITS` where that is exceeded, too.

    Args:
        sums: Result of `find_extreme_sums`.
        begin_s: Begin of the report's interval.
        at_s: End of it.
    """
    found = [each for each in sums if each.doubts(begin_s, at_s)]
    if not found:
        return GOOD
    worst = max(found, key=lambda each: (each.is_implausible, each.excess))
    seconds = worst.to_s - worst.from_s
    if worst.is_implausible:
        limit_mm = rain_limit_mm(seconds) or math.inf
        return check_rain_sum(worst.rain_mm, seconds, limit_mm)
    rain_mm, minutes = round(worst.rain_mm, 1), round(seconds / 60)
    return suspect_because(ReasonCode.EXTREME, rain_mm=rain_mm, minutes=minutes)


MAX_BURST_S: Final = 60.0
MIN_BURST_MM: Final = 2.0
MIN_PAUSE_S: Final = 30.0
MIN_BURSTS: Final = 3
"""Least number within an hour of each other. Rain of 2 mm in a minute, 120 mm/h, does
not begin and end within that minute three times an hour; a bouncing switch does."""


def find_bursts(record: RainRecord, since_s: float) -> list[tuple[float, float]]:
    """Begin and end of short spells of heavy rain that recur between dry pauses."""
    before = max(0, bisect_left(record.times_s, since_s - 2 * DOUBT_S) - 1)
    wet_mm = record.totals_mm[-1] - record.totals_mm[before]
    if wet_mm < MIN_BURSTS * MIN_BURST_MM - ROUNDING_MM:
        return []
    spells = _wet_spells(record, since_s - 2 * DOUBT_S)
    bursts = [
        (begin_s, end_s)
        for begin_s, end_s, before_s, after_s in spells
        if end_s - begin_s <= MAX_BURST_S
        and min(before_s, after_s) >= MIN_PAUSE_S
        and record.rain_mm(begin_s, end_s) >= MIN_BURST_MM
    ]
    return [
        burst
        for burst in bursts
        if sum(abs(other[1] - burst[1]) <= DOUBT_S for other in bursts) >= MIN_BURSTS
    ]


def _wet_spells(
    record: RainRecord, since_s: float
) -> list[tuple[float, float, float, float]]:
    """Begin and end of each closed spell, and the dry time before and after it."""
    times_s, totals_mm = record.times_s, record.totals_mm
    spells: list[tuple[float, float]] = []
    for at in range(max(1, bisect_left(times_s, since_s)), len(times_s)):
        if totals_mm[at] <= totals_mm[at - 1]:
            continue
        if spells and spells[-1][1] == times_s[at - 1]:
            spells[-1] = (spells[-1][0], times_s[at])
        else:
            spells.append((times_s[at - 1], times_s[at]))
    edges_s = [since_s, *(end_s for _, end_s in spells)]
    begins_s = [*(begin_s for begin_s, _ in spells[1:]), times_s[-1]]
    return [
        (begin_s, end_s, begin_s - before_s, after_s - end_s)
        for (begin_s, end_s), before_s, after_s in zip(
            spells, edges_s, begins_s, strict=False
        )
    ]


def check_bursts(
    bursts: Sequence[tuple[float, float]], begin_s: float, at_s: float
) -> Verdict:
    """Suspect a report whose rain fell in recurring short bursts.

    Args:
        bursts: Result of `find_bursts`.
        begin_s: Begin of the report's interval.
        at_s: End of it.
    """
    if not any(first_s < at_s and begin_s < last_s for first_s, last_s in bursts):
        return GOOD
    near = [last_s for _, last_s in bursts if abs(last_s - at_s) <= DOUBT_S]
    return suspect_because(ReasonCode.BURSTS, count=len(near))


def check_bounce(refused: int, *, is_wet: bool) -> Verdict:
    """Suspect a report during which the switch closed faster than in any rain.

    Without rain it has failed: a switch that flaps shows no tips.
    """
    if refused <= 0:
        return NOT_EVALUATED
    if not is_wet:
        return Verdict(Flag.FAIL, (Reason(ReasonCode.BOUNCE, count=refused),))
    return suspect_because(ReasonCode.BOUNCE, count=refused)


MIN_RELEASED_MM: Final = 5.0
"""Minimum depth between two dry hours: a released clog, or manual tipping."""


def check_release(
    record: RainRecord,
    begin_s: float,
    at_s: float,
    neighbours: Iterable[NeighbourGauge] = (),
) -> Verdict:
    """Suspect one large depth between two dry hours, unless it rained at another gauge.

    Args:
        record: Rain of the gauge.
        begin_s: Begin of the report's interval.
        at_s: End of it.
        neighbours: Other gauges.
    """
    own_mm = record.rain_mm(begin_s, at_s)
    if own_mm < MIN_RELEASED_MM:
        return GOOD
    first_s, last_s = record.times_s[0], record.times_s[-1]
    is_long = at_s - begin_s > MAX_RELEASE_S
    if is_long or first_s > at_s - HOUR_S or last_s < at_s + HOUR_S:
        return NOT_EVALUATED
    if record.rain_mm(at_s - HOUR_S, at_s + HOUR_S) - own_mm > ROUNDING_MM:
        return GOOD
    if _is_confirmed(RainSum(at_s - HOUR_S, at_s + HOUR_S, own_mm, own_mm), neighbours):
        return GOOD
    return suspect_because(ReasonCode.RELEASED, rain_mm=round(own_mm, 3))
