"""Tells pulses that something made from those of a flapping contact."""

from collections import deque

WINDOW_S = 60.0


class RateLimit:
    """Lets so many pulses a minute through, and no more until it is calm again.

    A pulse is refused when as many as allowed came in the minute before it, refused
    ones too: a contact that goes on flapping gets nothing more through.
    """

    def __init__(self, most_per_min: int) -> None:
        self.most_per_min = most_per_min
        self._times: deque[float] = deque(maxlen=most_per_min)

    def accept(self, time_s: float) -> bool:
        """Whether a pulse may be true."""
        if self._times and time_s < self._times[-1]:
            self._times.clear()  # another clock
        is_full = len(self._times) == self.most_per_min
        is_true = not (is_full and time_s - self._times[0] < WINDOW_S)
        self._times.append(time_s)
        return is_true


class DeadTime:
    """Makes one of the pulses that come within a time after the first."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._last_s: float | None = None

    def accept(self, time_s: float) -> bool:
        """Whether a pulse begins something new."""
        last_s = self._last_s
        if last_s is not None and 0 <= time_s - last_s < self._hold_s:
            return False
        self._last_s = time_s
        return True
