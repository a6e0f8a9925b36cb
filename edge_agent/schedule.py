"""Sampling schedule: intervals by level and battery, and triggers safe against steps.

A Raspberry Pi starts with a wrong time, and APScheduler counts in wall time: after a
step back by an hour it waits for an hour, after a step forward it lists every missed
time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.base import BaseTrigger

MIN_STEP_S = 2.0
"""Smaller differences are slewing, or a thread that waited between two clocks."""


class SteadyIntervalTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler ships no types
    """Fires every interval, and skips the times that a clock step passed over.

    APScheduler's own trigger lists every missed time: a step forward by a year gave
    3 million of them.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval = timedelta(seconds=interval_s)

    def get_next_fire_time(
        self, previous_fire_time: datetime | None, now: datetime
    ) -> datetime:
        """The next time, never in the past."""
        if previous_fire_time is None:
            return now
        steady = previous_fire_time + self.interval
        return (
            steady
            if now - self.interval < steady <= now + self.interval
            else now + self.interval
        )


class ClockStepDetector:
    """Detects steps of the wall clock by comparing it with one that cannot be set.

    Args:
        wall_s: Unix time.
        mono_s: Seconds of a clock that is never set and also runs in suspend.
    """

    def __init__(
        self, wall_s: Callable[[], float], mono_s: Callable[[], float]
    ) -> None:
        self._wall_s = wall_s
        self._mono_s = mono_s
        self._offset_s = self._offset()

    def detect_step(self) -> float:
        """Seconds that the clock was set forward since the last call; 0 for none."""
        offset_s = self._offset()
        step_s = offset_s - self._offset_s
        if abs(step_s) <= MIN_STEP_S:
            return 0.0
        self._offset_s = offset_s
        return step_s

    def wall_s(self) -> float:
        """Unix time."""
        return self._wall_s()

    def _offset(self) -> float:
        return self._wall_s() - self._mono_s()


def rearm_jobs(scheduler: BaseScheduler, step_s: float, now_s: float) -> None:
    """Move every job to the time at which it would have fired without the step.

    A job that the scheduler has already moved to the new time is not changed.

    Args:
        scheduler: Its jobs have `SteadyIntervalTrigger`s.
        step_s: How far the clock was set forward.
        now_s: Unix time after that.
    """
    now = datetime.fromtimestamp(now_s, UTC)
    for job in scheduler.get_jobs():
        interval = job.trigger.interval
        due = job.next_run_time
        if due is None or now - interval <= due <= now + interval:
            continue
        moved = due + timedelta(seconds=step_s)
        is_near = now - interval <= moved <= now + interval
        job.modify(next_run_time=moved if is_near else now)


FAST_FROM_LEVEL = 3


@dataclass(frozen=True)
class SamplingMode:
    """How fast sensors are sampled now.

    Attributes:
        is_fast: The level of triage or of a notice is high.
        is_saving: The battery is low, and the level is not high.
    """

    is_fast: bool = False
    is_saving: bool = False

    def interval_s(self, usual_s: float, policy: "SamplingPolicy") -> float:
        """Time between two readings of a sensor with this usual interval."""
        if self.is_fast:
            return min(usual_s, policy.fast_interval_s)
        return usual_s * policy.stretch if self.is_saving else usual_s

    def __str__(self) -> str:
        """Name for the log."""
        return "fast" if self.is_fast else "sparing" if self.is_saving else "as set"


@dataclass(frozen=True)
class SamplingPolicy:
    """Sampling rate by level and battery.

    Attributes:
        fast_interval_s: Longest interval from `FAST_FROM_LEVEL` on.
        battery: Name of the sensor of the battery's voltage; None without battery.
        low_v: Voltage below which power is saved.
        well_v: Voltage from which it no longer is.
        stretch: Factor by which intervals are longer meanwhile.
    """

    fast_interval_s: float
    battery: str | None = None
    low_v: float = 0.0
    well_v: float = 0.0
    stretch: float = 1.0

    def choose_mode(
        self, level: int, battery_v: float | None, previous: SamplingMode
    ) -> SamplingMode:
        """Choose the sampling mode.

        The voltage of a battery rises as soon as the load falls, so saving ends at a
        higher voltage than it begins.
        """
        limit_v = self.well_v if previous.is_saving else self.low_v
        is_low = battery_v is not None and battery_v < limit_v
        is_fast = level >= FAST_FROM_LEVEL
        return SamplingMode(is_fast, is_low and not is_fast)
