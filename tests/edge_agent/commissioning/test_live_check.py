"""Tip, tug and tilt: what a hand does is shown, whatever else is broken."""

import threading
import time

import pytest
from conftest import wait_until
from slope_bench import START_S, opened

from edge_agent.commissioning.live_check import (
    LiveCheck,
    LiveSensor,
    Screen,
    with_few_samples,
)
from edge_agent.commissioning.sensor_check import SensorCheck
from edge_agent.sensors.errors import Health
from edge_agent.sensors.registry import parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.parts.base import Fault

TABLES = (
    {"kind": "rain-gauge", "name": "rain", "pin": 17},
    {"kind": "wire", "name": "span", "pin": 27},
    {"kind": "tilt", "name": "tilt", "device": 1},
    {"kind": "bme280", "name": "air"},
)


class Bench:
    """A live check in a thread, with the board at hand."""

    def __init__(self, is_terminal: bool = False) -> None:
        self.board: Board
        wakes = {table["name"]: threading.Event() for table in TABLES}
        self.board, sensors = opened(*TABLES, on_event=lambda name: wakes[name].set())
        self.text = ""
        settings = [with_few_samples(each) for each in parse_sensors(TABLES)]
        slots = [LiveSensor(s, sensors[s.name], wakes[s.name]) for s in settings]
        self.check = LiveCheck(
            slots, time.monotonic, lambda: START_S, Screen(is_terminal, self._write)
        )
        self.looks: list[SensorCheck] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        first = "rain 0 mm" if is_terminal else "first rain"
        wait_until(lambda: first in self.text and "span no" in self.text)

    def _run(self) -> None:
        self.looks = self.check.run(60.0)

    def _write(self, text: str) -> None:
        self.text += text

    def ends(self) -> dict[str, SensorCheck]:
        self.check.stop()
        self._thread.join()
        return {look.name: look for look in self.looks}


def test_tip_and_tug_are_told_while_a_chip_is_missing() -> None:
    """One line each, and the missing chip has its own."""
    bench = Bench()
    bench.board.inject_fault("air", Fault.IO_ERROR)
    wait_until(lambda: "I2C1 0x76 does not answer" in bench.text)
    for _ in range(2):
        bench.board.pin_factory.pin(17).hold(level=False)
        bench.board.pin_factory.pin(17).release()
    wait_until(lambda: "(sum 1 mm)" in bench.text)
    bench.board.pin_factory.pin(27).release()  # the wire's plug is pulled
    wait_until(lambda: "span yes" in bench.text)
    bench.board.clear_fault("air")
    wait_until(lambda: "air is OK again" in bench.text)
    seen = bench.ends()

    assert seen["air"].health is Health.OK
    assert bench.check.change_counts["span"] == 1
    assert bench.check.change_counts["tilt"] == 0


@pytest.mark.parametrize("words", [">>  rain", "least..most", "GPIO17"])
def test_terminal_gets_a_table_that_marks_what_moved(words: str) -> None:
    """An eye that comes back from the gauge finds it."""
    bench = Bench(is_terminal=True)
    bench.board.pin_factory.pin(17).hold(level=False)
    bench.board.pin_factory.pin(17).release()
    wait_until(lambda: words in bench.text)
    bench.ends()

    assert bench.text.startswith("\x1b[H")


def test_tilt_is_read_from_few_samples() -> None:
    """16 s for a reading are fine on the slope, and too long for a hand."""
    fine, hasty_one = (
        parse_sensors(TABLES)[2],
        with_few_samples(parse_sensors(TABLES)[2]),
    )

    assert hasty_one.samples < fine.samples  # type: ignore[attr-defined]
    assert with_few_samples(parse_sensors(TABLES)[0]) == parse_sensors(TABLES)[0]
