"""Means of the last readings of a sensor, by the minute.

Two days of one value: fine in memory, by the hour in the snapshot.

How far a value has stepped, and whether more than one reading says so.

A ranger hears a branch or its own ring once in a while, and one false echo is a jump
there and a jump back. So a step counts alone when two readings before it and the
last two agree; one reading counts beside another sensor's sign.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from edge_agent.triage.snapshot import Json, number_of


@dataclass
class Bin:
    """Some readings of one minute.

    Attributes:
        at_s: Mean of their times.
        values: Means of their values.
        is_doubtful: Whether their quality is suspect.
        count: How many they are.
    """

    at_s: float
    values: list[float]
    is_doubtful: bool
    count: int = 1

    def add(self, at_s: float, values: Sequence[float]) -> None:
        """One more reading."""
        self.count += 1
        self.at_s += (at_s - self.at_s) / self.count
        for number, value in enumerate(values):
            self.values[number] += (value - self.values[number]) / self.count


class Recent:
    """Readings of the last while, in the order of time.

    Args:
        span_s: How long they are kept.
        bin_s: Those so close in time count as one.
    """

    def __init__(self, span_s: float, bin_s: float = 60.0) -> None:
        self._span_s = span_s
        self._bin_s = bin_s
        self._bins: deque[Bin] = deque()

    def take(
        self, at_s: float, values: Sequence[float], *, is_doubtful: bool = False
    ) -> bool:
        """Add a reading; False for one older than the last, which is of no use."""
        last = self._bins[-1] if self._bins else None
        is_same = last and at_s // self._bin_s == last.at_s // self._bin_s
        if last and is_same and last.is_doubtful == is_doubtful:
            last.add(at_s, values)
            return True
        if last and at_s <= last.at_s:
            return False
        self._bins.append(Bin(at_s, list(values), is_doubtful))
        while self._bins[-1].at_s - self._bins[0].at_s > self._span_s:
            self._bins.popleft()
        return True

    def bins(self, *, with_doubtful: bool = True) -> list[Bin]:
        """What there is."""
        return [b for b in self._bins if with_doubtful or not b.is_doubtful]

    @property
    def last_s(self) -> float | None:
        """Time of the last reading."""
        return self._bins[-1].at_s if self._bins else None

    @property
    def has_doubtful(self) -> bool:
        """Whether any of it is suspect."""
        return any(b.is_doubtful for b in self._bins)


_SPAN_S = 50 * 3600.0
_BIN_S = 900.0
_HOUR_S = 3600.0
_REACH_S = 2 * _HOUR_S


class Past:
    """Means of quarters of an hour, in the order of time."""

    def __init__(self) -> None:
        self._bins: deque[list[float]] = deque()

    def take(self, at_s: float, value: float) -> None:
        """Add a value; one older than the last is of no use."""
        last = self._bins[-1] if self._bins else None
        if last and at_s // _BIN_S == last[0] // _BIN_S:
            last[2] += 1
            last[0] += (at_s - last[0]) / last[2]
            last[1] += (value - last[1]) / last[2]
        elif not last or at_s > last[0]:
            self._bins.append([at_s, value, 1])
        while self._bins[-1][0] - self._bins[0][0] > _SPAN_S:
            self._bins.popleft()

    def since(self, begin_s: float) -> list[tuple[float, float]]:
        """Times and values from a moment on."""
        return [(at_s, value) for at_s, value, _ in self._bins if at_s >= begin_s]

    def moved(self, begin_s: float, end_s: float) -> float | None:
        """Change between two moments; None when a value near one is missing."""
        begin, end = self._near(begin_s), self._near(end_s)
        return None if begin is None or end is None else end - begin

    def out(self) -> list[list[float]]:
        """For the snapshot: the first of each hour."""
        told: list[list[float]] = []
        for at_s, value, _ in self._bins:
            if not told or at_s // _HOUR_S != told[-1][0] // _HOUR_S:
                told.append([round(at_s), round(value, 2)])
        return told

    def restore(self, entry: Json) -> None:
        """Go on from a snapshot.

        Raises:
            TypeError, ValueError: It is something else.
        """
        told = [[number_of(at_s), number_of(value), 1.0] for at_s, value in entry]
        if told != sorted(told, key=lambda each: each[0]):
            raise ValueError("times must ascend")
        self._bins = deque(told)

    def _near(self, at_s: float) -> float | None:
        """The middle one of the nearest three: one of them may be a false echo."""
        away = sorted((abs(b[0] - at_s), b[1]) for b in self._bins)
        near = [value for gap_s, value in away[:3] if gap_s < _REACH_S]
        return median_low(near) if near else None


def agreed_step(bins: Sequence[Bin], within_s: float) -> float:
    """The largest change between two readings in a row and the last two.

    Args:
        bins: In the order of time.
        within_s: Longest time between the two pairs.

    Returns:
        The least change from one of the pair before to one of the last; 0.0 where
        they disagree which way it went, or are too few.
    """
    last = bins[-2:]
    steps = [
        _least([b.values[0] - r.values[0] for b in last for r in pair])
        for pair in pairwise(bins[:-2])
        if last[0].at_s - pair[1].at_s <= within_s
    ]
    return max(steps, key=abs, default=0.0)


def lone_step(bins: Sequence[Bin], within_s: float) -> float:
    """The largest change up to the last reading alone."""
    steps = [
        bins[-1].values[0] - b.values[0]
        for b in bins
        if bins[-1].at_s - b.at_s <= within_s
    ]
    return max(steps, key=abs, default=0.0)


def _least(changes: Sequence[float]) -> float:
    is_one_way = min(changes) > 0 or max(changes) < 0
    return min(changes, key=abs) if is_one_way else 0.0
