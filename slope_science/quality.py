"""Quality of readings: QARTOD's flags, and the tests that give them.

Each test judges one reading and says why; nothing is dropped here, because a high
value that fails a test of plausibility may be the landslide.

Source: IOOS QARTOD as in ioos_qc 3.0.0: gross range, spike (differential), rate of
change, flat line, aggregate.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

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
        why: The test, the numbers and the limit; empty for a good reading.
    """

    flag: Flag
    why: str = ""


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


_WORDS = {
    1: GOOD,
    2: NOT_EVALUATED,
    3: Verdict(Flag.SUSPECT, "node: suspect"),
    4: Verdict(Flag.FAIL, "node: failed"),
    9: Verdict(Flag.MISSING, "node: missing"),
}


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
    return Verdict(flag, "; ".join(v.why for v in told if v.flag == flag and v.why))


def gross_range(value: float, fail: Span, suspect: Span | None = None) -> Verdict:
    """Fail what the part cannot measure, suspect what is not plausible."""
    if not fail.holds(value):
        return Verdict(Flag.FAIL, f"range: {value:g} is not within {fail}")
    if suspect is not None and not suspect.holds(value):
        return Verdict(Flag.SUSPECT, f"range: {value:g} is not within {suspect}")
    return GOOD


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
        return Verdict(Flag.SUSPECT, f"spike: {least:g} there and back > {limit:g}")
    return GOOD


def step(before: float | None, value: float, limit: float) -> Verdict:
    """Suspect a change between two readings of more than a limit."""
    if before is None:
        return NOT_EVALUATED
    change = abs(value - before)
    if change > limit:
        return Verdict(Flag.SUSPECT, f"step: {change:g} > {limit:g}")
    return GOOD


def rate_of_change(change: float, seconds: float, limit_per_h: float) -> Verdict:
    """Suspect a change that is faster than a limit."""
    if seconds <= 0:
        return NOT_EVALUATED
    per_h = abs(change) * 3600.0 / seconds
    if per_h > limit_per_h:
        return Verdict(Flag.SUSPECT, f"rate: {per_h:g} an hour > {limit_per_h:g}")
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
        hours = window_s / 3600
        return Verdict(Flag.SUSPECT, f"flat: {recent[-1]:g} for {hours:g} h")
    return GOOD


def clock(synchronised: bool) -> Verdict:
    """Suspect a reading of a node whose clock was never set.

    A clock that was set says nothing of the value.
    """
    if synchronised:
        return NOT_EVALUATED
    return Verdict(Flag.SUSPECT, "clock: not set, the time is receipt less the wait")


def at_the_node(flag: int | None) -> Verdict:
    """What the node says of its own reading; it tells only doubts."""
    if flag is None:
        return NOT_EVALUATED
    unknown = Verdict(Flag.SUSPECT, f"node: flag {flag} has no meaning")
    return _WORDS.get(flag, unknown)
