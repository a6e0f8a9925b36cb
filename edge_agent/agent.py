"""The agent: sampling on a schedule, the uplink beside it, until told to stop."""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from queue import SimpleQueue

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from edge_agent.sampling import Sampler
from edge_agent.sensors.base import Sensor
from edge_agent.triage import Assessment

log = logging.getLogger(__name__)

FAST_FROM_LEVEL = 3


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
    """Samples every sensor at its interval, faster while the level is high.

    Args:
        sampler: Makes the messages.
        sensors: What is sampled; those of one interval make one pack.
        fast_interval_s: Longest interval while the level is `FAST_FROM_LEVEL` or more.
        speedup: Simulated seconds for each real one.
        services: Loops that run in threads of their own: (name, run).
    """

    def __init__(
        self,
        sampler: Sampler,
        sensors: Sequence[Sensor],
        fast_interval_s: float,
        speedup: float,
        services: Sequence[tuple[str, Callable[[], None]]],
    ) -> None:
        self._sampler = sampler
        self._sensors = tuple(sensors)
        self._fast_interval_s = fast_interval_s
        self._speedup = speedup
        self._services = services
        self._is_fast = False
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

    def on_assessment(self, assessment: Assessment) -> None:
        """Sample faster while it is dangerous, and as before when it is not."""
        is_fast = assessment.level >= FAST_FROM_LEVEL
        if is_fast != self._is_fast:
            self._is_fast = is_fast
            log.info(
                "level %d: sampling %s",
                assessment.level,
                "fast" if is_fast else "as set",
            )
            self._schedule()

    def _schedule(self) -> None:
        """(Re)make one job for each interval, with the sensors that share it."""
        self._scheduler.remove_all_jobs()
        groups: dict[float, list[Sensor]] = {}
        for sensor in self._sensors:
            fast_s = min(sensor.interval_s, self._fast_interval_s)
            groups.setdefault(
                fast_s if self._is_fast else sensor.interval_s, []
            ).append(sensor)
        for interval_s, group in groups.items():
            self._scheduler.add_job(
                self._sampler.sample,
                SteadyTrigger(interval_s / self._speedup),
                args=[group],
                id=f"every {interval_s:g} s",
            )
