import threading

import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensors.errors import SensorBusError, SensorRangeError
from edge_agent.sensors.registry import parse_sensors
from edge_agent.sensors.trip_wire import (
    ChangePoller,
    TripWireEolSettings,
    TripWireState,
    classify_ratio,
    decode_loop_ohm,
)
from edge_agent.simulator.parts.base import Fault
from edge_agent.simulator.slope import SlopeSite
from service_runtime.settings import SettingsError

TABLE = {"kind": "wire-eol", "name": "span", "channel": 6, "watch_s": 0.1}
SETTINGS = TripWireEolSettings(kind="wire-eol", name="span", channel=6)


@pytest.mark.parametrize(
    ("ratio", "state"),
    [
        (0.0, TripWireState.SHORTED),
        (0.19, TripWireState.SHORTED),
        (0.22, TripWireState.INTACT),
        (0.405, TripWireState.INTACT),
        (0.53, TripWireState.INTACT),
        (0.55, TripWireState.CUT),
        (0.680, TripWireState.CUT),
        (0.83, TripWireState.CUT),
        (0.85, TripWireState.REMOVED),
        (1.0, TripWireState.REMOVED),
    ],
)
def test_nearest_divider_voltage_is_the_state(
    ratio: float, state: TripWireState
) -> None:
    """4k7 over 10k parallel 4k7 is 0.405 of the reference, over 10k alone 0.680."""
    assert classify_ratio(ratio, SETTINGS) is state


def test_resistance_is_worked_back_from_the_divider() -> None:
    """The same resistors again, for the log of a wire that decays."""
    assert decode_loop_ohm(SETTINGS.ratio_intact, SETTINGS) == pytest.approx(
        3197.3, abs=0.1
    )
    assert decode_loop_ohm(SETTINGS.ratio_cut, SETTINGS) == pytest.approx(10_000)
    assert decode_loop_ohm(1.0, SETTINGS) == float("inf")


def test_states_too_near_each_other_are_a_mistake() -> None:
    """Wrong resistors are found at the desk, not on the slope."""
    with pytest.raises(SettingsError, match=r"end_ohm must be such that the states"):
        parse_sensors([TABLE | {"end_ohm": 500_000}])


def test_cut_is_told_within_a_second() -> None:
    """The agent is called by the watch, and every reading says it."""
    told = threading.Event()
    site = SlopeSite(start_s=START_S, wire_break_s=START_S + 100)
    board, sensors = opened(TABLE, site=site, on_event=lambda name: told.set())
    assert values(sensors["span"]) == {
        "span": False,
        "span/loop": pytest.approx(3197, abs=15),
    }
    board.advance(START_S + 101)
    assert told.wait(60)
    assert values(sensors["span"])["span"] is True
    sensors["span"].close()


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.DISCONNECTED, SensorRangeError, "span has no plug: nothing is connect"),
        (Fault.SHORTED, SensorRangeError, r"span is shorted: \d Ohm; look for a crush"),
        (Fault.DEAD, SensorRangeError, r"span is shorted: 0 Ohm; .*without power"),
        (Fault.NOISY, SensorRangeError, "span is too noisy"),
        (Fault.IO_ERROR, SensorBusError, "span cannot be read"),
    ],
)
def test_what_is_not_a_cut_is_named(
    fault: Fault, error: type[Exception], words: str
) -> None:
    """A pulled plug and a crushed cable are faults, not landslides."""
    board, sensors = opened(TABLE | {"watch_s": 60})
    board.inject_fault("span", fault)
    with pytest.raises(error, match=words):
        sensors["span"].read(0.0)
    board.clear_fault("span")
    assert values(sensors["span"])["span"] is False
    sensors["span"].close()


def test_watch_tells_only_of_changes() -> None:
    """The first look is no news, and neither is the same again."""
    seen, told = iter([1, 1, 2, 2, 1]), []
    watch = ChangePoller("it", lambda: next(seen), lambda: told.append("!"), 60.0)
    watch.start()
    for _ in range(4):
        watch.poll_once()
    watch.close()
    assert told == ["!", "!"]
