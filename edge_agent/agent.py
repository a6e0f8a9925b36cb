"""The agent: sampling on a schedule, the uplink beside it, until told to stop."""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from queue import SimpleQueue

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from edge_agent.pace import Habits, Pace
from edge_agent.sampling import Sampler
from edge_agent.sensors.base import Sensor

log = logging.getLogger(__name__)


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


class Agent:
    """Samples every sensor at its interval, faster in danger, sparing with power.

    Args:
        sampler: Makes the messages.
        sensors: What is sampled; those of one interval make one pack.
        habits: How often they are read, and when more or less often.
        speedup: Simulated seconds for each real one.
        services: Loops that run in threads of their own: (name, run).
    """

    def __init__(
        self,
        sampler: Sampler,
        sensors: Sequence[Sensor],
        habits: Habits,
        speedup: float,
        services: Sequence[tuple[str, Callable[[], None]]],
    ) -> None:
        self._sampler = sampler
        self._sensors = tuple(sensors)
        self._habits = habits
        self._speedup = speedup
        self._services = services
        self._pace = Pace()
        self._battery_v: float | None = None
        self._adapting = threading.Lock()
        self._events: SimpleQueue[str | None] = SimpleQueue()
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(4)},
            job_defaults={
                "coalesce": True,
                "max_instances": 1,
                "misfire_grace_time": None,
            },
            timezone="UTC",
        )

    def run(self) -> None:
        """Work until `stop`."""
        self._schedule()
        self._scheduler.start()
        for service, run in self._services:
            threading.Thread(target=run, name=service, daemon=True).start()
        urgent = {
            sensor.name: sensor for sensor in self._sensors if sensor.unit is None
        }
        while (name := self._events.get()) is not None:
            if name in urgent:
                # The news at once, by itself; then everything the node knows.
                self._sampler.sample([urgent[name]])
                self._sampler.sample()
        self._scheduler.shutdown()

    def stop(self) -> None:
        """End `run`; what is queued stays queued."""
        self._events.put(None)

    def rest(self) -> None:
        """Stop sampling; the uplink goes on."""
        self._scheduler.pause()

    def on_event(self, name: str) -> None:
        """A sensor has something that should not wait. Called by the pins' thread."""
        self._events.put(name)

    def adapt(self, level: int, battery_v: float | None = None) -> None:
        """Sample as often as danger and battery ask for.

        Args:
            level: The highest that anybody sees here: triage, or a notice.
            battery_v: Voltage of the battery, when it was just measured.
        """
        with self._adapting:
            if battery_v is not None:
                self._battery_v = battery_v
            pace = self._habits.pace(level, self._battery_v, self._pace)
            if pace == self._pace:
                return
            self._pace = pace
            log.info("level %d: sampling %s", level, pace)
            self._schedule()

    def on_clock_step(self) -> None:
        """Begin the schedule anew: the scheduler waits for a time by the old clock.

        After a step back it would wait until the old time comes again.
        """
        with self._adapting:
            self._schedule()

    def _schedule(self) -> None:
        """(Re)make one job for each interval, with the sensors that share it."""
        self._scheduler.remove_all_jobs()
        groups: dict[float, list[Sensor]] = {}
        for sensor in self._sensors:
            interval_s = self._pace.interval_s(sensor.interval_s, self._habits)
            groups.setdefault(interval_s, []).append(sensor)
        for interval_s, group in groups.items():
            self._scheduler.add_job(
                self._sampler.sample,
                SteadyTrigger(interval_s / self._speedup),
                args=[group],
                id=f"every {interval_s:g} s",
            )
