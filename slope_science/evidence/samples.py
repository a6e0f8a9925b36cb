"""Samples of one sensor as rules read them: windows, noise, and stored values.

Windows have means by minute and quarter of an hour, and steps. A step counts without
confirmation only if two readings before it and the last two agree, because an
ultrasonic sensor receives a false echo once in a while. A step of the last reading
alone needs another sensor's evidence.

The noise of a sensor is learnt from the differences of its own readings. A rate is
fitted to few readings, so its residuals alone are a poor measure: readings of a coarse
part are equal for days and then differ by one quantum, which leaves no residuals, and a
single step enlarges them. The median distance of a reading from the line through those
beside it is moved neither by a step nor by steady creep, also where the times are
uneven.

Rules store their state as JSON values, whose numbers are checked when they are read.

Source: standard deviation from the median absolute deviation for Gaussian noise, 1.4826
(Rousseeuw and Croux 1993); the distance has the variance of a reading times one and the
squares of both weights; uniform error of a quantum, q / sqrt(12). The number of
readings is our proposal.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, takewhile
from operator import itemgetter
from statistics import median_low
from typing import Any, Final, Protocol

from slope_science.movement import find_spikes

Json = Any
"""Value that `json` reads and writes."""

_KEPT = 64
_ENOUGH = 6
_SIGMA_SHARE = 1.4826
_FREEDOM_SHARE = 0.27
"""By simulation: of 64 distances of Gaussian noise in two axes, the median
varies by 17 %, as a standard deviation of 17 degrees of freedom does."""

_UNIFORM_SHARE = 12**-0.5
_LEAST = 1e-7  # smaller differences are rounding


def finite_number(value: object) -> float:
    """Check for a finite number.

    Raises:
        ValueError: The value is none.
    """
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"a number is needed, got {value!r}")  # noqa: TRY004 - one kind
    if not math.isfinite(value):
        raise ValueError(f"a finite number is needed, got {value!r}")
    return float(value)


def non_negative_number(value: object) -> float:
    """Check for a finite number of zero or more.

    Raises:
        ValueError: The value is none.
    """
    number = finite_number(value)
    if number < 0:
        raise ValueError(f"a number of zero or more is needed, got {value!r}")
    return number


def optional_time(value: object) -> float | None:
    """Check for a time or None.

    Raises:
        ValueError: The value is neither.
    """
    return None if value is None else finite_number(value)


def is_finite_number(value: object) -> bool:
    """Whether a value is a finite number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a double
        return False


TILT_AXES: Final = ("x", "y")


@dataclass
class SensorSample:
    """Readings of one sensor at one instant.

    Attributes:
        at_s: Time, in triage's own time.
        value: Value of the sensor itself, in the unit of its quantity's rules; None if
            absent or failed.
        sum: Cumulative value in the same unit.
        raw: Value as sent.
        parts: Secondary values as sent, such as ``x`` or ``sigma``; no failed ones.
        is_suspect: Whether any of its values is suspect, except an axis of tilt.
        suspect_axes: Suspect axes of tilt.
        is_failed: Whether the sensor's own value failed or is missing.
        is_missing: Whether it is missing; a sum is right nevertheless.
    """

    at_s: float
    value: float | bool | None = None
    sum: float | None = None
    raw: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    is_suspect: bool = False
    is_failed: bool = False
    suspect_axes: set[str] = field(default_factory=set)
    is_missing: bool = False

    def is_value_doubtful(self, value: float, before: float | None) -> bool:
        """Whether a value of the sensor is doubtful.

        One that stands still is suspect, but says nothing new: it was good before.

        Args:
            value: The value.
            before: The last good one; None without one.
        """
        return self.is_suspect and value != before

    def is_doubtful(self, before: Sequence[float]) -> bool:
        """Whether a tilt is doubtful.

        An axis that stands still is no evidence of movement, so that a stuck one, which
        is suspect, does not hide the movement of the other.

        Args:
            before: The axes in the last good reading; empty without one.
        """
        return self.is_suspect or any(
            axis in self.suspect_axes and self.parts.get(axis) != value
            for axis, value in zip(TILT_AXES, before, strict=False)
        )


LONGEST_INTERVAL_S = 7500.0
"""Two hours, and the jitter of the readings."""


@dataclass
class MinuteBin:
    """Mean of the readings of one minute.

    Attributes:
        at_s: Mean time.
        values: Mean values.
        is_doubtful: Whether the readings are suspect.
        count: Number of readings.
    """

    at_s: float
    values: list[float]
    is_doubtful: bool
    count: int = 1

    def add(self, at_s: float, values: Sequence[float]) -> None:
        """Add a reading."""
        self.count += 1
        self.at_s += (at_s - self.at_s) / self.count
        for number, value in enumerate(values):
            self.values[number] += (value - self.values[number]) / self.count


