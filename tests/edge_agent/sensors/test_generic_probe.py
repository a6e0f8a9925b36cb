import math
from typing import Any

import pytest
from triage_readings import START_S

from edge_agent.cli.sensor_check import ReadingView
from edge_agent.sensors.base import SensorRangeError
from edge_agent.sensors.generic_probe import PROBE_UNITS, ScaledSettings, make_reading
from edge_agent.sensors.registry import parse_sensors
from edge_agent.triage.engine import Triage
from service_runtime.settings import SettingsError
from slope_science.quality import Flag

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


RAIN = PROBE | {
    "name": "rain", "unit": "mm", "measures": "rain", "scale": 0.1, "high": 6553.5,
}  # fmt: skip


def test_counter_of_a_probe_is_the_rain_since_the_reading_before() -> None:
    """A total that stands at 5.0 mm for a day is no rain; 90 mm in three hours are."""
    (settings,) = parse_sensors([RAIN | {"counter": True}])
    assert isinstance(settings, ScaledSettings)
    triage = Triage([settings])
    for at, number in enumerate([50] * 144 + [50 + 50 * n for n in range(1, 19)]):
        reading = make_reading(settings, number)
        result = triage.assess([reading], START_S + at * 600)
        assert result.level == 1 or number > 50
    assert (reading.value, reading.sum) == (None, 95.0)
    view = ReadingView(reading.name, None, reading.unit, reading.sum, Flag.GOOD)
    assert str(view) == "rain (sum 95 mm)"
    assert triage.soil_water_mm()["rain"] == pytest.approx(82.7, abs=0.1)


def test_only_rain_has_a_counter() -> None:
    with pytest.raises(
        SettingsError,
        match="counter must be false for other quantities than rain in mm, cm or m",
    ):
        parse_sensors([PROBE | {"counter": True}])


@pytest.mark.parametrize("kind", ["ads1115-current", "ads1115-voltage"])
def test_rain_in_mm_of_an_analogue_input_is_refused(kind: str) -> None:
    """Each reading of its voltage would count as new rain; an intensity is no depth."""
    ends = {
        "ads1115-current": {"at_4ma": 0.0, "at_20ma": 100.0},
        "ads1115-voltage": {"low": 0.0, "high": 100.0},
    }
    table = {
        "kind": kind, "name": "rain", "channel": 0, "measures": "Rain", **ends[kind]
    }  # fmt: skip
    with pytest.raises(
        SettingsError,
        match="measures must be other than rain in 'mm', which each reading would "
        r"add again, got 'Rain'; use a rain-gauge, or modbus or sdi12 with counter",
    ):
        parse_sensors([table | {"unit": "mm"}])
    assert parse_sensors([table | {"unit": "mm/h"}])[0].senml_unit == "mm/h"
