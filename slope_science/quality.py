"""Quality tests of readings with QARTOD flags, and the limits of each quantity.

A test returns a flag with its reasons. No test drops a reading, and a high value is at
most suspect, because it may be the storm or the landslide. Tests of rain gauges over
several reports are in `rain_quality`.

Source: IOOS QARTOD as in ioos_qc 3.0.0 (gross range, spike, rate of change, flat line,
aggregate); limits of rain by a Japanese prefecture's telemetry. The other limits and
the tests of tipping buckets (counters, frost) are our proposals.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english_list

FLAG_LABEL = "qc"
"""SenML label of a node's own flag; absent for a good reading."""


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
    """Result of a test of one reading.

    Attributes:
        flag: Its flag.
        reasons: Test, numbers and limit; empty for a good reading.
    """

    flag: Flag
    reasons: tuple[Reason, ...] = ()

    @property
    def why(self) -> str:
        """The reasons in English, joined; empty for a good reading."""
        return render_english_list(self.reasons)


GOOD = Verdict(Flag.GOOD)
NOT_EVALUATED = Verdict(Flag.NOT_EVALUATED)


@dataclass(frozen=True)
class ValueRange:
    """Closed range of values."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether a finite value lies within the range."""
        return math.isfinite(value) and self.low <= value <= self.high


def suspect_because(code: ReasonCode, **params: object) -> Verdict:
    """Verdict of a suspect reading with one reason."""
    return Verdict(Flag.SUSPECT, (Reason(code, **params),))


_NODE_VERDICTS = {
    1: GOOD,
    2: NOT_EVALUATED,
    3: Verdict(Flag.SUSPECT, (Reason(ReasonCode.NODE_FLAG, flag="suspect"),)),
    4: Verdict(Flag.FAIL, (Reason(ReasonCode.NODE_FLAG, flag="failed"),)),
    9: Verdict(Flag.MISSING, (Reason(ReasonCode.NODE_FLAG, flag="missing"),)),
}
_CLOCK_NOT_SET = suspect_because(ReasonCode.CLOCK_NOT_SET)


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Aggregate of several tests: the worst flag with all its reasons.

    A test that was not evaluated does not lower a passed one.
    """
    results = list(verdicts)
    flag = Flag.NOT_EVALUATED
    for verdict in results:
        if _SEVERITY[verdict.flag] > _SEVERITY[flag]:
            flag = verdict.flag
    if flag is Flag.GOOD:
        return GOOD
    return Verdict(flag, tuple(r for v in results if v.flag == flag for r in v.reasons))


def check_range(
    value: float, fail: ValueRange, suspect: ValueRange | None = None
) -> Verdict:
    """Fail a value outside the measuring range, suspect an implausible one."""
    if not fail.contains(value):
        return _out_of_range(Flag.FAIL, value, fail)
    if suspect is not None and not suspect.contains(value):
        return _out_of_range(Flag.SUSPECT, value, suspect)
    return GOOD


def _out_of_range(flag: Flag, value: float, span: ValueRange) -> Verdict:
    low, high = span.low, span.high
    return Verdict(flag, (Reason(ReasonCode.RANGE, value=value, low=low, high=high),))


def check_spike(
    before: float | None, value: float, after: float | None, limit: float
) -> Verdict:
    """Suspect a value that differs from both neighbours by more than a limit.

    Source:
        Differential method: min(|d1|, |d2|) where d1 d2 < 0.
    """
    if before is None or after is None:
        return NOT_EVALUATED
    out, back = value - before, after - value
    size = min(abs(out), abs(back))
    if out * back < 0 and size > limit:
        return suspect_because(ReasonCode.SPIKE, size=size, limit=limit)
    return GOOD


def check_step(before: float | None, value: float, limit: float) -> Verdict:
    """Suspect a change between two readings above a limit."""
    if before is None:
        return NOT_EVALUATED
    change = abs(value - before)
    if change > limit:
        return suspect_because(ReasonCode.STEP, size=change, limit=limit)
    return GOOD


def check_rate_of_change(change: float, seconds: float, limit_per_h: float) -> Verdict:
    """Suspect a rate of change above a limit."""
    if seconds <= 0:
        return NOT_EVALUATED
    per_h = abs(change) * 3600.0 / seconds
    if per_h > limit_per_h:
        return suspect_because(ReasonCode.RATE, per_h=per_h, limit=limit_per_h)
    return GOOD


def check_flat_line(
    times_s: Sequence[float], values: Sequence[float], window_s: float, tolerance: float
) -> Verdict:
    """Suspect the last reading of a window without variation.

    Args:
        times_s: Times, ascending.
        values: Readings at these times; the last one is tested.
        window_s: Length of the window.
        tolerance: Minimum range of a working sensor.
    """
    if not times_s or times_s[-1] - times_s[0] < window_s:
        return NOT_EVALUATED
    recent = [
        value
        for at_s, value in zip(times_s, values, strict=True)
        if at_s >= times_s[-1] - window_s
    ]
    if max(recent) - min(recent) < tolerance:
        return suspect_because(ReasonCode.FLAT, value=recent[-1], hours=window_s / 3600)
    return GOOD


def check_clock(synchronised: bool) -> Verdict:
    """Suspect a reading of a node whose clock was not set; else not evaluated."""
    return NOT_EVALUATED if synchronised else _CLOCK_NOT_SET


CLOCK_LAG_S = 3600.0
"""Minimum age at receipt of every message of a node whose clock is slow."""

CLOCK_WINDOW_S = 3 * 3600.0
"""Times of receipt over which the age is compared."""

MIN_CLOCK_MESSAGES = 6
MAX_LAG_CHANGE_S = 900.0
"""Largest change of the age between both halves of `CLOCK_WINDOW_S`. In a backlog the
age falls as it is sent, and new messages among it have none."""


def check_clock_lag(receipts: Sequence[tuple[float, float]]) -> Verdict:
    """Suspect a reading of a node that sends at once, but with old times.

    Args:
        receipts: Time of receipt and age then of the node's messages within
            `CLOCK_WINDOW_S`, ascending; the last one is tested.
    """
    if len(receipts) < MIN_CLOCK_MESSAGES:
        return NOT_EVALUATED
    (first_s, _), (last_s, _) = receipts[0], receipts[-1]
    if last_s - first_s < CLOCK_WINDOW_S / 2:
        return NOT_EVALUATED
    middle_s = (first_s + last_s) / 2
    before_s = min(age_s for at_s, age_s in receipts if at_s <= middle_s)
    after_s = min(age_s for at_s, age_s in receipts if at_s > middle_s)
    lag_s = min(before_s, after_s)
    if lag_s < CLOCK_LAG_S or abs(before_s - after_s) > MAX_LAG_CHANGE_S:
        return GOOD
    return suspect_because(ReasonCode.CLOCK_LAG, lag_h=lag_s / 3600)


def check_node_flag(flag: int | None) -> Verdict:
    """Verdict of a node's own flag; nodes send only doubtful ones."""
    if flag is None:
        return NOT_EVALUATED
    known = _NODE_VERDICTS.get(flag)
    return known or suspect_because(ReasonCode.NODE_FLAG_UNKNOWN, flag=flag)


