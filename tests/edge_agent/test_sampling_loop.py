"""The agent's loops: clock steps and hanging loops."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from queue import Empty

import pytest
from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers
from conftest import wait_until

from edge_agent import sampling_loop
from edge_agent.sampling_loop import (
    REPEAT_S,
    ClockStepDetector,
    SamplingLoop,
    SamplingPolicy,
    UrgentEvents,
)
from service_runtime.watchdog import LoopWatchdog

YEAR_S = 365.25 * 86_400
EVERY_S = 0.2


class FakeWallClock:
    """Wall clock with a settable offset in seconds, also as a `datetime` class."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset_s

    def as_datetime(self) -> type[datetime]:
        wall_clock = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(seconds=wall_clock.offset_s)

        return Shifted


@dataclass
class FakeSensor:
    """Fields of a sensor that the agent's schedule needs."""

    name: str
    unit: str | None = "mm"
    interval_s: float = EVERY_S
    line: str | None = None


@dataclass
class FakeSampler:
    """Stands in for `Sampler` and records when it is called.

    Attributes:
        at_s: Monotonic time of each call.
        hang: Event that a call waits for, if given.
        after: Called at the end of each call, as a node does with the level.
    """

    at_s: list[float] = field(default_factory=list)
    hang: threading.Event | None = None
    after: Callable[[], None] | None = None

    def sample(self, sensors: object = None, *, is_urgent: bool = False) -> None:
        self.at_s.append(time.monotonic())
        if self.hang is not None:
            self.hang.wait(10)
        if self.after is not None:
            self.after()

    def calls_since(self, start_s: float) -> list[float]:
        return [at for at in self.at_s if at >= start_s]


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> FakeWallClock:
    created = FakeWallClock()
    shifted = created.as_datetime()
    # `datetime` in C code cannot be replaced; these two modules call `now`.
    monkeypatch.setattr(schedulers, "datetime", shifted)
    monkeypatch.setattr(executors, "datetime", shifted)
    return created


@pytest.fixture
def watchdog() -> LoopWatchdog:
    return LoopWatchdog(time.monotonic)


@pytest.fixture
def start(
    wall_clock: FakeWallClock, watchdog: LoopWatchdog
) -> Iterator[Callable[..., SamplingLoop]]:
    running: list[tuple[SamplingLoop, threading.Thread]] = []

    def run(sampler: FakeSampler, *sensors: FakeSensor) -> SamplingLoop:
        created = SamplingLoop(
            sampler,  # type: ignore[arg-type]
            sensors or (FakeSensor("rain"),),  # type: ignore[arg-type]
            SamplingPolicy(60.0),
            1.0,
            watchdog,
            clock_steps=ClockStepDetector(wall_clock, time.monotonic),
        )
        thread = threading.Thread(target=created.run)
        thread.start()
        running.append((created, thread))
        return created

    yield run
    for created, thread in running:
        created.stop()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("step_s", [YEAR_S, -3600.0, -YEAR_S, 30.0])
def test_sampling_continues_after_a_clock_step(
    start: Callable[..., SamplingLoop], wall_clock: FakeWallClock, step_s: float
) -> None:
    """Sampling continues at once, without catching up on a year of missed times."""
    sampler = FakeSampler()
    start(sampler)
    wait_until(lambda: len(sampler.at_s) >= 5)
    wall_clock.offset_s = step_s
    set_at_s = time.monotonic()
    wait_until(lambda: sampler.calls_since(set_at_s + 1.5))
    time.sleep(0.5)

    elapsed_s = time.monotonic() - set_at_s
    assert len(sampler.calls_since(set_at_s)) <= 2 * elapsed_s / EVERY_S


def test_clock_step_keeps_the_schedule_of_a_slow_sensor(
    start: Callable[..., SamplingLoop], wall_clock: FakeWallClock
) -> None:
    """The next reading keeps its due time: not at once and not an hour late."""
    sampler = FakeSampler()
    start(sampler, FakeSensor("tilt", interval_s=4.0))
    wait_until(lambda: sampler.at_s)
    wall_clock.offset_s = -3600.0
    wait_until(lambda: len(sampler.at_s) == 2)

    assert 3.5 < sampler.at_s[1] - sampler.at_s[0] < 20.0


