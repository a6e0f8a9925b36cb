"""Sampling loop: runs the sampler on a schedule that tolerates steps of the clock."""

import logging
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from edge_agent.sampler import Sampler
from edge_agent.schedule import (
    ClockStepDetector,
    SamplingMode,
    SamplingPolicy,
    SteadyIntervalTrigger,
    rearm_jobs,
)
from edge_agent.sensor_reader import DEADLINE_S
from edge_agent.sensors.base import Sensor
from service_runtime.watchdog import Heartbeat, LoopWatchdog, no_heartbeat

log = logging.getLogger(__name__)

CLOCK_CHECK_S = 1.0
"""Interval at which the wall clock is checked for a step."""

SCHEDULER_HEARTBEAT_S = 5.0
SCHEDULER_SILENCE_S = 30.0
MAX_STORE_S = 60.0
"""Longest time that a worn card takes to store readings; beyond that it hangs."""


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
        warm_up_s = max((sensor.warm_up_s for sensor in self._sensors), default=0.0)
        self._limit_s = DEADLINE_S + warm_up_s + MAX_STORE_S
        self._mode = SamplingMode()
        self._battery_v: float | None = None
        self._mode_lock = threading.Lock()
        self._events: SimpleQueue[str | None] = SimpleQueue()
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(4), "beat": ThreadPoolExecutor(1)},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": None,
            },
            timezone="UTC",
        )

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
            self._serve_events(beat)
        # Shutting down holds a lock of the scheduler while it waits for the jobs; a job
        # that changed the schedule meanwhile would wait for that lock for ever.
        with self._mode_lock:
            self._is_stopped = True
        self._scheduler.shutdown()

    def stop(self) -> None:
        """End `run`; queued messages stay queued."""
        self._events.put(None)

    def pause_sampling(self) -> None:
        """Stop sampling; the uplink keeps sending."""
        with self._mode_lock:
            self._is_paused = True
            self._schedule()

    def on_event(self, name: str) -> None:
        """Sample a sensor with an urgent event at once. Called by the pins' thread."""
        self._events.put(name)

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
        urgent = {
            sensor.name: sensor for sensor in self._sensors if sensor.unit is None
        }
        while True:
            beat()
            self._check_clock()
            try:
                name = self._events.get(timeout=CLOCK_CHECK_S)
            except Empty:
                continue
            if name is None:
                return
            if name in urgent:
                # The urgent reading first, by itself; then all sensors.
                self._sampler.sample([urgent[name]])
                beat()
                self._sampler.sample()

    def _check_clock(self) -> None:
        step_s = self._steps.detect_step()
        if step_s:
            log.warning("the clock was set by %+.0f s; sampling goes on", step_s)
            with self._mode_lock:
                rearm_jobs(self._scheduler, step_s, self._steps.wall_s())

    def _sample(self, group: Sequence[Sensor], name: str) -> None:
        with self._pulse.watch_loop(f"sampling {name}", self._limit_s):
            self._sampler.sample(group)

    def _schedule(self) -> None:
        """Replace all jobs: one for each interval, with the sensors that share it."""
        if self._is_stopped:
            return
        self._scheduler.remove_all_jobs()
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
