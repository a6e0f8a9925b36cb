import pytest
from hypothesis import given
from hypothesis import strategies as st
from slope_bench import START_S, downpour, opened, values

from edge_agent.sensors.analog import decode_current, diagnose_loop, fraction_of_span
from edge_agent.sensors.base import SensorRangeError
from edge_agent.sensors.registry import parse_sensors
from edge_agent.simulator.buses import Fault
from service_runtime.settings import SettingsError

TABLE = {
    "kind": "piezometer",
    "name": "pore",
    "channel": 1,
    "at_4ma_kpa": -20,
    "at_20ma_kpa": 80,
}


@pytest.mark.parametrize(
    ("loop_ma", "expected"),
    [
        (0.0, "has no current: 0.00 mA"),
        (0.6, "is broken: 0.60 mA"),
        (3.4, "is broken: 3.40 mA, 3.6 mA or less"),
        (3.6, "is broken"),
        (3.7, "is below its measuring range: 3.70 mA, not 3.8 to 20.5 mA"),
        (3.8, None),
        (4.0, None),
        (20.5, None),
        (20.7, "is above its measuring range"),
        (21.0, "reports a fault of its own: 21.00 mA, 21 mA or more"),
        (22.5, "reports a fault of its own"),
    ],
)
def test_loop_is_diagnosed_by_namur_ne_43(loop_ma: float, expected: str | None) -> None:
    """NE 43 distinguishes failure, out of range and measurement."""
    diagnosis = diagnose_loop(loop_ma)
    assert (diagnosis is None) == (expected is None)
    if expected is not None and diagnosis is not None:
        assert diagnosis[0].startswith(expected)
        assert diagnosis[1]


@given(st.floats(-1, 30))
def test_accepted_current_is_near_the_scale(loop_ma: float) -> None:
    """A current that NE 43 accepts is at most 3.2 % beyond 4 to 20 mA."""
    if diagnose_loop(loop_ma) is None:
        assert -0.0126 <= fraction_of_span(loop_ma) <= 1.0313


def test_shunt_converts_volts_to_milliamperes() -> None:
    """Ohm's law: 1.2 V over 120 Ohm are 10 mA."""
    assert decode_current(1.2, 120.0) == pytest.approx(10.0)
    assert (fraction_of_span(4.0), fraction_of_span(12.0), fraction_of_span(20.0)) == (
        0.0,
        0.5,
        1.0,
    )


def test_pore_pressure_is_read_back() -> None:
    """In hPa, as a head of water, and the loop current."""
    board, sensors = opened(TABLE, rain=downpour())
    for hour in (1, 8, 20):
        kpa = board.advance(START_S + hour * 3600).pore_kpa
        seen = values(sensors["pore"])
        assert seen["pore"] == pytest.approx(kpa * 10, abs=3)
        assert seen["pore/head"] == pytest.approx(kpa / 9.80665, abs=0.03)
        assert seen["pore/loop"] == pytest.approx(4 + 16 * (kpa + 20) / 100, abs=0.05)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.DISCONNECTED, r"pore has a loop that has no current: 0\.0\d mA; check"),
        (Fault.UPSCALE, r"pore has a loop that reports a fault of its own: 21\.6\d mA"),
        (Fault.SATURATED, "pore is saturated"),
        (Fault.DEAD, "has no current"),
    ],
)
def test_bad_loop_is_reported(fault: Fault, expected: str) -> None:
    """A cut cable, a faulty transmitter and a wrong supply have different messages."""
    board, sensors = opened(TABLE)
    board.inject_fault("pore", fault)
    with pytest.raises(SensorRangeError, match=expected):
        sensors["pore"].read(0.0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ({"shunt_ohm": 165}, r"shunt_ohm must be at most 150 Ohm, for 22 mA to stay"),
        ({"at_4ma_kpa": 80}, r"at_4ma_kpa must be less than at_20ma_kpa \(80\), got 8"),
    ],
)
def test_settings_that_hide_a_fault_are_refused(
    key: dict[str, float], expected: str
) -> None:
    """22 mA must be measurable, and the scale must rise."""
    with pytest.raises(SettingsError, match=expected):
        parse_sensors([TABLE | key])
