"""Quality of readings: QARTOD's flags, and the tests that give them.

Each test judges one reading and says why; nothing is dropped here, because a high
value that fails a test of plausibility may be the landslide.

Source: IOOS QARTOD as in ioos_qc 3.0.0: gross range, spike (differential), rate of
change, flat line, aggregate.

Tests for tipping buckets: what a gauge's own series tells of it.

A high value is only ever suspected: it may be the storm. A gauge that reads low
cannot be told from dry weather by itself; a neighbour that fills tells it.

Source: specials of tipping buckets (clogs and their release, counters, frost);
the numbers are proposals of ours.

What readings of a quantity can be, and what is plausible.

Source: defaults of a Japanese prefecture's telemetry for rain; the rest are
proposals of ours, for parts whose own limits the reader does not know.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from slope_science.reason_text import english_list
from slope_science.reasons import Reason, ReasonCode

LABEL = "qc"
"""A node's pack carries its flag under this label; for a good reading, nothing."""


class Flag(IntEnum):
    """QARTOD's primary flags."""

    GOOD = 1
    NOT_EVALUATED = 2
    SUSPECT = 3
    FAIL = 4
    MISSING = 9


_ORDER = (Flag.NOT_EVALUATED, Flag.GOOD, Flag.SUSPECT, Flag.FAIL, Flag.MISSING)
_SEVERITY = {flag: place for place, flag in enumerate(_ORDER)}


@dataclass(frozen=True)
class Verdict:
    """What a test says of a reading.

    Attributes:
        flag: Its flag.
        reasons: The test, the numbers and the limit; empty for a good reading.
    """

    flag: Flag
    reasons: tuple[Reason, ...] = ()

    @property
    def why(self) -> str:
        """The reasons in English, joined; empty for a good reading."""
        return english_list(self.reasons)


GOOD = Verdict(Flag.GOOD)
NOT_EVALUATED = Verdict(Flag.NOT_EVALUATED)


