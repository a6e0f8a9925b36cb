"""Samples: readings by sensor in the unit of their rules; triage's own time.

Rules measure durations, such as an hour of tilt. They run on seconds that never go
back: within a run at the pace of the monotonic clock, between two runs by the wall
clock once it is set.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edge_agent import quantities
from slope_science.evidence.samples import (
    TILT_AXES,
    SensorSample,
    finite_number,
    is_finite_number,
    optional_time,
)
from slope_science.quality import FLAG_LABEL, Flag
from spatial_mqtt.senml import Reading

_UNUSABLE = {Flag.FAIL, Flag.MISSING}


class SensorDescription(Protocol):
    """Properties of a sensor that triage uses."""

    @property
    def name(self) -> str:
        """Name of the sensor."""

    @property
    def quantity(self) -> str:
        """Measured quantity."""

    @property
    def senml_unit(self) -> str | None:
        """Unit of its readings."""


def read_flag(reading: Reading) -> Flag:
    """Quality flag of a reading at its source; good if it carries none."""
    flag = reading.extra.get(FLAG_LABEL, Flag.GOOD)
    is_known = isinstance(flag, int) and flag in set(Flag)
    return Flag(flag) if is_known else Flag.SUSPECT


def group_by_sensor(
    readings: Iterable[Reading], sensors: Mapping[str, SensorDescription], at_s: float
) -> dict[str, SensorSample]:
    """Group readings by sensor; those of unknown sensors are left out.

    Args:
        readings: Readings of one instant, of any sensors.
        sensors: The node's sensors by name.
        at_s: Time of the readings, in triage's own time.
    """
    found: dict[str, SensorSample] = {}
    for reading in readings:
        name, _, part = reading.name.partition("/")
        if name not in sensors:
            continue
        sample = found.setdefault(name, SensorSample(at_s))
        if part:
            _add_part(sample, part, reading)
        else:
            _add_main(sample, reading, sensors[name])
    return found


def _add_part(sample: SensorSample, part: str, reading: Reading) -> None:
    flag = read_flag(reading)
    if not is_finite_number(reading.value) or flag in _UNUSABLE:
        return
    sample.parts[part] = float(reading.value)  # type: ignore[arg-type]
    if flag is Flag.SUSPECT and part in TILT_AXES:
        sample.suspect_axes.add(part)
        return
    # contact closures too fast for rain came with this value
    sample.is_suspect |= flag is Flag.SUSPECT or part == "refused"


def _add_main(
    sample: SensorSample, reading: Reading, sensor: SensorDescription
) -> None:
    flag = read_flag(reading)
    sample.at_s += reading.time_s
    sample.is_suspect |= flag is Flag.SUSPECT
    quantity = quantities.judged_quantity(sensor.quantity)
    factor = quantities.unit_factor(quantity, reading.unit) or 1.0
    if is_finite_number(reading.sum):
        sample.sum = reading.sum * factor  # type: ignore[operator]
    if flag in _UNUSABLE:
        sample.is_failed = True
        sample.is_missing = flag is Flag.MISSING and reading.value is None
    elif isinstance(reading.value, bool):
        sample.value = reading.value
    elif is_finite_number(reading.value):
        sample.raw = float(reading.value)  # type: ignore[arg-type]
        sample.value = sample.raw * factor
    else:
        sample.is_failed = reading.value is not None


MAX_GAP_S = 60 * 86400.0
"""A longer gap between two readings means that the clock was set."""

_LATE_S = 3600.0


@dataclass(frozen=True)
class Instant:
    """Time of readings.

    Attributes:
        wall_s: Unix time.
        mono_s: Monotonic time in seconds; None if unknown.
        is_synchronised: Whether a time server has set the wall clock.
    """

    wall_s: float
    mono_s: float | None = None
    is_synchronised: bool = True


class Timeline:
    """Seconds that never go back, starting at the wall time of the first readings.

    Attributes:
        now_s: Latest time.
        is_gap_unknown: Whether the time since the snapshot is unknown, and counts as 0.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_gap_unknown = False
        self._last: Instant | None = None
        self._stored_wall_s: float | None = None
        self._stored_at_s = 0.0
        self._is_stored_right = True

    def advance(self, instant: Instant) -> float:
        """Advance to an instant; return its time, before `now_s` for late readings."""
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

    def to_snapshot(self) -> dict[str, float | None]:
        """For the snapshot."""
        wall_s, is_right = self._stored_wall_s, self._is_stored_right
        if self._last is not None:
            wall_s, is_right = self._last.wall_s, self._last.is_synchronised
        return {
            "at": round(self.now_s, 1),
            "wall": None if wall_s is None else round(wall_s, 1),
            "set": is_right,
        }

    def restore(self, entry: Mapping[str, Any]) -> None:
        """Restore from `to_snapshot`; the next instant gives the time since then.

        Raises:
            LookupError, TypeError, ValueError: The entry has another form.
        """
        at_s, wall_s = finite_number(entry["at"]), optional_time(entry["wall"])
        self.now_s, self._last = at_s, None
        self._stored_wall_s, self._stored_at_s = wall_s, at_s
        self._is_stored_right = entry.get("set") is not False  # earlier ones have none

    def _first(self, instant: Instant) -> float:
        if self._stored_wall_s is None:
            return max(self.now_s, instant.wall_s)
        away_s = instant.wall_s - self._stored_wall_s
        # A clock that is not set may be ahead; `_caught_up` adds the true time later.
        is_right = instant.is_synchronised and self._is_stored_right
        if not is_right or not 0 <= away_s <= MAX_GAP_S:
            away_s, self.is_gap_unknown = 0.0, True
        return self._stored_at_s + away_s

    def _caught_up(self, instant: Instant, at_s: float) -> float:
        """Correct the time since the snapshot once the clock is synchronised.

        A Pi without a real-time clock starts with a wrong wall clock. Where that of the
        snapshot may have been wrong too, their difference is no time.
        """
        if self._stored_wall_s is None or not instant.is_synchronised:
            return at_s
        true_s = self._stored_at_s + instant.wall_s - self._stored_wall_s
        self._stored_wall_s = None
        ahead_s = true_s - self.now_s
        if ahead_s <= 0 or not self._is_stored_right:
            return at_s
        self.now_s, self.is_gap_unknown = true_s, False
        return true_s

    def _step(self, last: Instant, instant: Instant) -> float:
        if instant.mono_s is not None and last.mono_s is not None:
            return max(instant.mono_s - last.mono_s, -_LATE_S)
        step_s = instant.wall_s - last.wall_s
        if -_LATE_S <= step_s <= MAX_GAP_S:
            return step_s
        return 0.0
