import pytest
from slope_bench import START_S, downpour, opened, values

from edge_agent.sensors.base import (
    Hardware,
    RetryingSensor,
    SensorBusError,
    SensorRangeError,
)
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.sensors.ultrasonic import decode_distance, speed_of_sound
from edge_agent.simulator.buses import Fault
from service_runtime.settings import SettingsError

TABLE = {
    "kind": "ultrasonic",
    "name": "stream",
    "trigger_pin": 23,
    "echo_pin": 24,
    "mount_m": 2.5,
}


@pytest.mark.parametrize(
    ("air_c", "m_per_s"), [(0, 331.3), (15, 340.27), (20, 343.21), (-20, 318.94)]
)
def test_sound_is_slower_in_the_cold(air_c: float, m_per_s: float) -> None:
    """331.3 m/s at 0 Celsius, with the root of the temperature."""
    assert speed_of_sound(air_c) == pytest.approx(m_per_s, abs=0.01)


def test_distance_is_half_the_path_of_the_echo() -> None:
    """5.83 ms at 20 Celsius are a metre: the 58 us for a centimetre of the guide."""
    assert decode_distance(5.827e-3, 20.0) == pytest.approx(1.0, abs=1e-3)


def test_water_is_read_back() -> None:
    """Within 3 cm while the air is 5 degrees off."""
    board, sensors = opened(TABLE, rain=downpour())
    for hour in (1, 6, 9):
        state = board.advance(START_S + hour * 3600)
        seen = values(sensors["stream"])
        assert seen["stream"] == pytest.approx(state.stream_m, abs=0.03)
        assert seen["stream/distance"] + seen["stream"] == pytest.approx(2.5)
    assert state.stream_m > 0.1


def test_pings_are_spaced() -> None:
    """60 ms, until the last echo has ended."""
    sleeps: list[float] = []
    _, sensors = opened(TABLE | {"pings": 3}, sleep=sleeps.append)
    sensors["stream"].read(0.0)
    assert sleeps == [1e-5, 0.06, 1e-5, 0.06, 1e-5]


@pytest.mark.parametrize(
    ("fault", "error", "expected"),
    [
        (
            Fault.DEAD,
            SensorBusError,
            "stream receives no echo: 0 of 3 pings; check its s",
        ),
        (Fault.SHORTED, SensorBusError, "stream has an echo that never ends"),
        (
            Fault.NOISY,
            SensorRangeError,
            r"stream receives echoes that differ by \d\.\d\d",
        ),
    ],
)
def test_faulty_ranger_is_reported(
    fault: Fault, error: type[Exception], expected: str
) -> None:
    """Silence, a stuck pin and spray differ; a new one reads again."""
    board, sensors = opened(TABLE)
    board.inject_fault("stream", fault)
    with pytest.raises(error, match=expected):
        sensors["stream"].read(0.0)
    board.clear_fault("stream")
    assert len(sensors["stream"].read(0.0)) == 2


@pytest.mark.parametrize(
    ("distance_m", "expected"),
    [
        (0.1, r"stream measures an obstacle at 0\.1\d m, nearer than 0\.25 m; remove"),
        (3.2, r"stream measures 0\.[67]\d m below the bed; measure mount_m again"),
        (4.9, r"stream receives no echo"),
    ],
)
def test_distance_outside_the_level_range_is_reported(
    distance_m: float, expected: str
) -> None:
    """An obstacle, a scoured bed, and no echo."""
    board, sensors = opened(TABLE)
    board._parts["stream"]._distance_m = distance_m  # noqa: SLF001 - something else
    with pytest.raises((SensorRangeError, SensorBusError), match=expected):
        sensors["stream"].read(0.0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"echo_pin": 23}, "echo_pin must be other than trigger_pin, got 23"),
        ({"mount_m": 0.3, "nearest_m": 0.5}, r"nearest_m must be less than mount_m"),
    ],
)
def test_settings_without_a_measurable_range_are_refused(
    key: dict[str, float], expected: str
) -> None:
    """Two pins, and a bed beyond the blind zone."""
    with pytest.raises(SettingsError, match=expected):
        parse_sensors([TABLE | key])


def test_trigger_pin_is_released_when_the_echo_pin_is_in_use() -> None:
    """A driver that does not open holds no pin."""
    board, _ = opened({"kind": "wire", "name": "span", "pin": 24})
    hardware = Hardware(board.pin_factory, lambda _: None)
    (stream,) = open_sensors(parse_sensors([TABLE]), hardware)
    assert isinstance(stream, RetryingSensor)
    assert "pin GPIO24 is already in use" in str(stream.error)
    (other,) = open_sensors(
        parse_sensors([{"kind": "wire", "name": "other", "pin": 23}]), hardware
    )
    assert not isinstance(other, RetryingSensor)
