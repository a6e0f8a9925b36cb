"""Sampling loop: when sensors are read, and how much more often in danger.

The intervals depend on level and battery, the triggers tolerate steps of the clock: a
Raspberry Pi starts with a wrong time, and APScheduler counts in wall time. After a step
back by an hour it would wait for an hour, after a step forward list every missed time.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import Empty

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.base import BaseTrigger

from edge_agent.sampler import Sampler
from edge_agent.sensor_reader import DEADLINE_S
from edge_agent.sensors.base import Sensor
from service_runtime.watchdog import Heartbeat, LoopWatchdog, no_heartbeat

log = logging.getLogger(__name__)
_scheduler_log = log.getChild("scheduler")
_scheduler_log.setLevel(logging.ERROR)  # `_note_skipped` says what it warns of

CLOCK_CHECK_S = 1.0
"""Interval at which the wall clock is checked for a step."""

SCHEDULER_HEARTBEAT_S = 5.0
SCHEDULER_SILENCE_S = 30.0
MAX_STORE_S = 60.0
"""Longest time that a worn card takes to store readings; beyond that it hangs."""


REPEAT_S = 2.0
"""Least time between two readings of a sensor for its urgent events."""

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


class UrgentEvents:
    """Urgent events of sensors, each sensor at most every `REPEAT_S`.

    A contact that chatters in the wind gives thousands of events. They must neither
    delay the event of another sensor nor be sampled for hours afterwards. The last one
    is always sampled, because it may be the one that lasts.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due_s: dict[str, float] = {}
        self._rests_until_s: dict[str, float] = {}
        self._is_stopped = False

    def add(self, name: str) -> None:
        """Add an event; those of a sensor that is due already are one event."""
        with self._changed:
            now_s = self._clock()
            due_s = max(now_s, self._rests_until_s.get(name, now_s))
            self._due_s.setdefault(name, due_s)
            self._changed.notify()

    def take(self, timeout_s: float) -> str | None:
        """The sensor of the event that is due first; None after `stop`.

        Raises:
            Empty: None is due in time.
        """
        with self._changed:
            ends_s = self._clock() + timeout_s
            while not self._is_stopped:
                now_s = self._clock()
                name = min(self._due_s, key=self._due_s.__getitem__, default=None)
                if name is not None and self._due_s[name] <= now_s:
                    del self._due_s[name]
                    self._rests_until_s[name] = now_s + REPEAT_S
                    return name
                if now_s >= ends_s:
                    raise Empty
                next_s = ends_s if name is None else min(ends_s, self._due_s[name])
                self._changed.wait(next_s - now_s)
            return None

    def stop(self) -> None:
        """Let `take` return None."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()


class SamplingLoop:
    """Samples every sensor at its interval: faster in danger, slower on a low battery.

    Args:
        sampler: Makes the messages.
        sensors: The sensors; those of one interval are sampled into one pack.
        policy: When they are sampled more or less often than set.
        speedup: Simulated seconds for each real one.
        pulse: Watches the loops.
        clock_steps: Detects steps of the clock that the schedule runs by.
    """

    def __init__(
        self,
        sampler: Sampler,
        sensors: Sequence[Sensor],
        policy: SamplingPolicy,
        speedup: float,
        pulse: LoopWatchdog,
        *,
        clock_steps: ClockStepDetector,
    ) -> None:
        self._sampler = sampler
        self._sensors = tuple(sensors)
        self._policy = policy
        self._speedup = speedup
        self._pulse = pulse
        self._steps = clock_steps
        self._is_paused = False
        self._is_stopped = False
        self._scheduler_beat: Heartbeat = no_heartbeat
        lines = Counter(s.line for s in self._sensors if s.line is not None)
        turns = max(lines.values(), default=1)  # each sensor of a line in its turn
        self._limit_s = turns * DEADLINE_S + MAX_STORE_S
        self._mode = SamplingMode()
        self._battery_v: float | None = None
        self._mode_lock = threading.Lock()
        self._events = UrgentEvents(pulse.clock)
        self._urgent = {s.name: s for s in self._sensors if s.unit is None}
        self._wants_follow_up = threading.Event()
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(4), "beat": ThreadPoolExecutor(1)},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": None,
            },
            timezone="UTC",
            logger=_scheduler_log,
        )
        self._scheduler.add_listener(self._note_skipped, EVENT_JOB_MAX_INSTANCES)
        self._skipped: set[str] = set()

    def run(self) -> None:
        """Work until `stop`."""
        with (
            self._pulse.watch_loop(
                "the schedule", SCHEDULER_SILENCE_S
            ) as scheduler_beat,
            self._pulse.watch_loop("the loop of events", self._limit_s) as beat,
        ):
            self._scheduler_beat = scheduler_beat
            with self._mode_lock:
                self._schedule()
            self._scheduler.start()
            follow_up = threading.Thread(
                target=self._follow_up, name="follow-up", daemon=True
            )
            follow_up.start()
            self._serve_events(beat)
        # Shutting down holds a lock of the scheduler while it waits for the jobs; a job
        # that changed the schedule meanwhile would wait for that lock for ever.
        with self._mode_lock:
            self._is_stopped = True
        self._wants_follow_up.set()
        follow_up.join()
        self._scheduler.shutdown()

    def stop(self) -> None:
        """End `run`; queued messages stay queued."""
        self._events.stop()

    def pause_sampling(self) -> None:
        """Stop sampling; the uplink keeps sending."""
        with self._mode_lock:
            self._is_paused = True
            self._schedule()

    def on_event(self, name: str) -> None:
        """Sample a sensor with an urgent event at once. Called by the pins' thread."""
        if name in self._urgent:
            self._events.add(name)

    def adapt_rate(self, level: int, battery_v: float | None = None) -> None:
        """Choose the sampling rate by level and battery.

        Args:
            level: The highest of triage and notices.
            battery_v: Voltage of the battery; None when it was not measured.
        """
        with self._mode_lock:
            if battery_v is not None:
                self._battery_v = battery_v
            mode = self._policy.choose_mode(level, self._battery_v, self._mode)
            if mode == self._mode:
                return
            self._mode = mode
            log.info("level %d: sampling %s", level, mode)
            self._schedule()

    def _serve_events(self, beat: Heartbeat) -> None:
        while True:
            beat()
            self._check_clock()
            try:
                name = self._events.take(CLOCK_CHECK_S)
            except Empty:
                continue
            if name is None:
                return
            # The urgent reading first, by itself; then all sensors.
            self._sampler.sample([self._urgent[name]], is_urgent=True)
            self._wants_follow_up.set()

    def _follow_up(self) -> None:
        """Sample all sensors after an event.

        In a thread of its own: a tilt burst takes 16 s, and the next event must not
        wait for it.
        """
        while self._wants_follow_up.wait() and not self._is_stopped:
            self._wants_follow_up.clear()
            self._sample(self._sensors, "after an event")

    def _check_clock(self) -> None:
        step_s = self._steps.detect_step()
        if step_s:
            log.warning("the clock was set by %+.0f s; sampling goes on", step_s)
            with self._mode_lock:
                rearm_jobs(self._scheduler, step_s, self._steps.wall_s())

    def _sample(self, group: Sequence[Sensor], name: str) -> None:
        with self._pulse.watch_loop(f"sampling {name}", self._limit_s):
            self._sampler.sample(group)

    def _note_skipped(self, event: JobSubmissionEvent) -> None:
        """Log once for each schedule that a sampling outlasts its interval.

        In danger that is usual: a burst of tilt takes 16 s.
        """
        if event.job_id not in self._skipped:
            self._skipped.add(event.job_id)
            text = "sampling %s takes longer than that: turns in between are left out"
            log.info(text, event.job_id)

    def _schedule(self) -> None:
        """Replace all jobs: one for each interval, with the sensors that share it."""
        if self._is_stopped:
            return
        self._scheduler.remove_all_jobs()
        self._skipped.clear()
        self._scheduler.add_job(
            self._scheduler_beat,
            SteadyIntervalTrigger(SCHEDULER_HEARTBEAT_S),
            executor="beat",
        )
        groups: dict[float, list[Sensor]] = {}
        for sensor in () if self._is_paused else self._sensors:
            interval_s = self._mode.interval_s(sensor.interval_s, self._policy)
            groups.setdefault(interval_s, []).append(sensor)
        for interval_s, group in groups.items():
            name = f"every {interval_s:g} s"
            self._scheduler.add_job(
                self._sample,
                SteadyIntervalTrigger(interval_s / self._speedup),
                args=[group, name],
                id=name,
            )
