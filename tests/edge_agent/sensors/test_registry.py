from typing import Any

import pytest

from edge_agent.sensors.registry import SENSOR_KINDS, find_sensor_kind, parse_sensors
from service_runtime.settings import SettingsError, describe_settings

Table = dict[str, Any]
ALL_KINDS = ", ".join(repr(kind) for kind in sorted(SENSOR_KINDS))

RAIN: Table = {"kind": "rain-gauge", "name": "rain", "pin": 17}
SOIL: Table = {
    "kind": "soil-moisture",
    "name": "soil",
    "channel": 0,
    "dry_v": 2.6,
    "wet_v": 1.2,
}
TILT: Table = {"kind": "tilt", "name": "tilt", "device": 1}
WIRE: Table = {"kind": "wire", "name": "wire", "pin": 27}


def problems(*tables: Table) -> list[str]:
    """Problems found in these tables."""
    with pytest.raises(SettingsError, match="sensor") as caught:
        parse_sensors(tables)
    return list(map(str, caught.value.problems))


def test_complete_node_is_parsed() -> None:
    """Defaults are filled in; claims are pins, chips and channels."""
    settings = parse_sensors([RAIN, SOIL, TILT, WIRE])
    assert [s.claims for s in settings] == [
        ("GPIO17",),
        ("SPI0.0 channel 0",),
        ("SPI0.1",),
        ("GPIO27",),
    ]
    assert [s.senml_unit for s in settings] == ["mm", "/", "deg", None]


def test_unit_of_the_driver_is_accepted() -> None:
    """The key is redundant and may be given."""
    assert parse_sensors([RAIN | {"unit": "mm"}])[0].senml_unit == "mm"


def test_node_without_sensors_is_accepted() -> None:
    """A node may be only a relay."""
    assert parse_sensors([]) == ()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            RAIN | {"unit": "inch"},
            (
                "sensor.rain.unit must be 'mm', got 'inch'; the driver converts; "
                "give its other keys in the units they name"
            ),
        ),
        (
            WIRE | {"unit": "mm"},
            (
                "sensor.wire.unit must be left out, got 'mm'; "
                "the readings are true or false"
            ),
        ),
        (
            RAIN | {"kind": "rain-guage"},
            (
                f"sensor.rain.kind must be one of {ALL_KINDS}, got 'rain-guage'; "
                "did you mean 'rain-gauge'?"
            ),
        ),
        (RAIN | {"pin": 28}, "sensor.rain.pin must be between 0 and 27, got 28"),
        (
            RAIN | {"debounce_ms": 0},
            "sensor.rain.debounce_ms must be between 1 and 99 ms, got 0.0",
        ),
        (
            RAIN | {"mm_per_tip": "0.5 mm"},
            (
                "sensor.rain.mm_per_tip must be a number in mm, got '0.5 mm'; "
                "write the bare number, without quotes and without a unit"
            ),
        ),
        (
            SOIL | {"wet_v": 2.55},
            (
                "sensor.soil: wet_v must be at least 0.1 V away from dry_v (2.6 V), "
                "got 2.55; calibrate the probe"
            ),
        ),
        (
            RAIN | {"name": "rain/1"},
            (
                "sensor[1].name must be 1 to 32 of A-Z a-z 0-9 _ -, got 'rain/1'; "
                "rename it"
            ),
        ),
        ({"kind": "tilt"}, "sensor[1].name must be given: text"),
    ],
)
def test_mistake_is_reported_with_its_remedy(table: Table, problem: str) -> None:
    """Field, rule, value, remedy."""
    assert problems(table) == [problem]


def test_unknown_key_suggests_the_nearest() -> None:
    """A misspelt key is a mistake and does not give the default."""
    (problem,) = problems(RAIN | {"mm_per_tipp": 1})
    assert problem.startswith(
        "sensor.rain.mm_per_tipp is not a known key; did you mean 'mm_per_tip'?"
    )


def test_missing_kind_lists_the_kinds() -> None:
    """Other keys cannot be checked without a kind."""
    (problem,) = problems({"name": "a"})
    assert problem == f"sensor.a.kind must be given: one of {ALL_KINDS}"


def test_pin_used_twice_is_reported_with_its_owner() -> None:
    """A pin belongs to one sensor."""
    assert problems(RAIN, WIRE | {"pin": 17}) == [
        (
            "sensor.wire.pin must be a pin of its own, got 17, which sensor.rain uses; "
            "choose another pin"
        )
    ]


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        (
            SOIL,
            SOIL | {"name": "deep"},
            (
                "sensor.deep.channel must be a channel of its own, got 0, "
                "which sensor.soil uses; choose another channel"
            ),
        ),
        (
            SOIL,
            TILT | {"device": 0},
            (
                "sensor.tilt.device must be a chip select of its own, got 0, "
                "which sensor.soil uses; choose another chip select"
            ),
        ),
        (
            SOIL,
            RAIN | {"pin": 9},
            (
                "sensor.rain.pin must be a pin of its own, got 9, "
                "which sensor.soil uses; choose another pin"
            ),
        ),
        (
            RAIN | {"pin": 8},
            TILT,
            (
                "sensor.tilt needs SPI0, which owns GPIO 7 to 11, but sensor.rain uses "
                "GPIO8; move sensor.rain to another pin"
            ),
        ),
    ],
)
def test_chip_or_bus_used_twice_is_refused(
    one: Table, other: Table, problem: str
) -> None:
    """Channels of one chip may be shared between sensors, the chip itself may not."""
    assert problems(one, other) == [problem]


def test_two_channels_of_one_chip_are_accepted() -> None:
    """Two probes on one converter."""
    assert len(parse_sensors([SOIL, SOIL | {"name": "deep", "channel": 1}])) == 2


def test_name_used_twice_is_refused() -> None:
    """Readings are identified by the sensor's name."""
    assert problems(RAIN, RAIN | {"pin": 18}) == [
        "sensor.rain must be named once, got 2 sensors of that name; rename all but one"
    ]


def test_all_mistakes_are_reported_at_once() -> None:
    """So that the file is corrected in one pass."""
    found = problems(RAIN | {"pin": 99}, {"kind": "x", "name": "y"}, TILT, TILT)
    assert len(found) == 4


@pytest.mark.parametrize("name", sorted(SENSOR_KINDS))
def test_every_key_has_a_description(name: str) -> None:
    """The reference documentation is generated from the settings."""
    rows = list(describe_settings(find_sensor_kind(name).settings, "sensor"))
    assert all(row.rule.doc.endswith(".") for row in rows)
