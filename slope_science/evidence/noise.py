"""Noise of a sensor, learnt from the differences of its own readings.

A rate is fitted to few readings, so its residuals alone are a poor measure of the
noise: readings of a coarse part are equal for days and then differ by one quantum,
which leaves no residuals, and a single step enlarges them. The median second difference
of successive readings is moved neither by a step nor by steady creep.

Source: standard deviation from the median absolute deviation for Gaussian noise, 1.4826
(Rousseeuw and Croux 1993); a second difference has 6 times the variance of a reading;
uniform error of a quantum, q / sqrt(12). The number of readings is our proposal.
"""

from collections import deque
from collections.abc import Sequence

from slope_science.evidence.stored_values import Json

_KEPT = 64
_ENOUGH = 6
_SIGMA_SHARE = 1.4826 / 6**0.5
_FREEDOM_SHARE = 0.27
"""By simulation: of 64 second differences of Gaussian noise in two axes, the median
varies by 17 %, as a standard deviation of 17 degrees of freedom does."""

_UNIFORM_SHARE = 12**-0.5
_LEAST = 1e-7  # smaller differences are rounding


class SensorNoise:
    """Noise and resolution of the axes of one sensor."""

    def __init__(self) -> None:
        self._before: list[float] = []
        self._change: list[float] = []
        self._bends: deque[float] = deque(maxlen=_KEPT)
        self._quanta: deque[float] = deque(maxlen=_KEPT)
        self._sigma: float | None = None

    def add(self, values: Sequence[float]) -> None:
        """Add a reading of all axes."""
        change = [b - a for a, b in zip(self._before, values, strict=False)]
        self._bends.extend(
            abs(b - a) for a, b in zip(self._change, change, strict=False)
        )
        self._quanta.extend(abs(each) for each in change if abs(each) > _LEAST)
        self._before, self._change = list(values), change
        self._sigma = None

    @property
    def before(self) -> Sequence[float]:
        """The last reading; empty without one."""
        return self._before

    @property
    def quantum(self) -> float:
        """Smallest usual difference of two readings; 0 while all are equal."""
        if not self._quanta:
            return 0.0
        return sorted(self._quanta)[len(self._quanta) // 10]

    @property
    def sigma(self) -> float:
        """Standard deviation of a reading; 0 with too few of them."""
        if self._sigma is None:
            bends = sorted(self._bends)
            middle = bends[len(bends) // 2] if self.is_known else 0.0
            # two kicks of a still sensor are no resolution
            is_known = len(self._quanta) >= _ENOUGH
            uniform = self.quantum * _UNIFORM_SHARE if is_known else 0.0
            self._sigma = max(middle * _SIGMA_SHARE, uniform)
        return self._sigma

    @property
    def is_known(self) -> bool:
        """Whether there were enough readings for `sigma`."""
        return len(self._bends) >= _ENOUGH

    @property
    def freedom(self) -> float:
        """Degrees of freedom of `sigma`."""
        return max(_FREEDOM_SHARE * len(self._bends), 1.0)

    def to_state(self) -> Json:
        """The whole state."""
        before = [list(self._before), list(self._change)]
        return [*before, list(self._bends), list(self._quanta)]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        before, change, bends, quanta = state
        self._before, self._change = list(before), list(change)
        self._bends = deque(bends, maxlen=_KEPT)
        self._quanta = deque(quanta, maxlen=_KEPT)
        self._sigma = None
