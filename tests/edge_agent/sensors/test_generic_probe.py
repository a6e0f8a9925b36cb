import math
from typing import Any

import pytest

from edge_agent.sensors.errors import SensorRangeError
from edge_agent.sensors.generic_probe import PROBE_UNITS, ScaledSettings, make_reading
from edge_agent.sensors.registry import parse_sensors
from service_runtime.settings import SettingsError

PROBE: dict[str, Any] = {
    "kind": "modbus", "name": "soil", "port": "/dev/ttyUSB0", "address": 1,
    "register": 0, "unit": "/", "measures": "water content", "scale": 0.001,
    "low": 0.0, "high": 0.7, "step": 0.15, "settle_s": 2.0,
}  # fmt: skip


def test_settings_define_the_quantity() -> None:
    """Quantity, unit, range, step and warm-up come from the settings."""
    (settings,) = parse_sensors([PROBE])
    assert settings.quantity == "water content"
    assert settings.senml_unit == "/"
    assert settings.range == (0.0, 0.7)
    assert (settings.largest_step, settings.warm_up_s) == (0.15, 2.0)


@pytest.mark.parametrize("unit", PROBE_UNITS)
def test_units_of_senml_are_accepted(unit: str) -> None:
    """Each unit of the list is accepted."""
    assert parse_sensors([PROBE | {"unit": unit}])[0].senml_unit == unit


def test_unit_that_is_not_senml_is_refused() -> None:
    """Kilopascals are given as Pa with a scale of 1000."""
    with pytest.raises(SettingsError, match=r"soil\.unit must be one of .*'Pa'.*'kPa'"):
        parse_sensors([PROBE | {"unit": "kPa"}])


@pytest.mark.parametrize("number", [701.0, -1.0, math.nan, math.inf])
def test_impossible_number_is_out_of_range(number: float) -> None:
    """The message contains the reading, the range, and the probe's own number."""
    (settings,) = parse_sensors([PROBE])
    assert isinstance(settings, ScaledSettings)
    with pytest.raises(SensorRangeError, match=r"between 0 and 0\.7 /, got .* from"):
        make_reading(settings, number)


def test_reading_is_rounded_to_significant_digits() -> None:
    """Six significant digits."""
    (settings,) = parse_sensors([PROBE | {"scale": 1 / 3, "high": 1e9}])
    assert isinstance(settings, ScaledSettings)
    assert make_reading(settings, 1_000_000.0).value == 333_333.0