STEP_S = 600.0
"""Time in which a change is a step."""

NEIGHBOUR_S = 3600.0
"""Maximum time between neighbouring readings."""

FLAT_S = 24 * 3600.0
SPIKE_SHARE = 0.5
"""Minimum size of a spike as a share of the largest plausible step."""


@dataclass(frozen=True)
class QuantityLimits:
    """Limits of one quantity, in its unit.

    Attributes:
        fail: Measuring range; a value outside it has failed.
        suspect: Plausible range; None is the same as `fail`.
        step: Largest plausible change in `STEP_S`; None for no limit.
        flat: Minimum range of a working sensor over `FLAT_S`; None where constant
            readings are normal.
    """

    fail: ValueRange
    suspect: ValueRange | None = None
    step: float | None = None
    flat: float | None = None


TEMPERATURE_CEL = QuantityLimits(ValueRange(-40, 60), step=3.0)
HUMIDITY_PERCENT = QuantityLimits(ValueRange(0, 105), ValueRange(0, 100), flat=1e-6)
AIR_PRESSURE_HPA = QuantityLimits(ValueRange(800, 1080), step=5.0)
TILT_DEG = QuantityLimits(ValueRange(-90, 90), step=1.0, flat=1e-9)
WATER_CONTENT = QuantityLimits(ValueRange(0, 0.7), step=0.15)
PORE_PRESSURE_HPA = QuantityLimits(ValueRange(-1000, 10_000), step=100.0)
"""From the lowest suction of a tensiometer to 100 m of water."""

DISPLACEMENT_MM = QuantityLimits(ValueRange(-100_000, 100_000))
COUNT = QuantityLimits(ValueRange(0, 1e9))
RAIN_MM = QuantityLimits(ValueRange(0, 990))
"""Per report; the record of a day is 922.5 mm."""

RAIN_LIMITS = (
    (60.0, 10.0),
    (600.0, 50.0),
    (1800.0, 150.0),
    (3600.0, 200.0),
    (3 * 3600.0, 600.0),
    (24 * 3600.0, 990.0),
    (48 * 3600.0, 2000.0),
)
"""Pairs of seconds and plausible rain in mm. More is suspect, not failed: the national
record of ten minutes, 55.0 mm, exceeds its limit."""