class MinuteBins:
    """Recent readings as means, in time order.

    Args:
        span_s: Length of the window.
        bin_s: Length of a bin.
        least: Number of bins that are kept beyond the window.
        before: Number of bins before the window that are kept, too.
    """

    def __init__(
        self, span_s: float, bin_s: float = 60.0, least: int = 1, before: int = 0
    ) -> None:
        self._span_s = span_s
        self._before = before
        self._least = least
        self._bin_s = bin_s
        self._bins: deque[MinuteBin] = deque()
        self._doubtful = 0
        # By the noise; rules ask for them several times for each reading.
        self._spikes: tuple[float, dict[float, tuple[float, float]]] | None = None

    def add(
        self, at_s: float, values: Sequence[float], *, is_doubtful: bool = False
    ) -> bool:
        """Add a reading; False for one older than the last, which is ignored."""
        self._spikes = None
        last = self._bins[-1] if self._bins else None
        is_same = last and at_s // self._bin_s == last.at_s // self._bin_s
        if last and is_same and last.is_doubtful == is_doubtful:
            last.add(at_s, values)
            return True
        if last and at_s <= last.at_s:
            return False
        self._bins.append(MinuteBin(at_s, list(values), is_doubtful))
        self._doubtful += is_doubtful
        while (
            len(self._bins) > max(self._least, self._before)
            and self._bins[-1].at_s - self._bins[self._before].at_s > self._span_s
        ):
            self._doubtful -= self._bins.popleft().is_doubtful
        return True

    def bins(self, *, with_doubtful: bool = True) -> list[MinuteBin]:
        """The bins, with or without suspect ones."""
        return [b for b in self._bins if with_doubtful or not b.is_doubtful]

    @property
    def last_good(self) -> float | None:
        """First value of the last bin that is not suspect; None without one."""
        good = (b.values[0] for b in reversed(self._bins) if not b.is_doubtful)
        return next(good, None)

    def to_state(self) -> Json:
        """The whole state."""
        return [
            [
                b.at_s,
                b.is_doubtful,
                b.count,
                [None if math.isnan(v) else v for v in b.values],
            ]
            for b in self._bins
        ]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._spikes = None
        self._bins = deque(
            MinuteBin(
                at_s,
                [math.nan if v is None else v for v in values],
                is_doubtful,
                count,
            )
            for at_s, is_doubtful, count, values in state
        )
        self._doubtful = sum(b.is_doubtful for b in self._bins)

    def since(self, begin_s: float, *, with_doubtful: bool) -> list[MinuteBin]:
        """The bins since a moment, with or without suspect ones."""
        whole = with_doubtful or not self._doubtful
        if whole and (not self._bins or self._bins[0].at_s >= begin_s):
            return list(self._bins)
        return [
            b
            for b in self._bins
            if b.at_s >= begin_s and (with_doubtful or not b.is_doubtful)
        ]

    def since_or_last(
        self,
        begin_s: float,
        least: int,
        *,
        with_doubtful: bool,
        spikes: Collection[float] = (),
    ) -> list[MinuteBin]:
        """The bins since a moment; the last ones where fewer than `least` are so new.

        They must be up to two hours apart, as those of a sensor read every hour.

        Args:
            begin_s: The moment.
            least: Number of bins that a rate needs.
            with_doubtful: Whether suspect bins count.
            spikes: Times of bins that do not count while there are enough others.
        """
        found = _without(self.since(begin_s, with_doubtful=with_doubtful), spikes)
        if len(found) < least and found:
            last = _without(self.bins(with_doubtful=with_doubtful), spikes)[-least:]
            steps = pairwise(last)
            is_near = all(b.at_s - a.at_s <= LONGEST_INTERVAL_S for a, b in steps)
            found = last if is_near else found
        if len(found) < least and spikes:
            return self.since_or_last(begin_s, least, with_doubtful=with_doubtful)
        return found

    def spikes(self, axes: int, noise: "Noise") -> dict[float, tuple[float, float]]:
        """Bins whose values went there and back, by their times.

        Args:
            axes: Number of values that are axes.
            noise: Noise of the sensor; while unknown, none is a spike.

        Returns:
            Since when each has readings, and the time of the bin after it.
        """
        if not noise.is_known or not self._bins:
            return {}
        sigma = noise.sigma
        if self._spikes is None or self._spikes[0] != sigma:
            self._spikes = sigma, self._find_spikes(axes, sigma)
        return self._spikes[1]

    def _find_spikes(self, axes: int, sigma: float) -> dict[float, tuple[float, float]]:
        bins = list(self._bins)
        found = find_spikes(
            [[b.values[axis] for b in bins] for axis in range(axes)], sigma
        )
        return {
            bins[at].at_s: (
                bins[at].at_s // self._bin_s * self._bin_s,
                bins[at + 1].at_s,
            )
            for at in found
        }

    @property
    def has_doubtful(self) -> bool:
        """Whether any bin is suspect."""
        return self._doubtful > 0


class Noise(Protocol):
    """Noise of a sensor."""

    @property
    def sigma(self) -> float:
        """Standard deviation of a reading."""

    @property
    def is_known(self) -> bool:
        """Whether there were enough readings for `sigma`."""


def _without(bins: list[MinuteBin], spikes: Collection[float]) -> list[MinuteBin]:
    return [b for b in bins if b.at_s not in spikes] if spikes else bins