def test_hanging_sampling_job_is_reported(
    start: Callable[..., SamplingLoop],
    watchdog: LoopWatchdog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue that never returns blocks one job while other loops are healthy."""
    monkeypatch.setattr(sampling_loop, "DEADLINE_S", 0.2)
    monkeypatch.setattr(sampling_loop, "MAX_STORE_S", 0.2)
    sampler = FakeSampler(hang=threading.Event())
    start(sampler)
    wait_until(
        lambda: any(
            "sampling every 0.2 s" in late for late in watchdog.find_late_loops()
        )
    )
    sampler.hang.set()


def test_sampling_that_takes_longer_than_its_interval_is_logged_once(
    start: Callable[..., SamplingLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """APScheduler's own line names an object in memory, and comes at every turn."""
    hang, sampler = threading.Event(), FakeSampler()
    sampler.hang = hang
    with caplog.at_level("INFO"):
        start(sampler)
        try:
            wait_until(lambda: "maximum" in caplog.text or "longer" in caplog.text)
            time.sleep(5 * EVERY_S)
        finally:
            hang.set()
    found = [record.getMessage() for record in caplog.records]
    text = "sampling every 0.2 s takes longer than that: turns in between are left out"
    assert [each for each in found if "running" in each or "longer" in each] == [text]


def test_silent_scheduler_is_reported(
    start: Callable[..., SamplingLoop],
    watchdog: LoopWatchdog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a heartbeat of the scheduler's thread nothing would report it."""
    monkeypatch.setattr(sampling_loop, "SCHEDULER_SILENCE_S", 4.0)
    monkeypatch.setattr(sampling_loop, "SCHEDULER_HEARTBEAT_S", 0.2)
    created = start(FakeSampler())
    time.sleep(4.5)
    before = watchdog.find_late_loops()
    created._scheduler.pause()  # noqa: SLF001 - simulates a bug
    wait_until(
        lambda: any(
            "the schedule is silent" in late for late in watchdog.find_late_loops()
        )
    )

    assert before == ()


def test_stop_while_a_job_raises_the_level(start: Callable[..., SamplingLoop]) -> None:
    """The job changes the schedule while the scheduler waits for the job to end."""
    sampler = FakeSampler(hang=threading.Event())
    created = start(sampler, FakeSensor("rain", interval_s=60.0))
    sampler.after = lambda: created.adapt_rate(5)
    wait_until(lambda: sampler.at_s)
    created.stop()
    time.sleep(0.5)  # long enough for `shutdown` to wait for the job
    sampler.hang.set()

    # The fixture joins the loop's thread.


def test_urgent_event_waits_neither_for_all_sensors_nor_for_a_chattering_contact(
    start: Callable[..., SamplingLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wire chatters in the storm, reading all sensors takes long, and another is cut.

    The event of the other wire is sampled at once, and the chatter of the first one
    once more: its last state must be known, also before all sensors are read.
    """
    monkeypatch.setattr(sampling_loop, "REPEAT_S", 1.0)
    wires = [FakeSensor(f"w{n}", unit=None, interval_s=3600.0) for n in (1, 2)]
    sampled: list[str] = []
    hang = threading.Event()

    class SlowSampler(FakeSampler):
        def sample(self, sensors: object = None, *, is_urgent: bool = False) -> None:
            super().sample()
            chosen = sensors if isinstance(sensors, list | tuple) else wires
            sampled.append(" ".join(sensor.name for sensor in chosen))
            assert is_urgent == (len(chosen) == 1)
            if len(sampled) > 1 and len(chosen) > 1:  # after an event
                hang.wait()

    loop = start(SlowSampler(), *wires)
    wait_until(lambda: sampled == ["w1 w2"])
    try:
        for _ in range(100):
            loop.on_event("w1")
        wait_until(lambda: sampled[:3] == ["w1 w2", "w1", "w1 w2"])
        for _ in range(100):
            loop.on_event("w1")
        loop.on_event("w2")
        wait_until(lambda: sorted(sampled[3:]) == ["w1", "w2"])
    finally:
        hang.set()
    wait_until(lambda: sampled[5:] == ["w1 w2"])

    assert sampled.count("w1") == 2


def test_chattering_sensor_rests_while_another_one_is_due() -> None:
    """Its events meanwhile are one, which is due at the end of the rest."""
    now_s = 0.0
    events = UrgentEvents(lambda: now_s)

    def due() -> list[str]:
        with suppress(Empty):
            return [str(events.take(0.0)), *due()]
        return []

    events.add("w1")
    assert due() == ["w1"]
    for name in ("w1", "w2", "w1"):
        events.add(name)
    assert due() == ["w2"]
    now_s = REPEAT_S
    assert due() == ["w1"]
    now_s = 3 * REPEAT_S
    events.add("w1")
    assert due() == ["w1"]


def test_paused_node_is_healthy_and_does_not_sample(
    start: Callable[..., SamplingLoop],
    watchdog: LoopWatchdog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the end of a simulated storm the uplink continues, and no loop is late."""
    monkeypatch.setattr(sampling_loop, "SCHEDULER_SILENCE_S", 4.0)
    monkeypatch.setattr(sampling_loop, "SCHEDULER_HEARTBEAT_S", 0.2)
    sampler = FakeSampler()
    created = start(sampler)
    wait_until(lambda: sampler.at_s)
    created.pause_sampling()
    time.sleep(0.3)  # a running job may finish
    paused_at_s = time.monotonic()
    time.sleep(4.5)

    assert sampler.calls_since(paused_at_s) == []
    assert watchdog.find_late_loops() == ()
