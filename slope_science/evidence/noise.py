"""Noise of a sensor, learnt from the differences of its own readings.

A rate is fitted to few readings, so its residuals alone are a poor measure of the
noise: readings of a coarse part are equal for days and then differ by one quantum,
which leaves no residuals, and a single step enlarges them. The median distance of a
reading from the line through those beside it is moved neither by a step nor by steady
creep, also where the times are uneven.

Source: standard deviation from the median absolute deviation for Gaussian noise, 1.4826
(Rousseeuw and Croux 1993); the distance has the variance of a reading times one and the
squares of both weights; uniform error of a quantum, q / sqrt(12). The number of
readings is our proposal.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence

from slope_science.evidence.samples import Json

_KEPT = 64
_ENOUGH = 6
_SIGMA_SHARE = 1.4826
_FREEDOM_SHARE = 0.27
"""By simulation: of 64 distances of Gaussian noise in two axes, the median
varies by 17 %, as a standard deviation of 17 degrees of freedom does."""

_UNIFORM_SHARE = 12**-0.5
_LEAST = 1e-7  # smaller differences are rounding


class SensorNoise:
    """Noise and resolution of the axes of one sensor."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, list[float]]] = deque(maxlen=2)
        self._bends: deque[float] = deque(maxlen=_KEPT)
        self._quanta: deque[float] = deque(maxlen=_KEPT)
        self._sigma: float | None = None

    def add(self, at_s: float, values: Sequence[float]) -> None:
        """Add a reading of all axes; one that is not newer than the last is ignored."""
        if self._last and at_s <= self._last[-1][0]:
            return
        if len(self._last) == 2:  # noqa: PLR2004 - readings on both sides of one
            self._bends.extend(_bends(*self._last, (at_s, values)))
        changes = (b - a for a, b in zip(self.before, values, strict=False))
        self._quanta.extend(abs(each) for each in changes if abs(each) > _LEAST)
        self._last.append((at_s, list(values)))
        self._sigma = None

    @property
    def before(self) -> Sequence[float]:
        """The last reading; empty without one."""
        return self._last[-1][1] if self._last else ()

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
        last = [[at_s, list(values)] for at_s, values in self._last]
        return [last, list(self._bends), list(self._quanta)]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`; an earlier program's has second differences."""
        *last, bends, quanta = state
        known, error = (last[0], 1.0) if len(last) == 1 else ((), 6**0.5)
        self._last = deque(((at_s, list(values)) for at_s, values in known), maxlen=2)
        known_bends = bends if error == 1.0 else [each / error for each in bends]
        self._bends = deque(known_bends, maxlen=_KEPT)
        self._quanta = deque(quanta, maxlen=_KEPT)
        self._sigma = None


def _bends(*moments: tuple[float, Sequence[float]]) -> Iterator[float]:
    """Distance of each axis from the line through the readings beside it.

    In standard errors of such a distance, for readings with an error of one.
    """
    (begin_s, first), (middle_s, middle), (end_s, last) = moments
    share = (middle_s - begin_s) / (end_s - begin_s)
    error = math.sqrt(1 + share**2 + (1 - share) ** 2)
    for one, value, other in zip(first, middle, last, strict=False):
        yield abs(value - one - share * (other - one)) / error
