import pytest
from slope_bench import START_S, downpour, opened, values
from triage_readings import RAIN

from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.base import Sensor, SensorRangeError
from edge_agent.sensors.rain_gauge_and_vibration import RainGauge
from edge_agent.simulator.buses import Fault
from edge_agent.triage.engine import Triage

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


def restarted(mm_per_tip: float, stored: dict[str, str]) -> Sensor:
    """The gauge with a stored state and an `mm_per_tip`, in dry weather."""
    table = {**TABLE, "mm_per_tip": mm_per_tip}
    return opened(table, get_state=stored.get)[1]["rain"]


def test_corrected_tip_is_no_rain() -> None:
    """Else 1,000 tips of 0.2 mm that are 0.5 mm were 300 mm in dry weather."""
    first = restarted(0.2, {"sensor.rain.tips": "1000"})
    (before,) = first.read(0.0)
    second = restarted(0.5, first.state())
    (after,) = second.read(0.0)
    assert (before.sum, after.sum) == (200.0, 200.0)
    triage = Triage([RAIN])
    triage.assess([before], START_S)
    triage.assess([after], START_S + 6 * 3600)
    assert triage.soil_water_mm() == {"rain": 0.0}
    third = restarted(0.2, second.state())
    assert third.read(0.0)[0].sum == 200.0


def test_tips_after_a_correction_count_as_corrected() -> None:
    """An earlier program has the same total within a tip, by the count alone."""
    first = restarted(0.2, {"sensor.rain.tips": "1001"})
    first.read(0.0)
    table = {**TABLE, "mm_per_tip": 0.5}
    board, sensors = opened(table, rain=downpour(), get_state=first.state().get)
    sensors["rain"].read(0.0)
    board.advance(START_S + 6 * 3600)
    (report,) = sensors["rain"].read(0.0)
    assert isinstance(report.value, float)
    assert report.value > 10
    assert report.sum == pytest.approx(200.2 + report.value)
    tips = int(sensors["rain"].state()["sensor.rain.tips"])
    assert report.sum == pytest.approx(0.5 * tips, abs=0.5)


def test_total_goes_on_through_any_corrections() -> None:
    """It never falls, and rises by the tips only."""
    state, total_mm = {"sensor.rain.tips": "777"}, 777 * 0.2
    for tips, mm_per_tip in enumerate((0.2, 0.5, 0.254, 1.0, 1.0, 0.1, 0.254)):
        gauge = restarted(mm_per_tip, state)
        assert isinstance(gauge, RainGauge)
        gauge._counter.count += tips  # noqa: SLF001 - as `read` does
        total_mm += tips * mm_per_tip
        assert gauge.read(0.0)[0].sum == pytest.approx(total_mm, abs=1e-5)
        state = gauge.state()


@pytest.mark.parametrize(
    "stored", ["", "x", "1000 0.2", "1000 nan 0", "1000 0 0", "999 0.2 0.0"]
)
def test_count_without_its_tip_is_of_the_present_one(stored: str) -> None:
    """That of an earlier program, also one that counted after this one."""
    state = {"sensor.rain.tips": "1000", "sensor.rain.tips.mm": stored}
    assert restarted(0.5, state).read(0.0)[0].sum == 500.0