_SPAN_S = 50 * 3600.0
_BIN_S = 900.0
_HOUR_S = 3600.0
_REACH_S = 2 * _HOUR_S


class QuarterHourMeans:
    """Means by quarter of an hour over two days, in time order."""

    def __init__(self) -> None:
        self._bins: deque[list[float]] = deque()

    def add(self, at_s: float, value: float) -> None:
        """Add a value; one older than the last is ignored."""
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
        """Times and values since a moment."""
        recent = takewhile(lambda each: each[0] >= begin_s, reversed(self._bins))
        return [(at_s, value) for at_s, value, _ in recent][::-1]

    def change_between(self, begin_s: float, end_s: float) -> float | None:
        """Change between two moments; None without values near both."""
        begin, end = self._near(begin_s), self._near(end_s)
        return None if begin is None or end is None else end - begin

    def to_snapshot(self) -> list[list[float]]:
        """For the snapshot: the first value of each hour."""
        hours: list[list[float]] = []
        for at_s, value, _ in self._bins:
            if not hours or at_s // _HOUR_S != hours[-1][0] // _HOUR_S:
                hours.append([round(at_s), round(value, 2)])
        return hours

    def restore(self, entry: Json) -> None:
        """Restore from `to_snapshot`.

        Raises:
            TypeError, ValueError: The entry has another form.
        """
        bins = [
            [finite_number(at_s), finite_number(value), 1.0] for at_s, value in entry
        ]
        if bins != sorted(bins, key=lambda each: each[0]):
            raise ValueError("times must ascend")
        self._bins = deque(bins)

    def to_state(self) -> Json:
        """The whole state."""
        return [list(each) for each in self._bins]

    def restore_state(self, state: Json) -> None:
        """Restore from `to_state`."""
        self._bins = deque(list(each) for each in state)

    def _near(self, at_s: float) -> float | None:
        """Median of the nearest three values, because one may be a false echo."""
        place = bisect_left(self._bins, at_s, key=itemgetter(0))
        around = list(islice(self._bins, max(0, place - 3), place + 3))
        nearest = sorted((abs(b[0] - at_s), b[1]) for b in around)
        near = [value for gap_s, value in nearest[:3] if gap_s < _REACH_S]
        return median_low(near) if near else None


@dataclass(frozen=True)
class FoundStep:
    """A change between two readings.

    Attributes:
        size: The change; 0.0 for none.
        times_s: Times of the readings before and after it.
    """

    size: float = 0.0
    times_s: tuple[float, float] = (0.0, 0.0)


def largest_agreed_step(bins: Sequence[MinuteBin], within_s: float) -> FoundStep:
    """Largest change between two consecutive readings and the last two.

    Args:
        bins: Readings in time order.
        within_s: Maximum time between the two pairs.

    Returns:
        The smallest change between a reading of the earlier pair and one of the last;
        none if their directions differ, or with too few readings.
    """
    last = bins[-2:]
    steps = [
        FoundStep(
            _smallest([b.values[0] - r.values[0] for b in last for r in pair]),
            (pair[1].at_s, last[0].at_s),
        )
        for pair in pairwise(bins[:-2])
        if last[0].at_s - pair[1].at_s <= within_s
    ]
    return max(steps, key=_size, default=FoundStep())


def largest_last_step(bins: Sequence[MinuteBin], within_s: float) -> FoundStep:
    """Largest change to the last reading alone."""
    last = bins[-1]
    steps = [
        FoundStep(last.values[0] - b.values[0], (b.at_s, last.at_s))
        for b in bins
        if last.at_s - b.at_s <= within_s
    ]
    return max(steps, key=_size, default=FoundStep())


def _size(step: FoundStep) -> float:
    return abs(step.size)


def _smallest(changes: Sequence[float]) -> float:
    is_one_direction = min(changes) > 0 or max(changes) < 0
    return min(changes, key=abs) if is_one_direction else 0.0


class SensorNoise:
    """Noise and resolution of the axes of one sensor."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, list[float]]] = deque(maxlen=2)
        self._bends: deque[float] = deque(maxlen=_KEPT)
        self._quanta: deque[float] = deque(maxlen=_KEPT)
        self._quantum: float | None = None
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
        self._quantum = self._sigma = None

    @property
    def before(self) -> Sequence[float]:
        """The last reading; empty without one."""
        return self._last[-1][1] if self._last else ()

    @property
    def quantum(self) -> float:
        """Smallest usual difference of two readings; 0 while all are equal."""
        if self._quantum is None:
            quanta = sorted(self._quanta)
            self._quantum = quanta[len(quanta) // 10] if quanta else 0.0
        return self._quantum

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
        self._quantum = self._sigma = None


def _bends(*moments: tuple[float, Sequence[float]]) -> Iterator[float]:
    """Distance of each axis from the line through the readings beside it.

    In standard errors of such a distance, for readings with an error of one.
    """
    (begin_s, first), (middle_s, middle), (end_s, last) = moments
    share = (middle_s - begin_s) / (end_s - begin_s)
    error = math.sqrt(1 + share**2 + (1 - share) ** 2)
    for one, value, other in zip(first, middle, last, strict=False):
        yield abs(value - one - share * (other - one)) / error
