import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensors.base import SensorRangeError
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import SlopeSite

TABLE = {"kind": "vibration", "name": "shock", "pin": 22}


@pytest.mark.parametrize("active_high", [True, False])
def test_trains_of_pulses_are_counted_as_shocks(active_high: bool) -> None:
    """A failing slope shakes; each train of four pulses is one."""
    site = SlopeSite(start_s=START_S, failure_time_s=START_S + 86400, onset_s=86400)
    board, sensors = opened(TABLE | {"active_high": active_high}, site=site)
    before = board.advance(START_S).vibration_pulses
    total = 0
    for hour in range(1, 23):
        state = board.advance(START_S + hour * 3600)
        total += values(sensors["shock"])["shock"]
    assert total == state.vibration_pulses - before > 100


def test_count_survives_a_restart() -> None:
    """The sum continues from the last stored reading, and has its own unit."""
    _, sensors = opened(TABLE, get_state={"sensor.shock.shocks": "41"}.get)
    (reading,) = sensors["shock"].read(0.0)
    assert (reading.unit, reading.sum) == ("count", 41)
    assert sensors["shock"].state() == {"sensor.shock.shocks": "41"}


def test_continuous_shaking_is_counted() -> None:
    """A debris flow lasts longer than the dead time: two shocks a second."""
    board, sensors = opened(TABLE)
    board.inject_fault("shock", Fault.FLAPPING)
    board.advance(START_S + 60)
    assert values(sensors["shock"])["shock"] == pytest.approx(100, abs=22)


def test_output_that_stays_active_is_an_error() -> None:
    """With a threshold of zero no shock can be detected."""
    board, sensors = opened(TABLE)
    board.inject_fault("shock", Fault.SHORTED)
    sensors["shock"].read(0.0)
    with pytest.raises(SensorRangeError, match="shock stays active: no shock can be"):
        sensors["shock"].read(0.0)
    board.clear_fault("shock")
    assert values(sensors["shock"])["shock"] == 0


def test_failing_callback_loses_no_shocks() -> None:
    """An exception in the agent's callback does not reach the thread of the pins."""

    def fail(name: str) -> None:
        raise RuntimeError(name)

    board, sensors = opened(TABLE, on_event=fail)
    board.advance(START_S + 10 * 3600)
    assert values(sensors["shock"])["shock"] == 2
