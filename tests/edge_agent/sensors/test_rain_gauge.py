import pytest
from slope_bench import START_S, downpour, opened, values

from edge_agent.sensors.errors import SensorRangeError
from edge_agent.simulator.parts.base import Fault

TABLE = {"kind": "rain-gauge", "name": "rain", "pin": 17}


def test_flapping_switch_is_reported_and_not_counted_as_rain() -> None:
    """At most one minute of the heaviest rain, then missing rain, then silence."""
    board, sensors = opened(TABLE)
    board.inject_fault("rain", Fault.FLAPPING)
    board.advance(START_S + 60)
    assert values(sensors["rain"]) == {
        "rain": 10.0,
        "rain/refused": 280,
        "rain/health": "flaps: more than 20 closures a minute",
    }
    board.advance(START_S + 120)
    report, refused = sensors["rain"].read(0.0)
    assert (report.value, report.sum, report.extra) == (None, 10.0, {"qc": 9})
    assert (refused.name, refused.value) == ("rain/refused", 300)
    board.clear_fault("rain")
    board.advance(START_S + 240)
    assert values(sensors["rain"]) == {"rain": 0.0, "rain/health": "ok"}


def test_closures_between_readings_have_their_own_times() -> None:
    """A storm of ten hours in one step of the simulation is no flapping."""
    board, sensors = opened(TABLE, rain=downpour())
    board.advance(START_S + 10 * 3600)
    assert values(sensors["rain"]) == {"rain": 100.0}


def test_switch_that_stays_closed_is_an_error() -> None:
    """No tip can be detected, so "no rain" is unknown and not zero.

    The first reading may coincide with a tip; the second raises the error.
    """
    board, sensors = opened(TABLE, rain=downpour())
    board.inject_fault("rain", Fault.SHORTED)
    sensors["rain"].read(0.0)
    board.advance(START_S + 3600)
    with pytest.raises(SensorRangeError, match="rain stays closed: no tip can be seen"):
        sensors["rain"].read(0.0)
    board.clear_fault("rain")
    assert values(sensors["rain"])["rain"] >= 0
