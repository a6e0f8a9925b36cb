"""Signs beside a wire: shocks against their own past, and a stream that jumps.

Counts of a single element mean nothing as absolute numbers; median + 8 MAD of the
place's own last 12 hours is what a window must stand out of.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from backend_spark.transforms.steps import STEP_S, step_end_s
from slope_science.background import background_limit
from slope_science.levels import Finding, shocks_finding

WINDOWS: Final = 72
"""12 hours of ten minutes."""

FEWEST_WINDOWS: Final = 18
"""Three hours: with fewer there is no background to stand out of."""

LEAST_COUNT: Final = 10.0
"""Fewer shocks in ten minutes never count."""

CONFIRM_S: Final = 120.0
"""How near in time a second sign must be."""

JUMP_M: Final = 0.3
"""A change of a water level within ten minutes that is a surge or a dam."""


@dataclass
class ShockCounter:
    """Readings of one vibration sensor, in the order of time.

    Attributes:
        sensor: Its name, with the node's.
        times_s: Unix times of the readings.
        counts: Shocks since the reading before.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    _sums: dict[int, float] | None = None

    def finding(self, end_s: int) -> Finding | None:
        """Judge the ten minutes before the end of a step."""
        limit = self._limit(end_s)
        count = self._windows().get(end_s)
        if limit is None or count is None:
            return None
        return shocks_finding(self.sensor, count, limit)

    def felt(self, at_s: float, end_s: int) -> bool:
        """Whether it felt something near a moment, by what was read up to a step."""
        last = bisect_right(self.times_s, end_s)
        for at in range(bisect_left(self.times_s, at_s - CONFIRM_S), last):
            since_s = self.times_s[at - 1] if at else self.times_s[at] - STEP_S
            if since_s > at_s + CONFIRM_S:
                return False
            step_s = min(step_end_s(self.times_s[at]), end_s)
            if self.counts[at] > 0 and self.finding(step_s) is not None:
                return True
        return False

    def _limit(self, end_s: int) -> float | None:
        """What stands out of the steps before one; None with too short a past."""
        sums = self._windows()
        ends_s = range(end_s - WINDOWS * STEP_S, end_s, STEP_S)
        past = [sums[each] for each in ends_s if each in sums]
        if len(past) < FEWEST_WINDOWS:
            return None
        return background_limit(past, LEAST_COUNT)

    def _windows(self) -> dict[int, float]:
        """Shocks in each step that has a reading."""
        if self._sums is None:
            self._sums, before_s = {}, None
            for at_s, count in zip(self.times_s, self.counts, strict=True):
                gap_s = STEP_S if before_s is None else at_s - before_s
                # Counted over an outage: its mean, or it would look like a burst.
                share = min(1.0, STEP_S / gap_s) if gap_s > 0 else 1.0
                end_s = step_end_s(at_s)
                self._sums[end_s] = self._sums.get(end_s, 0.0) + count * share
                before_s = at_s
        return self._sums


@dataclass
class Stream:
    """Readings of one water level, in the order of time.

    Attributes:
        sensor: Its name, with the node's.
        times_s: Unix times of the readings.
        metres: Level at each.
    """

    sensor: str
    times_s: list[float] = field(default_factory=list)
    metres: list[float] = field(default_factory=list)

    def felt(self, at_s: float, end_s: int) -> bool:
        """Whether it jumped near a moment, by what was read up to a step."""
        until_s = min(at_s + CONFIRM_S + STEP_S, end_s)
        begin = bisect_left(self.times_s, at_s - CONFIRM_S - STEP_S)
        near = self.metres[begin : bisect_right(self.times_s, until_s)]
        return bool(near) and max(near) - min(near) >= JUMP_M


def shock_counters(
    readings: Iterable[tuple[str, float, float]],
) -> Sequence[ShockCounter]:
    """Gather (sensor, Unix time, count) by sensor, in the order of time."""
    found: dict[str, ShockCounter] = {}
    for sensor, at_s, count in sorted(readings):
        one = found.setdefault(sensor, ShockCounter(sensor))
        one.times_s.append(at_s)
        one.counts.append(count)
    return list(found.values())


def streams(readings: Iterable[tuple[str, float, float]]) -> Sequence[Stream]:
    """Gather (sensor, Unix time, metres) by sensor, in the order of time."""
    found: dict[str, Stream] = {}
    for sensor, at_s, metres in sorted(readings):
        one = found.setdefault(sensor, Stream(sensor))
        one.times_s.append(at_s)
        one.metres.append(metres)
    return list(found.values())
