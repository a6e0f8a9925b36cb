"""`SensorReader`: sensors are read concurrently, and none blocks another."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable

import pytest
from conftest import wait_until

from edge_agent.sensor_reader import (
    FAILURES_BEFORE_BACKOFF,
    MAX_BACKOFF_S,
    MIN_BACKOFF_S,
    ReadPolicy,
    SensorReader,
)
from edge_agent.sensors.base import SensorBusError, SensorError, SensorRangeError
from spatial_mqtt.senml import Reading


class FakeSensor:
    """A sensor whose `read` calls a replaceable function."""

    quantity, unit, interval_s, warm_up_s = "tilt", "deg", 60.0, 0.0
    range, largest_step, is_noisy, claims = (-90.0, 90.0), 1.0, True, ()

    def __init__(
        self,
        name: str,
        on_read: Callable[[], list[Reading]],
        line: str | None = None,
    ) -> None:
        self.name = name
        self.line = line
        self.on_read = on_read
        self.reads = 0

    def read(self, now_s: float) -> list[Reading]:
        self.reads += 1
        return self.on_read()

    def state(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def healthy(name: str, value: float = 1.0) -> FakeSensor:
    return FakeSensor(name, lambda: [Reading(name, "deg", value)])


def broken(name: str, error: type[SensorError] = SensorRangeError) -> FakeSensor:
    def fail() -> list[Reading]:
        raise error(name, "reads nonsense", "replace it")

    return FakeSensor(name, fail)


class ReaderHarness:
    """A reader with a settable clock."""

    def __init__(self, *sensors: FakeSensor, deadline_s: float = 5.0) -> None:
        self.now_s = 0.0
        self.sensors = sensors
        self.reader = SensorReader(sensors, lambda: self.now_s, ReadPolicy(deadline_s))

    def read(self, *, is_urgent: bool = False) -> list[Reading]:
        return self.reader.read(self.sensors, 1.7e9, is_urgent=is_urgent)

    def names(self) -> list[str]:
        return [reading.name for reading in self.read()]


def test_broken_sensor_is_reported_once_and_others_are_read() -> None:
    """The other readings come as usual, in the order of the sensors."""
    harness = ReaderHarness(healthy("a"), broken("b"), healthy("c"))

    assert harness.names() == ["a", "b/health", "c"]
    assert harness.names() == ["a", "c"]
    assert list(harness.reader.problems) == ["b"]


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), OSError(5, "EIO")])
def test_defect_of_a_driver_stops_no_other_sensor(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent would end and start again for ever, and warn of nothing."""

    def fail() -> list[Reading]:
        raise error

    harness = ReaderHarness(healthy("a"), FakeSensor("b", fail))
    reading, health = harness.read()

    assert (reading.name, health.name) == ("a", "b/health")
    assert str(health.value).startswith(
        f"driver fault: sensor b cannot be read: {type(error).__name__}: {error}; "
    )
    assert harness.names() == ["a"]
    assert caplog.text.count("Traceback") == 1
    assert list(harness.reader.problems) == ["b"]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_value_that_is_no_number_is_not_sent(value: float) -> None:
    """A gateway refuses its whole message, with the readings of the other sensors."""
    sensor = FakeSensor(
        "b", lambda: [Reading("b/x", "deg", 1.0), Reading("b/y", "deg", value)]
    )
    harness = ReaderHarness(healthy("a"), sensor)
    *readings, health = harness.read()

    assert [reading.name for reading in readings] == ["a", "b/x"]
    assert health.value == (
        "implausible: sensor b gives a value that is no number: "
        f"b/y is {value}; power-cycle it; replace it"
    )
    sensor.on_read = lambda: [Reading("b", "mm", 1.0, sum=value)]
    assert harness.names() == ["a"]


def test_recovery_is_reported() -> None:
    """The health reading with "ok" ends the gap for an analyst."""
    sensor = broken("b")
    harness = ReaderHarness(sensor)
    (health,) = harness.read()
    assert health.value == "implausible: sensor b reads nonsense; replace it"
    sensor.on_read = lambda: [Reading("b", "deg", 1.0)]
    reading, health = harness.read()

    assert (reading.value, health.name, health.value) == (1.0, "b/health", "ok")
    assert harness.reader.problems == {}


def test_bus_error_is_retried_once_at_once() -> None:
    """Errno 121 on a long cable is often transient; a range error is not retried."""
    sensor = broken("b", SensorBusError)
    ReaderHarness(sensor).read()
    assert sensor.reads == 2

    out_of_range = broken("c", SensorRangeError)
    ReaderHarness(out_of_range).read()
    assert out_of_range.reads == 1


def test_backoff_of_a_broken_sensor_grows() -> None:
    """A dead probe with a time-out of seconds must not slow down every cycle."""
    sensor = broken("b")
    harness = ReaderHarness(sensor)
    for _ in range(FAILURES_BEFORE_BACKOFF):
        harness.read()
    reads = sensor.reads
    for second in range(int(MIN_BACKOFF_S)):
        harness.now_s = second
        harness.read()
    assert sensor.reads == reads
    harness.now_s = MIN_BACKOFF_S
    harness.read()
    assert sensor.reads == reads + 1
    harness.now_s = 2 * MIN_BACKOFF_S
    harness.read()
    assert sensor.reads == reads + 1

    for _ in range(20):
        harness.now_s += MAX_BACKOFF_S
        harness.read()
    assert sensor.reads == reads + 21


