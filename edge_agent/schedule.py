"""A schedule that no step of the wall clock stops: a Pi starts with a wrong time.

APScheduler counts in wall time. It sleeps on when the clock was set back, an hour
for an hour, and lists every missed time when it was set forward.

How often sensors are read: by danger, by notice, by what the battery has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.base import BaseTrigger

SMALLEST_STEP_S = 2.0
"""What is less is slewing, or a thread that had to wait between two clocks."""


class SteadyTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler ships no types
    """Fires every interval, and jumps over what a clock step would have missed.

    APScheduler's own trigger lists every missed time: a year's step forward made
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


class Steps:
    """Finds steps of the wall clock: it is compared with one that cannot be set.

    Args:
        wall_s: Unix time.
        mono_s: Seconds of a clock that nobody sets, which also runs in sleep.
    """

    def __init__(
        self, wall_s: Callable[[], float], mono_s: Callable[[], float]
    ) -> None:
        self._wall_s = wall_s
        self._mono_s = mono_s
        self._offset_s = self._offset()

    def seen(self) -> float:
        """Seconds that the clock was set forward since the last look; 0 for none."""
        offset_s = self._offset()
        step_s = offset_s - self._offset_s
        if abs(step_s) <= SMALLEST_STEP_S:
            return 0.0
        self._offset_s = offset_s
        return step_s

    def wall_s(self) -> float:
        """Unix time."""
        return self._wall_s()

    def _offset(self) -> float:
        return self._wall_s() - self._mono_s()


def rearm(scheduler: BaseScheduler, step_s: float, now_s: float) -> None:
    """Let every steady job fire when it would have fired without the step.

    A job that the scheduler has already moved to the new time is left alone.

    Args:
        scheduler: Its jobs have `SteadyTrigger`s.
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
class Pace:
    """A way of sampling.

    Attributes:
        is_fast: Somebody sees danger here: we do, or an analyst.
        is_saving: The battery is low, and nobody sees danger.
    """

    is_fast: bool = False
    is_saving: bool = False

    def interval_s(self, usual_s: float, habits: "Habits") -> float:
        """Time between two readings of a sensor with a usual interval."""
        if self.is_fast:
            return min(usual_s, habits.fast_interval_s)
        return usual_s * habits.stretch if self.is_saving else usual_s

    def __str__(self) -> str:
        """For the log."""
        return "fast" if self.is_fast else "sparing" if self.is_saving else "as set"


@dataclass(frozen=True)
class Habits:
    """How a node samples.

    Attributes:
        fast_interval_s: Longest interval while there is danger.
        battery: Name of the sensor of the battery's voltage; None without battery.
        low_v: Below it we save power.
        well_v: From here on we no longer do.
        stretch: How many times longer the intervals are meanwhile.
    """

    fast_interval_s: float
    battery: str | None = None
    low_v: float = 0.0
    well_v: float = 0.0
    stretch: float = 1.0

    def pace(self, level: int, battery_v: float | None, before: Pace) -> Pace:
        """The pace that follows from danger and battery.

        A battery recovers a little as soon as it is spared, so saving ends only
        at a higher voltage than it began.
        """
        limit_v = self.well_v if before.is_saving else self.low_v
        is_low = battery_v is not None and battery_v < limit_v
        is_fast = level >= FAST_FROM_LEVEL
        return Pace(is_fast, is_low and not is_fast)
