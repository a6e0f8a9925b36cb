import random

import pytest

from edge_agent.sensors.ads1115 import Ads1115Current, Ads1115CurrentSettings
from edge_agent.sensors.analog import decode_current
from edge_agent.sensors.base import Hardware, SensorRangeError
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.simulator.chips import Ads1115Chip
from service_runtime.errors import FieldError

LEVEL = {
    "kind": "ads1115-current", "name": "level", "channel": 1, "unit": "m",
    "measures": "water level", "at_4ma": 0.0, "at_20ma": 5.0,
}  # fmt: skip


def make_settings(**keys: object) -> Ads1115CurrentSettings:
    """A level probe of 5 m over 100 Ohm."""
    return Ads1115CurrentSettings(**(LEVEL | keys))  # type: ignore[arg-type]


def make_sensor(loop_ma: float) -> Ads1115Current:
    """The probe with a current in its loop."""
    buses, chip = SimulatedBuses(), Ads1115Chip(random.Random(1))
    buses.attach_i2c(1, 0x48, chip)
    chip.volts[1] = loop_ma * 0.1
    return Ads1115Current(make_settings(), Hardware(None, lambda _: None, buses=buses))


@pytest.mark.parametrize(
    ("loop_ma", "level_m"), [(4.0, 0.0), (12.0, 2.5), (20.0, 5.0), (20.4, 5.125)]
)
def test_current_is_converted_to_the_quantity(loop_ma: float, level_m: float) -> None:
    """Linear from 4 to 20 mA and a little beyond; the current is a reading too."""
    level, loop = make_sensor(loop_ma).read(0.0)
    assert (level.name, level.unit) == ("level", "m")
    assert level.value == pytest.approx(level_m, abs=0.001)
    assert (loop.name, loop.unit) == ("level/loop", "mA")
    assert loop.value == pytest.approx(loop_ma, abs=0.003)


@pytest.mark.parametrize(
    ("loop_ma", "expected"),
    [
        (0.0, "has a loop that has no current: 0.00 mA; check the loop's supply"),
        (3.4, "has a loop that is broken: 3.40 mA, 3.6 mA or less; check the cable"),
        (3.7, "has a loop that is below its measuring range: 3.70 mA"),
        (20.7, "has a loop that is above its measuring range: 20.70 mA"),
        (21.6, "has a loop that reports a fault of its own: 21.60 mA"),
    ],
)
def test_current_outside_the_measuring_range_is_reported(
    loop_ma: float, expected: str
) -> None:
    """NE 43's limits, as for the piezometer on SPI."""
    with pytest.raises(SensorRangeError, match=f"^sensor level {expected}"):
        make_sensor(loop_ma).read(0.0)


def test_shunt_converts_volts_to_milliamperes() -> None:
    """Ohm's law."""
    assert decode_current(1.2, 100.0) == pytest.approx(12.0)


def test_range_is_that_of_namur_ne_43() -> None:
    """3.8 to 20.5 mA, for rising and falling scales."""
    assert make_settings().range == pytest.approx((-0.0625, 5.15625))
    falling = make_settings(at_4ma=5.0, at_20ma=0.0)
    assert falling.range == pytest.approx((-0.15625, 5.0625))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"at_20ma": 0.0}, r"at_20ma must be other than at_4ma \(0\)"),
        (
            {"shunt_ohm": 200.0},
            "shunt_ohm must be at most 186 Ohm, for 22 mA to be seen",
        ),
        ({"full_scale_v": 2.048}, "at most 93 Ohm.*; raise full_scale_v"),
    ],
)
def test_settings_that_hide_a_fault_are_refused(
    keys: dict[str, object], expected: str
) -> None:
    """A fault current must stay within the amplifier's range."""
    with pytest.raises(FieldError, match=expected):
        make_settings(**keys)
