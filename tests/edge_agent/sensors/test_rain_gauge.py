import pytest
from slope_bench import START_S, downpour, opened, values

from edge_agent.sensor_reader import SensorReader
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
    assert values(sensors["rain"])["rain"] is None


def test_rain_of_a_stuck_switch_and_of_the_first_report_after_it_is_missing() -> None:
    """The total did not rise by all the rain, so its next rise must begin there."""
    board, sensors = opened(TABLE, rain=downpour())
    reader = SensorReader(list(sensors.values()), lambda: 0.0)
    reports = []
    for minute in range(0, 100, 10):
        if minute == 40:
            board.inject_fault("rain", Fault.SHORTED)
        if minute == 70:
            board.clear_fault("rain")
        board.advance(START_S + 60 * minute)
        found = reader.read(list(sensors.values()), 0.0, is_urgent=True)
        reports += [r for r in found if r.name == "rain"]
    missing = [n for n, r in enumerate(reports) if r.extra == {"qc": 9}]
    assert missing == [5, 6, 7]
    assert all(reports[n].value is None for n in missing)
    totals_mm = [r.sum or 0.0 for r in reports]
    assert reports[8].value == pytest.approx(totals_mm[8] - totals_mm[7])


def test_switch_that_flaps_after_it_was_stuck_is_not_reported_as_ok() -> None:
    """The last health that is sent is the one that the node shows."""
    board, sensors = opened(TABLE)
    gauge = sensors["rain"]
    reader = SensorReader([gauge], lambda: 0.0)
    sent: list[str] = []
    for minute in range(1, 6):
        if minute == 1:
            board.inject_fault("rain", Fault.SHORTED)
        if minute in {3, 5}:
            board.clear_fault("rain")
        if minute == 3:
            board.inject_fault("rain", Fault.FLAPPING)
        board.advance(START_S + 60 * minute)
        found = reader.read([gauge], 0.0, is_urgent=True)
        sent += [str(r.value).split(":")[0] for r in found if r.name == "rain/health"]
        assert bool(reader.problems) == (sent[-1:] not in ([], ["ok"]))
    assert sent == ["stuck", "flaps", "ok"]
