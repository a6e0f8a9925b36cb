"""Live check: each event at a sensor is shown, also while other sensors fail."""

import threading
import time

import pytest
from conftest import wait_until
from slope_bench import START_S, opened

from edge_agent.cli.live_check import (
    READ_POLICY,
    LiveCheck,
    LiveSensor,
    Screen,
    with_few_samples,
)
from edge_agent.cli.sensor_check import SensorCheck
from edge_agent.sensor_reader import DEADLINE_S
from edge_agent.sensors.base import BaseSensor, Health
from edge_agent.sensors.registry import parse_sensors
from edge_agent.sensors.sdi12 import Sdi12Settings
from edge_agent.simulator.board import Board
from edge_agent.simulator.buses import Fault
from service_runtime.settings import describe_settings
from spatial_mqtt.senml import Reading

TABLES = (
    {"kind": "rain-gauge", "name": "rain", "pin": 17},
    {"kind": "wire", "name": "span", "pin": 27},
    {"kind": "tilt", "name": "tilt", "device": 1},
    {"kind": "bme280", "name": "air"},
)


class LiveCheckHarness:
    """A live check in a thread, on a simulated board."""

    def __init__(self, is_terminal: bool = False) -> None:
        self.board: Board
        wakes = {table["name"]: threading.Event() for table in TABLES}
        self.board, sensors = opened(*TABLES, on_event=lambda name: wakes[name].set())
        self.text = ""
        settings = [with_few_samples(each) for each in parse_sensors(TABLES)]
        live_sensors = [LiveSensor(s, sensors[s.name], wakes[s.name]) for s in settings]
        self.check = LiveCheck(
            live_sensors,
            time.monotonic,
            lambda: START_S,
            Screen(is_terminal, self._write),
        )
        self.checks: list[SensorCheck] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        first = "rain 0 mm" if is_terminal else "first rain"
        wait_until(lambda: first in self.text and "span no" in self.text)

    def _run(self) -> None:
        self.checks = self.check.run(60.0)

    def _write(self, text: str) -> None:
        self.text += text

    def finish(self) -> dict[str, SensorCheck]:
        self.check.stop()
        self._thread.join()
        return {check.name: check for check in self.checks}


def test_tip_and_cut_are_shown_while_a_chip_is_missing() -> None:
    """One line each; the missing chip has its own line."""
    harness = LiveCheckHarness()
    harness.board.inject_fault("air", Fault.IO_ERROR)
    wait_until(lambda: "I2C1 0x76 does not answer" in harness.text)
    for _ in range(2):
        harness.board.pin_factory.pin(17).hold(level=False)
        harness.board.pin_factory.pin(17).release()
    wait_until(lambda: "(sum 1 mm)" in harness.text)
    harness.board.pin_factory.pin(27).release()  # unplug the wire
    wait_until(lambda: "span yes" in harness.text)
    harness.board.clear_fault("air")
    wait_until(lambda: "air is OK again" in harness.text)
    checks = harness.finish()

    assert checks["air"].health is Health.OK
    assert harness.check.change_counts["span"] == 1
    assert harness.check.change_counts["tilt"] == 0


@pytest.mark.parametrize("expected", [">>  rain", "least..most", "GPIO17"])
def test_table_on_a_terminal_marks_changed_sensors(expected: str) -> None:
    """The mark shows which sensor just changed."""
    harness = LiveCheckHarness(is_terminal=True)
    harness.board.pin_factory.pin(17).hold(level=False)
    harness.board.pin_factory.pin(17).release()
    wait_until(lambda: expected in harness.text)
    harness.finish()

    assert harness.text.startswith("\x1b[H")


def test_live_check_reduces_tilt_samples() -> None:
    """16 s per reading are acceptable on the slope, and too long during a check."""
    normal, fast = (
        parse_sensors(TABLES)[2],
        with_few_samples(parse_sensors(TABLES)[2]),
    )

    assert fast.samples < normal.samples  # type: ignore[attr-defined]
    assert with_few_samples(parse_sensors(TABLES)[0]) == parse_sensors(TABLES)[0]


def test_live_check_waits_for_a_slow_probe_as_the_agent_does() -> None:
    """An SDI-12 probe may announce 25 s; after 5 s it was reported as hanging."""
    (longest_s,) = (
        row.rule.high
        for row in describe_settings(Sdi12Settings)
        if row.path == "longest_wait_s"
    )

    assert longest_s is not None
    assert longest_s < READ_POLICY.deadline_s == DEADLINE_S


def test_sensor_without_a_reading_does_not_pass() -> None:
    """The check ends before a probe has measured for the first time."""
    (settings,) = parse_sensors(TABLES[:1])
    may_end = threading.Event()

    class SlowSensor(BaseSensor):
        def read(self, now_s: float) -> list[Reading]:
            may_end.wait()
            return []

    sensor = LiveSensor(settings, SlowSensor(settings))
    screen = Screen(False, lambda _: None)
    (check,) = LiveCheck([sensor], time.monotonic, lambda: 0.0, screen).run(0.1)
    may_end.set()

    assert not check.is_ok
    assert check.problem == "sensor rain gave no reading yet; check for longer"
