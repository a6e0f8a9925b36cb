"""Advice of `check` about rules that cannot be used as configured."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from edge_agent.cli.check import advise_on_rules
from edge_agent.config import parse_node_settings
from service_runtime.settings import SettingsError

RAIN = {"kind": "rain-gauge", "name": "rain", "pin": 17}
PROBE = {
    "kind": "modbus", "name": "well", "port": "/dev/ttyUSB0", "address": 1,
    "register": 0, "unit": "m", "measures": "water level", "low": 0, "high": 20,
}  # fmt: skip


def table(*sensors: Mapping[str, Any], **sections: object) -> dict[str, Any]:
    """Settings of a node with these sensors and sections."""
    return {
        "node": {"id": "n1", "latitude": 33.5, "longitude": 133.5},
        "uplink": {"gateway": "mqtt://127.0.0.1:1883"},
        "sensor": list(sensors),
        **sections,
    }


def advice(*sensors: Mapping[str, Any], **sections: object) -> list[str]:
    """Advice on the rules of such a node."""
    node = parse_node_settings(table(*sensors, **sections))
    return advise_on_rules(node.settings.triage, node.settings.criteria, node.sensors)


def test_assumed_criteria_are_reported_until_they_are_set() -> None:
    """The index has no meaning without the criteria of the site."""
    (remark,) = advice(RAIN)
    assert remark.startswith("criteria are assumed: give warning_mm")
    given = {"advisory_mm": 90.0, "warning_mm": 120.0, "special_mm": 240.0}
    assert advice(RAIN, criteria=given) == []


def test_rain_of_a_probe_that_may_be_a_counter_is_reported() -> None:
    """A total would count again at each reading: level 5 within a day."""
    probe = {**PROBE, "name": "gauge", "measures": "rain", "unit": "mm"}
    given = {"advisory_mm": 90.0, "warning_mm": 120.0, "special_mm": 240.0}
    (remark,) = advice(probe, criteria=given)
    assert remark.startswith("sensor gauge: each reading counts as new rain; set count")
    assert advice({**probe, "counter": True}, criteria=given) == []


def test_stream_that_is_read_too_seldom_for_a_surge_is_reported() -> None:
    """Its changes may be floods."""
    assert advice({**PROBE, "interval_s": 600}) == []
    (remark,) = advice({**PROBE, "interval_s": 900})
    assert remark.startswith("sensor well: a surge between two readings counts as a")


def test_second_gauge_and_another_sensor_named_rain_are_reported() -> None:
    """The backend judges the readings that are named rain, and one gauge of a node."""
    given = {"advisory_mm": 90.0, "warning_mm": 120.0, "special_mm": 240.0}
    first, second = {**RAIN, "name": "north"}, {**RAIN, "name": "south", "pin": 18}
    assert advice(first, criteria=given) == []
    (remark,) = advice(first, second, criteria=given)
    assert remark.startswith("sensor south: the backend judges one gauge of a node")
    (remark,) = advice({**PROBE, "name": "rain"})
    assert remark == "sensor rain: the backend expects rain by this name; rename it"


def test_configured_rule_without_a_sensor_is_reported() -> None:
    """Default rules without a sensor are not reported."""
    rules = {"rules": {"displacement": {"level_4_mm_per_h": 3.0}}}
    wire = {"kind": "wire", "name": "span", "pin": 27}
    assert advice(wire) == []
    assert advice(wire, triage=rules) == [
        "triage.rules.displacement is set, but no sensor here measures displacement"
    ]


def test_chip_too_coarse_for_a_rate_is_reported() -> None:
    """Four samples of an SCA3300 every ten minutes hide 0.01 deg/h in one hour."""
    tilt = {"kind": "sca3300", "name": "pile", "device": 0, "interval_s": 600}
    assert advice({**tilt, "samples": 4}) == []
    one_hour = {"rules": {"tilt": {"six_hours": False}}}
    (remark,) = advice({**tilt, "samples": 4}, triage=one_hour)
    assert remark.startswith(
        "sensor pile: rule tilt cannot be used for level 3: with a"
    )
    assert "not 0.01; raise samples, or shorten interval_s" in remark
    assert advice({**tilt, "interval_s": 60, "samples": 64}) == []


@pytest.mark.parametrize(
    ("sensor", "expected"),
    [
        (
            {"kind": "lis3dh", "name": "lean"},
            "no rule judges the tilt of a lis3dh: it gives no x and y",
        ),
        (
            {**PROBE, "measures": "water levle"},
            "no rule judges 'water levle'; did you mean 'water level'?",
        ),
        (
            {**PROBE, "measures": "pore pressure", "unit": "/"},
            "no rule judges pore pressure in '/', but in 'hPa', 'Pa', 'm'",
        ),
    ],
)
def test_sensor_without_a_rule_is_reported(
    sensor: Mapping[str, Any], expected: str
) -> None:
    """Its readings are sent all the same."""
    (remark,) = advice(sensor)
    assert remark.startswith(f"sensor {sensor['name']}: {expected}")


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ({"sensor": "well"}, 0),
        ({"sensor": "well/temp"}, 0),
        ({"quantity": "Snow  depth"}, 0),
        ({"sensor": "other"}, 1),
        ({"quantity": "rain"}, 1),
    ],
)
def test_sensor_with_a_limit_is_not_reported(
    target: Mapping[str, Any], count: int
) -> None:
    """A quantity without a rule family may have a limit of its own."""
    probe = {**PROBE, "measures": "snow depth"}
    rain = {**PROBE, "name": "other", "address": 2, "measures": "rain", "counter": True}
    given = {"advisory_mm": 90.0, "warning_mm": 120.0, "special_mm": 240.0}
    limit = {**target, "above": 1.5, "level": 2}
    found = advice(probe, rain, triage={"limit": [limit]}, criteria=given)
    assert [each.split(":")[0] for each in found if "no rule" in each] == [
        "sensor well"
    ] * count


@pytest.mark.parametrize(
    ("triage", "expected"),
    [
        (
            {"limit": [{"sensor": "stage", "above": 1.0, "level": 3}]},
            "triage.limit[1].sensor must be a sensor of this node: rain, well",
        ),
        (
            {"limit": [{"quantity": "watr level", "above": 1.0, "level": 3}]},
            "did you mean 'water level'?",
        ),
        (
            {"limit": [{"sensor": "well", "above": 1.0, "level": 3, "unit": "cm"}]},
            "triage.limit[1].unit must be 'm', as well reads, got 'cm'",
        ),
        (
            {
                "limit": [
                    {"quantity": "water level", "above": 1, "level": 3, "unit": "cm"}
                ]
            },
            "triage.limit[1].unit must be 'm', as well reads, got 'cm'",
        ),
        (
            {"limit": [{"sensor": "well", "level": 3}]},
            "above or below must be given",
        ),
        (
            {"limit": [{"sensor": "well", "above": 1.0, "clear_at": 2.0, "level": 3}]},
            "clear_at must be below 1, got 2.0",
        ),
        (
            {"rules": {"tilt": {"level_4_deg_per_h": 0.01}}},
            (
                "triage.rules.tilt: level_4_deg_per_h must be more than "
                "level_3_deg_per_h (0.01), got 0.01; raise it, or lower the other"
            ),
        ),
        (
            {"rules": {"tilt": {"level_3_deg_h": 0.01}}},
            "did you mean 'level_3_deg_per_h'?",
        ),
        (
            {"rules": {"wire": {"alone_level": 6}}},
            "triage.rules.wire.alone_level must be between 1 and 5, got 6",
        ),
        ({"rules": {"snow": {}}}, "triage.rules.snow is not a known key"),
    ],
)
def test_wrong_rule_is_reported_with_field_value_and_remedy(
    triage: Mapping[str, Any], expected: str
) -> None:
    """Such a node does not start."""
    with pytest.raises(SettingsError, match=re.escape(expected)):
        parse_node_settings(table(RAIN, PROBE, triage=triage))


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        (
            {"warning_mm": 120.0, "advisory_mm": 130.0},
            "criteria must be 0 < advisory <= warning <= special",
        ),
        (
            {"warning_mm": 120.0, "line": [[0, 100], [20, 120]]},
            "line must be rising in r60 and never rising in the index",
        ),
        ({"warning_mm": "120 mm"}, "criteria.warning_mm must be a number in mm"),
    ],
)
def test_wrong_criteria_are_reported(
    criteria: Mapping[str, Any], expected: str
) -> None:
    """With field and rule, as for every other key."""
    with pytest.raises(SettingsError, match=re.escape(expected)):
        parse_node_settings(table(RAIN, criteria=criteria))
