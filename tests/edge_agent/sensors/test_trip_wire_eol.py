import threading

import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensors.base import SensorBusError, SensorRangeError
from edge_agent.sensors.registry import parse_sensors
from edge_agent.sensors.trip_wire import (
    ChangePoller,
    TripWireEolSettings,
    TripWireState,
    classify_ratio,
    decode_loop_ohm,
)
from edge_agent.simulator.buses import Fault
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
def test_state_has_the_nearest_divider_voltage(
    ratio: float, state: TripWireState
) -> None:
    """4k7 over 10k parallel 4k7 is 0.405 of the reference, over 10k alone 0.680."""
    assert classify_ratio(ratio, SETTINGS) is state


def test_resistance_is_computed_from_the_divider() -> None:
    """From the same resistors, to log the slow decay of a wire."""
    assert decode_loop_ohm(SETTINGS.ratio_intact, SETTINGS) == pytest.approx(
        3197.3, abs=0.1
    )
    assert decode_loop_ohm(SETTINGS.ratio_cut, SETTINGS) == pytest.approx(10_000)
    assert decode_loop_ohm(1.0, SETTINGS) == float("inf")


def test_states_too_close_to_each_other_are_refused() -> None:
    """Wrong resistors are found in the settings, before the installation."""
    with pytest.raises(SettingsError, match=r"end_ohm must be such that the states"):
        parse_sensors([TABLE | {"end_ohm": 500_000}])


def test_cut_is_reported_by_the_poller() -> None:
    """The poller calls the agent, and every later reading is True."""
    notified = threading.Event()
    site = SlopeSite(start_s=START_S, wire_break_s=START_S + 100)
    board, sensors = opened(TABLE, site=site, on_event=lambda name: notified.set())
    assert values(sensors["span"]) == {
        "span": False,
        "span/loop": pytest.approx(3197, abs=15),
    }
    board.advance(START_S + 101)
    assert notified.wait(60)
    assert values(sensors["span"])["span"] is True
    sensors["span"].close()


@pytest.mark.parametrize(
    ("fault", "error", "expected"),
    [
        (Fault.DISCONNECTED, SensorRangeError, "span has no plug: nothing is connect"),
        (Fault.SHORTED, SensorRangeError, r"span is shorted: \d Ohm; look for a crush"),
        (Fault.DEAD, SensorRangeError, r"span is shorted: 0 Ohm; .*without power"),
        (Fault.NOISY, SensorRangeError, "span is too noisy"),
        (Fault.IO_ERROR, SensorBusError, "span cannot be read"),
    ],
)
def test_faults_other_than_a_cut_are_reported(
    fault: Fault, error: type[Exception], expected: str
) -> None:
    """A pulled plug and a crushed cable are faults, not landslides."""
    board, sensors = opened(TABLE | {"watch_s": 60})
    board.inject_fault("span", fault)
    with pytest.raises(error, match=expected):
        sensors["span"].read(0.0)
    board.clear_fault("span")
    assert values(sensors["span"])["span"] is False
    sensors["span"].close()


def test_poller_reports_only_changes() -> None:
    """Neither the first value nor a repeated one is reported."""
    seen, notified = iter([1, 1, 2, 2, 1]), []
    poller = ChangePoller("it", lambda: next(seen), lambda: notified.append("!"), 60.0)
    poller.start()
    for _ in range(4):
        poller.poll_once()
    poller.close()
    assert notified == ["!", "!"]
