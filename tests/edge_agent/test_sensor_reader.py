"""Sensors are read side by side, and none stops another."""

import threading
from collections.abc import Callable

import pytest

from edge_agent.sensor_reader import (
    FAILURES_BEFORE_BACKOFF,
    MAX_BACKOFF_S,
    MIN_BACKOFF_S,
    ReadPolicy,
    SensorReader,
)
from edge_agent.sensors.errors import SensorBusError, SensorError, SensorRangeError
from spatial_mqtt.senml import Reading


class Part:
    """A sensor that does what the test says."""

    quantity, unit, interval_s, warm_up_s = "tilt", "deg", 60.0, 0.0
    range, largest_step, claims = (-90.0, 90.0), 1.0, ()

    def __init__(self, name: str, does: Callable[[], list[Reading]]) -> None:
        self.name = name
        self.does = does
        self.reads = 0

    def read(self, now_s: float) -> list[Reading]:
        self.reads += 1
        return self.does()

    def state(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def well(name: str, value: float = 1.0) -> Part:
    return Part(name, lambda: [Reading(name, "deg", value)])


def broken(name: str, error: type[SensorError] = SensorRangeError) -> Part:
    def fail() -> list[Reading]:
        raise error(name, "reads nonsense", "replace it")

    return Part(name, fail)


class Bench:
    """A reader whose clock the test moves."""

    def __init__(self, *parts: Part, deadline_s: float = 5.0) -> None:
        self.now_s = 0.0
        self.parts = parts
        self.reader = SensorReader(parts, lambda: self.now_s, ReadPolicy(deadline_s))

    def read(self) -> list[Reading]:
        return self.reader.read(self.parts, 1.7e9)

    def names(self) -> list[str]:
        return [reading.name for reading in self.read()]


def test_broken_sensor_is_reported_once_and_stops_nobody() -> None:
    """The others' readings come as ever, in the order of the sensors."""
    bench = Bench(well("a"), broken("b"), well("c"))

    assert bench.names() == ["a", "b/health", "c"]
    assert bench.names() == ["a", "c"]
    assert list(bench.reader.problems) == ["b"]


def test_recovery_is_reported() -> None:
    """An analyst sees how long the gap was."""
    part = broken("b")
    bench = Bench(part)
    (said,) = bench.read()
    assert said.value == "implausible: sensor b reads nonsense; replace it"
    part.does = lambda: [Reading("b", "deg", 1.0)]
    reading, said = bench.read()

    assert (reading.value, said.name, said.value) == (1.0, "b/health", "ok")
    assert bench.reader.problems == {}


def test_garbled_transfer_is_tried_once_more_at_once() -> None:
    """Errno 121 on a long cable is no broken sensor."""
    part = broken("b", SensorBusError)
    Bench(part).read()
    assert part.reads == 2

    ranged = broken("c", SensorRangeError)
    Bench(ranged).read()
    assert ranged.reads == 1


def test_sensor_that_stays_broken_rests_ever_longer() -> None:
    """A dead probe with a time-out of seconds must not slow the node for months."""
    part = broken("b")
    bench = Bench(part)
    for _ in range(FAILURES_BEFORE_BACKOFF):
        bench.read()
    reads = part.reads
    for second in range(int(MIN_BACKOFF_S)):
        bench.now_s = second
        bench.read()
    assert part.reads == reads
    bench.now_s = MIN_BACKOFF_S
    bench.read()
    assert part.reads == reads + 1
    bench.now_s = 2 * MIN_BACKOFF_S
    bench.read()
    assert part.reads == reads + 1

    for _ in range(20):
        bench.now_s += MAX_BACKOFF_S
        bench.read()
    assert part.reads == reads + 21


def test_sensor_that_hangs_stops_nobody_and_comes_back() -> None:
    """Its thread waits for the bus; the node does not."""
    go_on = threading.Event()

    def hang() -> list[Reading]:
        go_on.wait(10)
        return [Reading("b", "deg", 1.0)]

    bench = Bench(well("a"), Part("b", hang), well("c"), deadline_s=0.2)

    assert bench.names() == ["a", "b/health", "c"]
    assert "does not return within 0.2 s" in bench.reader.problems["b"]
    assert bench.names() == ["a", "c"]
    go_on.set()
    names: list[str] = []
    for _ in range(100):
        names = bench.names()
        if "b" in names:
            break
    assert names == ["a", "b", "b/health", "c"]


@pytest.mark.parametrize("value", [90.5, -91.0])
def test_doubtful_readings_are_flagged_and_kept(value: float) -> None:
    """What cannot be is flagged 4; what changed too much, 3; neither is dropped."""
    part = well("a", 1.0)
    bench = Bench(part)
    assert bench.read()[0].extra == {}
    part.does = lambda: [Reading("a", "deg", value)]
    assert bench.read()[0].extra == {"qc": 4}
    part.does = lambda: [Reading("a", "deg", 3.0)]

    assert bench.read()[0].extra == {"qc": 3}
