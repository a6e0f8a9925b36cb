"""Two days of one value: fine in memory, by the hour in the snapshot."""

from collections import deque
from statistics import median_low

from edge_agent.triage.stored import Json, number_of

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