def test_urgent_event_is_read_in_a_backoff() -> None:
    """A wire that was shorted by a slide is then cut by it.

    An urgent reading that fails, as of a contact that chatters, prolongs no back-off.
    """
    wire = broken("wire")
    harness = ReaderHarness(wire)
    for _ in range(FAILURES_BEFORE_BACKOFF):
        harness.read()
    for _ in range(20):
        assert harness.read(is_urgent=True) == []
    assert wire.reads == FAILURES_BEFORE_BACKOFF + 20
    harness.now_s = MIN_BACKOFF_S
    harness.read()
    assert wire.reads == FAILURES_BEFORE_BACKOFF + 21

    wire.on_read = lambda: [Reading("wire", None, True)]
    assert harness.names() == []
    assert [r.name for r in harness.read(is_urgent=True)] == ["wire", "wire/health"]


def test_hanging_sensor_does_not_block_others_and_recovers() -> None:
    """Its thread waits for the bus; the reader returns after the deadline."""
    go_on = threading.Event()

    def hang() -> list[Reading]:
        go_on.wait(10)
        return [Reading("b", "deg", 1.0)]

    harness = ReaderHarness(
        healthy("a"), FakeSensor("b", hang), healthy("c"), deadline_s=0.2
    )

    assert harness.names() == ["a", "b/health", "c"]
    assert "does not return within 0.2 s" in harness.reader.problems["b"]
    assert harness.names() == ["a", "c"]
    assert [r.name for r in harness.read(is_urgent=True)] == ["a", "c"]
    go_on.set()
    names: list[str] = []
    for _ in range(100):
        names = harness.names()
        if "b" in names:
            break
    assert names == ["a", "b", "b/health", "c"]


def test_sensor_that_is_always_late_is_paused() -> None:
    """A dropped result counts as a failure, so that it does not delay each round."""
    go_on = threading.Event()
    late = FakeSensor("b", lambda: [Reading("b", "deg", go_on.wait(10))])
    harness = ReaderHarness(late, deadline_s=0.05)

    def read_once() -> None:
        go_on.clear()
        harness.read()
        go_on.set()
        wait_until(lambda: "read b" not in {t.name for t in threading.enumerate()})

    for _ in range(FAILURES_BEFORE_BACKOFF + 2):
        read_once()
    assert late.reads == FAILURES_BEFORE_BACKOFF
    assert "does not return within 0.05 s" in harness.reader.problems["b"]
    harness.now_s = MIN_BACKOFF_S
    read_once()
    assert late.reads == FAILURES_BEFORE_BACKOFF + 1


def test_probe_that_settles_for_an_hour_has_the_same_deadline() -> None:
    """No driver waits for it; a hanging one would withhold the others of its pack."""
    sensor = FakeSensor("b", lambda: threading.Event().wait(2) or [])
    sensor.warm_up_s = 3600.0
    harness = ReaderHarness(healthy("a"), sensor, deadline_s=0.2)

    assert harness.names() == ["a", "b/health"]
    assert "does not return within 0.2 s" in harness.reader.problems["b"]


