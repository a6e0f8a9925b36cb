"""What one sensor said at one instant, in the unit of its rules.

Triage's own time: it never jumps, however the wall clock is set.

Rules measure spans: an hour of tilt, the time since a wire was mended. So they run
on seconds that only grow, at the pace of the monotonic clock. Within a run the wall
clock is not asked; between two runs it is all there is.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_agent import quantities
from edge_agent.triage.snapshot import is_number, number_of, time_of
from slope_science.quality import LABEL, Flag
from spatial_mqtt.senml import Reading

_UNUSABLE = {Flag.FAIL, Flag.MISSING}


class Named(Protocol):
    """What triage has to know of a sensor."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def quantity(self) -> str:
        """What it measures."""

    @property
    def senml_unit(self) -> str | None:
        """The unit of its readings."""


@dataclass
class Sample:
    """The readings of one sensor.

    Attributes:
        at_s: When, in triage's own time.
        value: Of the sensor itself, in the unit of its quantity's rules; None when
            it has none, or one that failed.
        sum: Cumulative, in the same unit.
        raw: The value as sent.
        parts: Numbers of its companions as sent, such as ``x`` or ``sigma``; those
            that failed are not among them.
        is_suspect: Whether anything of it is doubtful.
        is_failed: Whether the sensor's own value failed, or is missing.
    """

    at_s: float
    value: float | bool | None = None
    sum: float | None = None
    raw: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    is_suspect: bool = False
    is_failed: bool = False


def flag_of(reading: Reading) -> Flag:
    """The quality that the source gave a reading; good when it says nothing."""
    told = reading.extra.get(LABEL, Flag.GOOD)
    known = isinstance(told, int) and told in set(Flag)
    return Flag(told) if known else Flag.SUSPECT


def samples(
    readings: Iterable[Reading], sensors: Mapping[str, Named], at_s: float
) -> dict[str, Sample]:
    """Readings by their sensor; those of sensors we do not know are left out.

    Args:
        readings: Of one instant, of any sensors.
        sensors: The node's, by their names.
        at_s: When, in triage's own time.
    """
    told: dict[str, Sample] = {}
    for reading in readings:
        name, _, part = reading.name.partition("/")
        if name not in sensors:
            continue
        sample = told.setdefault(name, Sample(at_s))
        if part:
            _add_part(sample, part, reading)
        else:
            _add_main(sample, reading, sensors[name])
    return told


def _add_part(sample: Sample, part: str, reading: Reading) -> None:
    flag = flag_of(reading)
    if not is_number(reading.value) or flag in _UNUSABLE:
        return
    sample.parts[part] = float(reading.value)  # type: ignore[arg-type]
    # closures that no rain can make came with this rain
    sample.is_suspect |= flag is Flag.SUSPECT or part == "refused"


def _add_main(sample: Sample, reading: Reading, sensor: Named) -> None:
    flag = flag_of(reading)
    sample.at_s += reading.time_s
    sample.is_suspect |= flag is Flag.SUSPECT
    quantity = quantities.known(sensor.quantity)
    factor = quantities.factor(quantity, reading.unit) or 1.0
    if is_number(reading.sum):
        sample.sum = reading.sum * factor  # type: ignore[operator]
    if flag in _UNUSABLE:
        sample.is_failed = True
    elif isinstance(reading.value, bool):
        sample.value = reading.value
    elif is_number(reading.value):
        sample.raw = float(reading.value)  # type: ignore[arg-type]
        sample.value = sample.raw * factor
    else:
        sample.is_failed = reading.value is not None


LONGEST_REST_S = 60 * 86400.0
"""So long between two readings, or more, is a clock that was set."""

_LATE_S = 3600.0


@dataclass(frozen=True)
class Instant:
    """When readings were taken.

    Attributes:
        wall_s: Unix time.
        mono_s: Seconds of a clock that is never set, at the pace of the wall's;
            None where there is none.
        is_synchronised: Whether a time server has set the wall clock.
    """

    wall_s: float
    mono_s: float | None = None
    is_synchronised: bool = True


class Timeline:
    """Seconds that only grow; they begin at the wall time of the first readings.

    Attributes:
        now_s: The latest instant.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._last: Instant | None = None
        self._stored_wall_s: float | None = None
        self._stored_at_s = 0.0

    def take(self, instant: Instant) -> float:
        """Go on to an instant; its time, which is before `now_s` when it is late."""
        if not math.isfinite(instant.wall_s):
            return self.now_s
        if self._last is None:
            at_s = self._first(instant)
        else:
            at_s = self.now_s + self._step(self._last, instant)
        if self._last is None or at_s >= self.now_s or instant.mono_s is None:
            self._last = instant
        self.now_s = max(self.now_s, at_s)
        return self._caught_up(instant, at_s)

    def out(self) -> dict[str, float | None]:
        """For the snapshot."""
        wall_s = self._last.wall_s if self._last else self._stored_wall_s
        return {
            "at": round(self.now_s, 1),
            "wall": None if wall_s is None else round(wall_s, 1),
        }

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Go on from a snapshot; the next instant tells how long ago that was.

        Raises:
            LookupError, TypeError, ValueError: It is something else.
        """
        at_s, wall_s = number_of(entry["at"]), time_of(entry["wall"])
        self.now_s, self._last = at_s, None
        self._stored_wall_s, self._stored_at_s = wall_s, at_s

    def _first(self, instant: Instant) -> float:
        if self._stored_wall_s is None:
            return max(self.now_s, instant.wall_s)
        away_s = instant.wall_s - self._stored_wall_s
        if not 0 <= away_s <= LONGEST_REST_S:
            away_s = 0.0
        return self._stored_at_s + away_s

    def _caught_up(self, instant: Instant, at_s: float) -> float:
        """A Pi without a clock learns only later how long it was without power."""
        if self._stored_wall_s is None or not instant.is_synchronised:
            return at_s
        true_s = self._stored_at_s + instant.wall_s - self._stored_wall_s
        self._stored_wall_s = None
        ahead_s = true_s - self.now_s
        if ahead_s <= 0:
            return at_s
        self.now_s = true_s
        return true_s

    def _step(self, last: Instant, instant: Instant) -> float:
        if instant.mono_s is not None and last.mono_s is not None:
            return max(instant.mono_s - last.mono_s, -_LATE_S)
        step_s = instant.wall_s - last.wall_s
        if -_LATE_S <= step_s <= LONGEST_REST_S:
            return step_s
        return 0.0
