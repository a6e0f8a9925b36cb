import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensors.analog import ExtensometerSettings, decode_displacement
from edge_agent.sensors.base import SensorRangeError
from edge_agent.sensors.registry import parse_sensors
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import SlopeSite
from service_runtime.settings import SettingsError

TABLE = {
    "kind": "extensometer",
    "name": "crack",
    "channel": 3,
    "travel_mm": 500,
    "home_v": 0.3,
    "full_v": 3.0,
}
SETTINGS = ExtensometerSettings(
    kind="extensometer",
    name="crack",
    channel=3,
    travel_mm=500.0,
    home_v=0.3,
    full_v=3.0,
)


@pytest.mark.parametrize(
    ("volts", "mm"), [(0.3, 0.0), (3.0, 500.0), (1.65, 250.0), (0.0, -55.5555)]
)
def test_voltage_is_decoded_to_a_position(volts: float, mm: float) -> None:
    """Linear between the two points of the calibration."""
    assert decode_displacement(volts, SETTINGS) == pytest.approx(mm, abs=1e-3)


def test_movement_of_the_slope_is_read_back() -> None:
    """A failing slope pulls the wire out; accuracy a third of a millimetre."""
    site = SlopeSite(start_s=START_S, failure_time_s=START_S + 86400, onset_s=86400)
    board, sensors = opened(TABLE, site=site)
    for hour in (1, 12, 20, 23.9):
        moved_mm = board.advance(START_S + hour * 3600).displacement_mm
        assert values(sensors["crack"])["crack"] == pytest.approx(
            50 + moved_mm, abs=0.3
        )


def test_reading_is_not_taken_for_rain() -> None:
    """The unit is that of rain, but without a sum, by which triage detects rain."""
    _, sensors = opened(TABLE)
    (reading,) = sensors["crack"].read(0.0)
    assert (reading.unit, reading.sum) == ("mm", None)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.DEAD, r"crack must be between 0 and 500 mm of its travel, got -56 mm"),
        (Fault.DISCONNECTED, "of its travel, got -56 mm from 0.000 V; check cable"),
        (Fault.SATURATED, "crack is saturated"),
    ],
)
def test_broken_cable_is_outside_the_travel(fault: Fault, expected: str) -> None:
    """Neither ground nor the reference is within the travel."""
    board, sensors = opened(TABLE)
    board.inject_fault("crack", fault)
    with pytest.raises(SensorRangeError, match=expected):
        sensors["crack"].read(0.0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"home_v": 0.05}, r"home_v must be between 0\.1 and 3\.2 V, got 0\.05; put a"),
        ({"full_v": 3.3}, r"full_v must be between 0\.1 and 3\.2 V, got 3\.3"),
        ({"full_v": 0.6}, r"full_v must be at least 0\.5 V away from home_v \(0\.3 V"),
    ],
)
def test_calibration_near_the_limits_is_refused(
    key: dict[str, float], expected: str
) -> None:
    """A calibration up to ground or the reference would hide a fault."""
    with pytest.raises(SettingsError, match=expected):
        parse_sensors([TABLE | key])
