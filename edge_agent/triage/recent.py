"""Means of the last readings of a sensor, by the minute."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


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
