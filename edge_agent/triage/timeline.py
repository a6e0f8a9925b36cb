"""Triage's own time: it never jumps, however the wall clock is set.

Rules measure spans: an hour of tilt, the time since a wire was mended. So they run
on seconds that only grow, at the pace of the monotonic clock. Within a run the wall
clock is not asked; between two runs it is all there is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_agent.triage.stored import number_of, time_of

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