@dataclass(frozen=True)
class Span:
    """Values from low to high, both included."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value lies within; infinite ones and nan lie nowhere."""
        return math.isfinite(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def _suspect(code: ReasonCode, **params: object) -> Verdict:
    return Verdict(Flag.SUSPECT, (Reason(code, **params),))


_NODE_VERDICTS = {
    1: GOOD,
    2: NOT_EVALUATED,
    3: Verdict(Flag.SUSPECT, (Reason(ReasonCode.NODE_FLAG, flag="suspect"),)),
    4: Verdict(Flag.FAIL, (Reason(ReasonCode.NODE_FLAG, flag="failed"),)),
    9: Verdict(Flag.MISSING, (Reason(ReasonCode.NODE_FLAG, flag="missing"),)),
}
_CLOCK_NOT_SET = _suspect(ReasonCode.CLOCK_NOT_SET)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The aggregate of some tests: the worst flag, and all reasons for it.

    A test that could not be made takes nothing from one that was passed.
    """
    told = list(verdicts)
    flag = Flag.NOT_EVALUATED
    for verdict in told:
        if _SEVERITY[verdict.flag] > _SEVERITY[flag]:
            flag = verdict.flag
    if flag is Flag.GOOD:
        return GOOD
    return Verdict(flag, tuple(r for v in told if v.flag == flag for r in v.reasons))


def gross_range(value: float, fail: Span, suspect: Span | None = None) -> Verdict:
    """Fail what the part cannot measure, suspect what is not plausible."""
    if not fail.holds(value):
        return _out_of_range(Flag.FAIL, value, fail)
    if suspect is not None and not suspect.holds(value):
        return _out_of_range(Flag.SUSPECT, value, suspect)
    return GOOD


def _out_of_range(flag: Flag, value: float, span: Span) -> Verdict:
    low, high = span.low, span.high
    return Verdict(flag, (Reason(ReasonCode.RANGE, value=value, low=low, high=high),))


def spike(
    before: float | None, value: float, after: float | None, limit: float
) -> Verdict:
    """Suspect a value that leaves by more than a limit and comes back as far.

    Source:
        Differential method: min(|d1|, |d2|) where d1 d2 < 0.
    """
    if before is None or after is None:
        return NOT_EVALUATED
    out, back = value - before, after - value
    least = min(abs(out), abs(back))
    if out * back < 0 and least > limit:
        return _suspect(ReasonCode.SPIKE, size=least, limit=limit)
    return GOOD


def step(before: float | None, value: float, limit: float) -> Verdict:
    """Suspect a change between two readings of more than a limit."""
    if before is None:
        return NOT_EVALUATED
    change = abs(value - before)
    if change > limit:
        return _suspect(ReasonCode.STEP, size=change, limit=limit)
    return GOOD


def rate_of_change(change: float, seconds: float, limit_per_h: float) -> Verdict:
    """Suspect a change that is faster than a limit."""
    if seconds <= 0:
        return NOT_EVALUATED
    per_h = abs(change) * 3600.0 / seconds
    if per_h > limit_per_h:
        return _suspect(ReasonCode.RATE, per_h=per_h, limit=limit_per_h)
    return GOOD


def flat_line(
    times_s: Sequence[float], values: Sequence[float], window_s: float, tolerance: float
) -> Verdict:
    """Suspect the last of some readings that hardly differ for a whole window.

    Args:
        times_s: Times, ascending.
        values: Readings then; the last is judged.
        window_s: How long they must be flat.
        tolerance: Least range of a part that lives.
    """
    if not times_s or times_s[-1] - times_s[0] < window_s:
        return NOT_EVALUATED
    recent = [
        value
        for at_s, value in zip(times_s, values, strict=True)
        if at_s >= times_s[-1] - window_s
    ]
    if max(recent) - min(recent) < tolerance:
        return _suspect(ReasonCode.FLAT, value=recent[-1], hours=window_s / 3600)
    return GOOD


def clock(synchronised: bool) -> Verdict:
    """Suspect a reading of a node whose clock was never set.

    A clock that was set says nothing of the value.
    """
    return NOT_EVALUATED if synchronised else _CLOCK_NOT_SET


def at_the_node(flag: int | None) -> Verdict:
    """What the node says of its own reading; it tells only doubts."""
    if flag is None:
        return NOT_EVALUATED
    known = _NODE_VERDICTS.get(flag)
    return known or _suspect(ReasonCode.NODE_FLAG_UNKNOWN, flag=flag)


STEP_S = 600.0
"""The steps below are changes in so long a time, or less."""

NEAR_S = 3600.0
"""Readings further apart are no neighbours: a change between them is no step."""

FLAT_S = 24 * 3600.0
SPIKE_SHARE = 0.5
"""A spike leaves and comes back by this share of the plausible step."""


@dataclass(frozen=True)
class Limits:
    """Limits of one quantity, in its unit.

    Attributes:
        fail: Beyond it the part is broken.
        suspect: Beyond it a reading is not plausible; None is the same as `fail`.
        step: Largest plausible change in `STEP_S`; None for any.
        flat: Least range of a living part over `FLAT_S`; None where equal
            readings are weather.
    """

    fail: Span
    suspect: Span | None = None
    step: float | None = None
    flat: float | None = None


TEMPERATURE_CEL = Limits(Span(-40, 60), step=3.0)
HUMIDITY_PERCENT = Limits(Span(0, 105), Span(0, 100), flat=1e-6)
AIR_PRESSURE_HPA = Limits(Span(800, 1080), step=5.0)
TILT_DEG = Limits(Span(-90, 90), step=1.0, flat=1e-9)
WATER_CONTENT = Limits(Span(0, 0.7), step=0.15)
PORE_PRESSURE_HPA = Limits(Span(-1000, 10_000), step=100.0)
"""From the suction that a tensiometer stands to 100 m of water."""

DISPLACEMENT_MM = Limits(Span(-100_000, 100_000))
COUNT = Limits(Span(0, 1e9))
RAIN_MM = Limits(Span(0, 990))
"""Of one report; the record of a day is 922.5 mm."""

RAIN_WITHIN = (
    (60.0, 10.0),
    (600.0, 50.0),
    (1800.0, 150.0),
    (3600.0, 200.0),
    (3 * 3600.0, 600.0),
    (24 * 3600.0, 990.0),
    (48 * 3600.0, 2000.0),
)
"""Rain in mm that is plausible within seconds. Beyond is suspect and not failed: the
national record of ten minutes, 55.0 mm, is beyond."""


DRY_S = 3600.0
RELEASED_MM = 5.0
"""So much at once, between two dry hours: a clog that let go, or a hand."""

CLOGGED_S = 3 * 3600.0
CLOGGED_MM = 10.0
"""What a neighbour sees while a clogged gauge reads zero."""

ALONE_MM = 20.0
ALONE_TIMES = 5.0
"""Within `CLOGGED_S`; gauges of one cell are about a kilometre apart at most."""

FROST_CEL = 0.0


def plausible_depth(depth_mm: float, seconds: float) -> Verdict:
    """Fail what no gauge reports, suspect more than fell anywhere in that time.

    Args:
        depth_mm: Rain of one interval.
        seconds: Its length; 0 when it is not known, which counts as ten minutes.
    """
    verdict = gross_range(depth_mm, RAIN_MM.fail)
    if verdict.flag is Flag.FAIL:
        return verdict
    length_s = seconds or RAIN_WITHIN[1][0]
    within = [each for each in RAIN_WITHIN if length_s <= each[0]]
    if not within:
        return GOOD
    limit_s, limit_mm = within[0]
    if depth_mm > limit_mm:
        minutes = limit_s / 60
        return _suspect(
            ReasonCode.RAIN_RANGE, rain_mm=depth_mm, minutes=minutes, limit_mm=limit_mm
        )
    return GOOD


def counter(before_mm: float | None, sum_mm: float | None) -> Verdict:
    """Suspect a counter that went down: it was replaced, or read wrongly."""
    if before_mm is None or sum_mm is None:
        return NOT_EVALUATED
    if sum_mm < before_mm:
        return _suspect(ReasonCode.COUNTER_BACK, before_mm=before_mm, after_mm=sum_mm)
    return GOOD


def released(times_s: Sequence[float], depths_mm: Sequence[float], at: int) -> Verdict:
    """Suspect one large depth between two dry hours.

    Args:
        times_s: Times of the gauge's reports, ascending.
        depths_mm: Depth that each reports.
        at: Place of the report that is judged.
    """
    if depths_mm[at] < RELEASED_MM:
        return GOOD
    now_s = times_s[at]
    if times_s[0] > now_s - DRY_S or times_s[-1] < now_s + DRY_S:
        return NOT_EVALUATED
    others_mm = sum(
        depth_mm
        for place, (at_s, depth_mm) in enumerate(zip(times_s, depths_mm, strict=True))
        if place != at and abs(at_s - now_s) <= DRY_S
    )
    if others_mm > 0:
        return GOOD
    return _suspect(ReasonCode.RELEASED, rain_mm=depths_mm[at])


def clogged(own_mm: float, most_near_mm: float | None) -> Verdict:
    """Suspect a gauge that stays dry while a neighbour fills.

    Args:
        own_mm: Rain of the gauge within `CLOGGED_S`.
        most_near_mm: The most that a neighbour saw then; None without one.
    """
    if most_near_mm is None:
        return NOT_EVALUATED
    if own_mm <= 0 and most_near_mm >= CLOGGED_MM:
        hours = CLOGGED_S / 3600
        return _suspect(ReasonCode.CLOGGED, hours=hours, other_mm=most_near_mm)
    return GOOD


def alone(own_mm: float, most_near_mm: float | None) -> Verdict:
    """Suspect a gauge that sees many times what every neighbour sees.

    Neighbours that see nothing at all may be clogged themselves, and accuse nobody.

    Args:
        own_mm: Rain of the gauge within `CLOGGED_S`.
        most_near_mm: The most that a neighbour saw then; None without one.

    Source:
        High influx of pypwsqc's neighbour checks; the numbers are proposals of ours.
    """
    if not most_near_mm:
        return NOT_EVALUATED
    if own_mm >= ALONE_MM and own_mm >= ALONE_TIMES * most_near_mm:
        hours = CLOGGED_S / 3600
        return _suspect(
            ReasonCode.ALONE, rain_mm=own_mm, hours=hours, other_mm=most_near_mm
        )
    return GOOD


def frost(air_cel: float | None) -> Verdict:
    """Suspect a gauge in frost: it reads low, and melts later."""
    if air_cel is None:
        return NOT_EVALUATED
    if air_cel < FROST_CEL:
        return _suspect(ReasonCode.FROST, air_cel=air_cel)
    return GOOD
