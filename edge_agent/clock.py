"""Clocks of the agent: wall time is data, monotonic time orders and ages.

Only `edge_agent.app` and the commands make one.

Rules measure durations, such as an hour of tilt. They run on a `Timeline`: seconds that
never go back, within a run at the pace of the monotonic clock, between two runs by the
wall clock once it is set.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service_runtime.machine_check import is_clock_synchronised
from slope_science.evidence.samples import finite_number, optional_time

SET_CLOCK_STATE = "clock"
"""State of the queue: the last Unix time, in seconds, of a clock that was set."""

SYNCHRONISED = Path("/run/systemd/timesync/synchronized")


class Clock(Protocol):
    """Wall time and monotonic time of a node."""

    speedup: float
    """Seconds of wall time for each monotonic second; 1 except in a simulation."""

    def wall_s(self) -> float:
        """Unix time."""

    def mono_s(self) -> float:
        """Seconds since the machine started, including those in suspend."""

    def is_synchronised(self) -> bool:
        """Whether a time server has set the wall time since the start."""


class SystemClock:
    """The machine's clocks."""

    speedup = 1.0
    _was_set = False

    def wall_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_synchronised(self) -> bool:
        # A Pi without a real-time clock starts with a time in the past. Only timesyncd
        # makes the file; the kernel forgets nine hours after a server's last answer.
        if not self._was_set:
            self._was_set = SYNCHRONISED.exists() or is_clock_synchronised()
        return self._was_set


class SimulatedClock:
    """Wall time that runs faster, the same for all processes of a simulation.

    Args:
        start_s: Unix time at which the simulated world begins.
        epoch_s: Real Unix time of that moment.
        speedup: Simulated seconds for each real one.
    """

    def __init__(self, start_s: float, epoch_s: float, speedup: float) -> None:
        self.speedup = speedup
        self._start_s = start_s
        self._epoch_s = epoch_s

    def wall_s(self) -> float:
        return self._start_s + (time.time() - self._epoch_s) * self.speedup

    def mono_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_synchronised(self) -> bool:
        return True


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
        if self._stored_wall_s is not None and self._is_stored_right:
            # not synchronised since the snapshot, whose right time goes on
            wall_s = self._stored_wall_s + self.now_s - self._stored_at_s
            is_right = True
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