class Line:
    """A serial line; each reading holds it until the deadline is nearly over."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.go_on = threading.Event()

    def sensor(self, name: str, *, hangs: bool = False) -> FakeSensor:
        def read() -> list[Reading]:
            with self.busy:
                self.go_on.wait(20 if hangs else 0.6)
                return [Reading(name, "deg", 1.0)]

        return FakeSensor(name, read, "/dev/ttyUSB0")


def test_sensors_that_wait_for_their_line_do_not_hang() -> None:
    """Different probes on one line take longer together than a reading may."""
    line = Line()
    sensors = [line.sensor(name) for name in "abcde"]
    reader = SensorReader(sensors, time.monotonic, ReadPolicy(1.0))

    assert [r.name for r in reader.read(sensors, 1.7e9)] == list("abcde")
    assert reader.problems == {}


def test_sensor_that_hangs_on_its_line_is_reported_with_those_that_wait() -> None:
    """A deadline after the last one that was read, and not a deadline each."""
    line = Line()
    first, *others = [line.sensor(name, hangs=name != "a") for name in "abcd"]
    reader = SensorReader([first, *others], time.monotonic, ReadPolicy(1.0))
    began_s = time.monotonic()
    names = [r.name for r in reader.read([first], 1.7e9)]
    names += [r.name for r in reader.read(others, 1.7e9)]
    took_s = time.monotonic() - began_s
    line.go_on.set()

    assert names == ["a", "b/health", "c/health", "d/health"]
    assert took_s < 3.0


def test_reading_that_waits_for_another_of_its_sensor_does_not_hang() -> None:
    """After an event the sensors are read twice at once: fast, and for the event."""

    def burst() -> list[Reading]:
        threading.Event().wait(0.6)
        return [Reading("b", "deg", 1.0)]

    sensor = FakeSensor("b", burst)
    reader = SensorReader([sensor], time.monotonic, ReadPolicy(1.0))
    found = list[Reading]()
    other = threading.Thread(target=lambda: found.extend(reader.read([sensor], 1.7e9)))
    other.start()
    found += reader.read([sensor], 1.7e9)
    other.join()

    assert [r.name for r in found] == ["b", "b"]
    assert reader.problems == {}


def test_recovery_is_reported_after_two_readings_at_once() -> None:
    """A wire is cut during a scheduled reading: the same sensor is read once more.

    The second reading is over its deadline while the first one is not. The sensor
    works, so the first one counts and says so; else "hangs" would stay for ever.
    """
    reading, go_on = threading.Event(), threading.Event()
    scheduled, following = list[Reading](), list[Reading]()

    late_s = itertools.count(0.0, 100.0)

    def mono_s() -> float:
        is_second = threading.current_thread() is threading.main_thread()
        return next(late_s) if is_second and not go_on.is_set() else 0.0

    def slow() -> list[Reading]:
        reading.set()
        go_on.wait()
        return [Reading("b", "deg", 1.0)]

    sensors = [FakeSensor("b", slow)]
    reader = SensorReader(sensors, mono_s, ReadPolicy(60.0))
    thread = threading.Thread(
        target=lambda: scheduled.extend(reader.read(sensors, 1.7e9))
    )
    thread.start()
    reading.wait()
    [late] = reader.read(sensors, 1.7e9)
    go_on.set()
    thread.join()
    # Until the second reading, whose result is dropped, has ended.
    wait_until(lambda: following.extend(reader.read(sensors, 1.7e9)) or following)

    assert "does not return" in str(late.value)
    assert [(r.name, r.value) for r in (*scheduled, *following)] == [
        ("b", 1.0),
        ("b/health", "ok"),
        ("b", 1.0),
    ]


@pytest.mark.parametrize("value", [90.5, -91.0])
def test_suspect_readings_are_flagged_and_kept(value: float) -> None:
    """A value out of range gets flag 4, a large step flag 3; neither is dropped."""
    sensor = healthy("a", 1.0)
    harness = ReaderHarness(sensor)
    assert harness.read()[0].extra == {}
    sensor.on_read = lambda: [Reading("a", "deg", value)]
    assert harness.read()[0].extra == {"qc": 4}
    sensor.on_read = lambda: [Reading("a", "deg", 3.0)]

    assert harness.read()[0].extra == {"qc": 3}


def test_health_of_a_driver_that_an_error_has_interrupted_is_sent_again() -> None:
    """A gauge that flapped, was stuck and flaps on has the health as before."""
    sensor = healthy("rain")
    harness = ReaderHarness(sensor)
    flaps = "flaps: more than 20 closures a minute"
    sensor.on_read = lambda: [Reading("rain/health", None, flaps)]
    harness.read()
    sensor.on_read = broken("rain").on_read
    harness.read()
    sensor.on_read = lambda: [Reading("rain", "mm", 0.0)]

    assert [r.value for r in harness.read()] == [0.0, flaps]
    assert harness.reader.problems == {"rain": f"sensor rain {flaps}"}
    assert [r.value for r in harness.read()] == [0.0]


def test_health_that_a_driver_reports_is_a_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A gauge that flaps gives readings, and is not well; the journal has it once."""
    caplog.set_level(logging.INFO)
    sensor = healthy("rain")
    harness = ReaderHarness(sensor)
    reading = Reading("rain", "mm", 0.0)
    for health in ("flaps: more than 20 closures a minute", None):
        sensor.on_read = lambda text=health: [
            reading, *([Reading("rain/health", None, text)] if text else ())
        ]  # fmt: skip
        harness.read()
        assert harness.reader.problems == {
            "rain": "sensor rain flaps: more than 20 closures a minute"
        }
    sensor.on_read = lambda: [reading, Reading("rain/health", None, "ok")]
    harness.read()
    assert harness.reader.problems == {}
    assert harness.reader.errors == {}
    assert caplog.messages == [
        "sensor rain: flaps: more than 20 closures a minute",
        "sensor rain: ok",
    ]


def test_readings_with_a_flag_for_an_hour_are_a_problem(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As of a frozen tilt meter; not a single jump."""
    caplog.set_level(logging.INFO)
    sensor = healthy("a", 95.0)
    harness = ReaderHarness(sensor)
    for harness.now_s in (0.0, 1800.0, 3599.0):
        harness.read()
        assert harness.reader.problems == {}
    for harness.now_s in (3600.0, 7200.0):
        harness.read()
        assert list(harness.reader.problems) == ["a"]
    sensor.on_read = lambda: [Reading("a", "deg", 1.0)]
    harness.read()
    assert harness.reader.problems == {}
    assert caplog.messages == [
        "sensor a gives doubtful readings for an hour; check it",
        "readings of sensor a are good again",
    ]
