import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.analog import estimate_noise
from edge_agent.sensors.base import Health, SensorBusError, SensorRangeError
from edge_agent.sensors.registry import parse_sensors
from edge_agent.simulator.buses import Fault
from service_runtime.settings import SettingsError

SOIL = {
    "kind": "soil-moisture",
    "name": "soil",
    "channel": 0,
    "dry_v": 2.6,
    "wet_v": 1.2,
}
DEEP = SOIL | {"name": "deep", "channel": 7}


def test_noise_is_estimated_by_the_median_deviation() -> None:
    """One outlier is no noise; outliers in half of the samples are."""
    assert estimate_noise([1.0, 1.0, 1.0, 1.0, 9.0]) == 0.0
    assert estimate_noise([1.0, 1.2, 0.8, 1.4, 0.6]) == pytest.approx(0.2 * 1.4826)


@pytest.mark.parametrize("chip", ["MCP3008", "MCP3208"])
def test_both_converters_read_the_same_value(chip: str) -> None:
    """10 bits or 12, first or last channel."""
    tables = [table | {"chip": chip} for table in (SOIL, DEEP)]
    board, sensors = opened(*tables)
    vwc = board.advance(START_S + 60).vwc
    for name in ("soil", "deep"):
        assert values(sensors[name])[name] == pytest.approx(vwc, abs=0.003)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.NOISY, r"soil is too noisy: a noise of 0\.\d\d V in one reading"),
        (Fault.SATURATED, r"soil is saturated: 3\.3 V or more at the converter"),
        (Fault.DISCONNECTED, r"soil must read between 0\.1 and 3\.2 V, got 0\.00 V"),
        (Fault.SHORTED, r"soil must read between 0\.1 and 3\.2 V, got 0\.00 V"),
    ],
)
def test_bad_input_is_reported(fault: Fault, expected: str) -> None:
    """The neighbouring channel is read all the same; a new part is read again."""
    board, sensors = opened(SOIL, DEEP)
    board.inject_fault("soil", fault)
    board.advance(START_S + 60)
    with pytest.raises(SensorRangeError, match=expected):
        sensors["soil"].read(0.0)
    assert len(sensors["deep"].read(0.0)) == 1
    board.clear_fault("soil")
    assert len(sensors["soil"].read(0.0)) == 1


def test_cut_cable_is_no_water_content_within_the_range() -> None:
    """0 V would be 0.69 by this calibration; the resistor at the channel gives 0 V."""
    board, sensors = opened(SOIL | {"dry_v": 2.3, "wet_v": 0.8})
    board.inject_fault("soil", Fault.DISCONNECTED)
    with pytest.raises(SensorRangeError, match="check the probe's cable") as caught:
        sensors["soil"].read(0.0)
    assert caught.value.health is Health.DISCONNECTED


def test_calibration_that_reaches_ground_stays_valid() -> None:
    """As of a probe with 0 V in dry soil: then 0 V is no sign of its cable."""
    board, sensors = opened(SOIL | {"dry_v": 0.0, "wet_v": 2.5})
    board.inject_fault("soil", Fault.DISCONNECTED)

    assert sensors["soil"].read(0.0)[0].value == 0.0


def test_soil_drier_than_its_calibration_is_no_flat_line() -> None:
    """Its readings are below 0 and sent as 0, for weeks."""
    board, sensors = opened(SOIL | {"dry_v": 0.05, "wet_v": 2.5})
    board.inject_fault("soil", Fault.DISCONNECTED)
    soil, now_s = sensors["soil"], 0.0
    reader = SensorReader([soil], lambda: now_s)
    for hour in range(100):
        now_s = 3600.0 * hour
        (reading,) = reader.read([soil], now_s)
        assert (reading.value, reading.extra) == (0.0, {})
    assert reader.problems == {}


def test_failing_bus_is_reported_for_every_channel() -> None:
    """EIO of the bus is an error of each sensor on it, until the fault is cleared."""
    board, sensors = opened(SOIL, DEEP)
    board.inject_fault("soil", Fault.IO_ERROR)
    for name in ("soil", "deep"):
        with pytest.raises(SensorBusError, match=r"cannot be read: .*Input/output er"):
            sensors[name].read(0.0)
    board.clear_fault("soil")
    assert len(sensors["deep"].read(0.0)) == 1


@pytest.mark.parametrize("key", [{"chip": "MCP3008"}, {"vref_v": 5.0}])
def test_conflicting_settings_of_one_converter_are_refused(
    key: dict[str, object],
) -> None:
    """One chip cannot be of two kinds, nor have two references."""
    with pytest.raises(
        SettingsError,
        match=r"sensor.deep must give the same settings for SPI0.0 as sensor.soil, "
        r"got an MCP3",
    ):
        parse_sensors([SOIL, DEEP | key])
    assert len(parse_sensors([SOIL, DEEP | {"device": 1} | key])) == 2