FROST_CEL = 0.0


RainLimits = Sequence[tuple[float, float]]
"""Pairs of seconds and rain in mm, ascending."""


def rain_limit_mm(seconds: float, limits: RainLimits = RAIN_LIMITS) -> float | None:
    """Limit of the rain of a duration; between the given ones on a line.

    Args:
        seconds: The duration; less than the shortest counts as that.
        limits: Limits of some durations.

    Returns:
        None beyond the longest duration with a limit.
    """
    before_s, before_mm = 0.0, limits[0][1]
    for limit_s, limit_mm in limits:
        if seconds <= limit_s:
            share = max(0.0, (seconds - before_s) / (limit_s - before_s))
            return before_mm + share * (limit_mm - before_mm)
        before_s, before_mm = limit_s, limit_mm
    return None


def check_rain_depth(depth_mm: float, seconds: float) -> Verdict:
    """Fail an impossible depth, suspect one above `rain_limit_mm`.

    Args:
        depth_mm: Rain of one interval.
        seconds: Its length; 0 if unknown, which counts as ten minutes.
    """
    verdict = check_range(depth_mm, RAIN_MM.fail)
    if verdict.flag is Flag.FAIL:
        return verdict
    length_s = seconds or RAIN_LIMITS[1][0]
    limit_mm = rain_limit_mm(length_s)
    return GOOD if limit_mm is None else check_rain_sum(depth_mm, length_s, limit_mm)


def check_rain_sum(depth_mm: float, seconds: float, limit_mm: float) -> Verdict:
    """Suspect the rain of a duration above its limit."""
    if depth_mm <= limit_mm:
        return GOOD
    return suspect_because(
        ReasonCode.RAIN_RANGE,
        rain_mm=round(depth_mm, 1),
        minutes=round(seconds / 60, 1),
        limit_mm=round(limit_mm, 1),
    )


RESTART_MOST_MM: Final = 40.0
"""Rain of ten minutes above which one gauge proves nothing (`EXTREME_LIMITS`)."""


def restarted_depth_mm(sum_mm: float | None) -> float | None:
    """Doubtful rain of a counter that fell, and gives no depth of its own.

    It restarted at 0 in the rain, or is another one with another value: which of them
    cannot be known from the counter.

    Returns:
        The counter's value up to `RESTART_MOST_MM`, else None.
    """
    return sum_mm if sum_mm is not None and 0 <= sum_mm <= RESTART_MOST_MM else None


def check_counter(
    before_mm: float | None, sum_mm: float | None, fell_from_mm: float | None = None
) -> Verdict:
    """Suspect a counter that decreased, or regained at once what it had lost.

    A counter that falls was replaced, or read wrongly; one that rises from there to
    its earlier value or above was read wrongly, and its rise is no rain.

    Args:
        before_mm: The previous value.
        sum_mm: This value.
        fell_from_mm: The value that differed from `before_mm` last, before it.
    """
    if before_mm is None or sum_mm is None:
        return NOT_EVALUATED
    if fell_from_mm is not None and before_mm < fell_from_mm <= sum_mm:
        return suspect_because(
            ReasonCode.COUNTER_REGAINED, before_mm=before_mm, after_mm=sum_mm
        )
    if sum_mm < before_mm:
        return suspect_because(
            ReasonCode.COUNTER_BACK, before_mm=before_mm, after_mm=sum_mm
        )
    return GOOD


def most_rain_mm(seconds: float) -> float:
    """Rain above which a counter is wrong: that of a report, for each hour if longer.

    A catch-up of many hours in a storm must not be taken for a wrong counter.
    """
    return RAIN_MM.fail.high * max(1.0, seconds / 3600.0)


def check_rise(
    before_mm: float | None, sum_mm: float | None, seconds: float
) -> Verdict:
    """Suspect a counter that rose by more than `most_rain_mm`: its rise is no rain.

    Args:
        before_mm: The previous value.
        sum_mm: This value.
        seconds: Time between both.
    """
    if before_mm is None or sum_mm is None:
        return NOT_EVALUATED
    return check_rain_sum(sum_mm - before_mm, seconds, most_rain_mm(seconds))


def check_frost(air_cel: float | None) -> Verdict:
    """Suspect a gauge in frost: it reads too little, and the rest after melting."""
    if air_cel is None:
        return NOT_EVALUATED
    if air_cel < FROST_CEL:
        return suspect_because(ReasonCode.FROST, air_cel=air_cel)
    return GOOD
