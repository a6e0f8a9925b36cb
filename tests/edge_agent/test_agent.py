"""The agent's loops: the clock jumps, a loop hangs, and it is noticed or survived."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo

import pytest
from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers
from conftest import wait_until

from edge_agent import agent
from edge_agent.agent import Agent
from edge_agent.schedule import ClockStepDetector, SamplingPolicy
from service_runtime.watchdog import LoopWatchdog

YEAR_S = 365.25 * 86_400
EVERY_S = 0.2


class Wall:
    """The wall clock, which the test sets; APScheduler reads it as `datetime`."""

    def __init__(self) -> None:
        self.set_by_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.set_by_s

    def as_datetime(self) -> type[datetime]:
        wall = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(seconds=wall.set_by_s)

        return Shifted


@dataclass
class Gauge:
    """A sensor, as far as the agent looks at one."""

    name: str
    unit: str | None = "mm"
    interval_s: float = EVERY_S
    warm_up_s: float = 0.0


@dataclass
class Notes:
    """A sampler that notes when it is asked to sample."""

    at_s: list[float] = field(default_factory=list)
    hang: threading.Event | None = None

    def sample(self, sensors: object = None) -> None:
        self.at_s.append(time.monotonic())
        if self.hang is not None:
            self.hang.wait(10)

    def since(self, start_s: float) -> list[float]:
        return [at for at in self.at_s if at >= start_s]


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    made = Wall()
    shifted = made.as_datetime()
    # C code cannot be given another `datetime`; of Python's only these ask for now.
    monkeypatch.setattr(schedulers, "datetime", shifted)
    monkeypatch.setattr(executors, "datetime", shifted)
    return made


@pytest.fixture
def pulse() -> LoopWatchdog:
    return LoopWatchdog(time.monotonic)


@pytest.fixture
def start(wall: Wall, pulse: LoopWatchdog) -> Iterator[Callable[..., Agent]]:
    running: list[tuple[Agent, threading.Thread]] = []

    def run(sampler: Notes, *sensors: Gauge) -> Agent:
        made = Agent(
            sampler,  # type: ignore[arg-type]
            sensors or (Gauge("rain"),),  # type: ignore[arg-type]
            SamplingPolicy(60.0),
            1.0,
            pulse,
            clock_steps=ClockStepDetector(wall, time.monotonic),
        )
        thread = threading.Thread(target=made.run)
        thread.start()
        running.append((made, thread))
        return made

    yield run
    for made, thread in running:
        made.stop()
        thread.join()


@pytest.mark.parametrize("step_s", [YEAR_S, -3600.0, -YEAR_S, 30.0])
def test_sampling_goes_on_when_the_clock_was_set(
    start: Callable[..., Agent], wall: Wall, step_s: float
) -> None:
    """At once, and without making up for a year of missed times."""
    notes = Notes()
    start(notes)
    wait_until(lambda: len(notes.at_s) >= 5)
    wall.set_by_s = step_s
    set_at_s = time.monotonic()
    wait_until(lambda: notes.since(set_at_s + 1.5))
    time.sleep(0.5)

    passed_s = time.monotonic() - set_at_s
    assert len(notes.since(set_at_s)) <= 2 * passed_s / EVERY_S


def test_step_leaves_the_beat_of_a_slow_sensor(
    start: Callable[..., Agent], wall: Wall
) -> None:
    """Its next reading is due when it was due, not at once and not an hour late."""
    notes = Notes()
    start(notes, Gauge("tilt", interval_s=4.0))
    wait_until(lambda: notes.at_s)
    wall.set_by_s = -3600.0
    wait_until(lambda: len(notes.at_s) == 2)

    assert 3.5 < notes.at_s[1] - notes.at_s[0] < 20.0


def test_sampling_that_hangs_is_named(
    start: Callable[..., Agent], pulse: LoopWatchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that never returns holds one job; the others would look healthy."""
    monkeypatch.setattr(agent, "DEADLINE_S", 0.2)
    monkeypatch.setattr(agent, "MAX_STORE_S", 0.2)
    notes = Notes(hang=threading.Event())
    start(notes)
    wait_until(
        lambda: any("sampling every 0.2 s" in late for late in pulse.find_late_loops())
    )
    notes.hang.set()


def test_scheduler_that_sleeps_is_named(
    start: Callable[..., Agent], pulse: LoopWatchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own thread must beat, or nothing is sampled while all else lives."""
    monkeypatch.setattr(agent, "SCHEDULER_SILENCE_S", 4.0)
    monkeypatch.setattr(agent, "SCHEDULER_HEARTBEAT_S", 0.2)
    made = start(Notes())
    time.sleep(4.5)
    before = pulse.find_late_loops()
    made._scheduler.pause()  # noqa: SLF001 - as a bug would
    wait_until(
        lambda: any(
            "the schedule is silent" in late for late in pulse.find_late_loops()
        )
    )

    assert before == ()


def test_resting_node_lives_and_does_not_sample(
    start: Callable[..., Agent], pulse: LoopWatchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a simulated storm the uplink goes on, and nobody is late."""
    monkeypatch.setattr(agent, "SCHEDULER_SILENCE_S", 4.0)
    monkeypatch.setattr(agent, "SCHEDULER_HEARTBEAT_S", 0.2)
    notes = Notes()
    made = start(notes)
    wait_until(lambda: notes.at_s)
    made.pause_sampling()
    time.sleep(0.3)  # a job that has begun may end
    rested_at_s = time.monotonic()
    time.sleep(4.5)

    assert notes.since(rested_at_s) == []
    assert pulse.find_late_loops() == ()
