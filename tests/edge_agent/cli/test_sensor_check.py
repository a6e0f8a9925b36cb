"""Sensor check: each kind of fault has a health and a remedy."""

from typing import Any

import pytest
from slope_bench import START_S, opened

from edge_agent.cli.sensor_check import (
    WIDTH,
    SensorCheck,
    check_sensors,
    find_mounting_notes,
    format_table,
    make_sensor_check,
)
from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.analog import diagnose_loop
from edge_agent.sensors.base import Health
from edge_agent.sensors.registry import parse_sensors
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import SlopeSite

RAIN = {"kind": "rain-gauge", "name": "s", "pin": 17}
WIRE = {"kind": "wire-eol", "name": "s", "channel": 0}
TILT = {"kind": "tilt", "name": "s", "device": 1}
PORE = {"kind": "piezometer", "name": "s", "channel": 0, "at_20ma_kpa": 80}
AIR = {"kind": "bme280", "name": "s"}
COLD = {"kind": "ds18b20", "name": "s", "rom": "28-0000055c1aa1"}


def check_sensor(
    table: dict[str, Any], fault: Fault | None = None, later_s: tuple[float, ...] = ()
) -> SensorCheck:
    """Check of one sensor with this fault, after further readings at these times."""
    board, sensors = opened(table)
    reader = SensorReader(list(sensors.values()), lambda: 0.0)
    if fault is not None:
        board.inject_fault("s", fault)
    readings = reader.read(list(sensors.values()), 0.0)
    for after_s in later_s:
        board.advance(1_700_000_000.0 + after_s)
        readings = reader.read(list(sensors.values()), 0.0)
    return make_sensor_check(parse_sensors([table])[0], readings, reader)


@pytest.mark.parametrize(
    ("table", "fault", "later_s", "health"),
    [
        (TILT, Fault.DEAD, (), Health.NO_ANSWER),
        (TILT, Fault.IO_ERROR, (), Health.NO_ANSWER),
        (TILT, Fault.STUCK, (), Health.STUCK),
        (AIR, Fault.IO_ERROR, (), Health.NO_ANSWER),
        (COLD, Fault.UNCONVERTED, (), Health.NOT_CONVERTED),
        (PORE, Fault.DISCONNECTED, (), Health.LOOP_BROKEN),
        (PORE, Fault.UPSCALE, (), Health.LOOP_FAULT),
        (WIRE, Fault.DISCONNECTED, (), Health.DISCONNECTED),
        (WIRE, Fault.SHORTED, (), Health.SHORTED),
        (RAIN, Fault.SHORTED, (1.0,), Health.STUCK),
        (RAIN, Fault.FLAPPING, (60.0,), Health.FLAPS),
    ],
)
def test_fault_gives_its_health_and_a_remedy(
    table: dict[str, Any], fault: Fault, later_s: tuple[float, ...], health: Health
) -> None:
    """The problem has the form "fault; remedy"."""
    check = check_sensor(table, fault, later_s)

    assert check.health is health
    assert not check.is_ok
    assert check.problem is not None
    assert "; " in check.problem


SHOCKS = {"kind": "vibration", "name": "s", "pin": 22}
SPAN = {"kind": "wire", "name": "s", "pin": 27}


@pytest.mark.parametrize(
    ("table", "fault", "health"),
    [
        (RAIN, None, Health.OK),
        (RAIN, Fault.SHORTED, Health.STUCK),
        (SHOCKS, None, Health.OK),
        (SHOCKS, Fault.SHORTED, Health.STUCK),
        (SPAN, None, Health.OK),
    ],
)
def test_check_finds_a_contact_that_stays_closed(
    table: dict[str, Any], fault: Fault | None, health: Health
) -> None:
    """The first reading of a contact may be within a tip; a second one follows."""
    board, sensors = opened(table)
    if fault is not None:
        board.inject_fault("s", fault)
    reader = SensorReader(list(sensors.values()), lambda: 0.0)
    waits_s: list[float] = []
    (check,) = check_sensors(
        parse_sensors([table]), list(sensors.values()), reader, 0.0, waits_s.append
    )

    assert check.health is health
    assert waits_s == ([0.5] if table in (RAIN, SHOCKS) else [])
    assert (check.problem is None) == (health is Health.OK)


@pytest.mark.parametrize("table", [SPAN, WIRE])
def test_cut_wire_is_not_ok(table: dict[str, Any]) -> None:
    """On a pin, a pulled plug reads the same."""
    board, sensors = opened(table, site=SlopeSite(START_S, wire_break_s=START_S + 60))
    reader = SensorReader(list(sensors.values()), lambda: 0.0)
    (settings,) = parse_sensors([table])

    def check() -> SensorCheck:
        readings = reader.read(list(sensors.values()), 0.0)
        return make_sensor_check(settings, readings, reader)

    assert check().is_ok
    board.advance(START_S + 61)
    assert check().health is Health.DISCONNECTED
    assert check().problem == (
        "sensor s reads cut; see whether the wire is whole and connected"
    )


@pytest.mark.parametrize(
    ("kind", "y_deg", "notes"),
    [
        ("scl3300", -12.0, ["sensor s is mounted 12.0 deg from level; within 8 deg"]),
        ("scl3300", 7.0, []),
        ("sca3300", -12.0, []),
    ],
)
def test_inclinometer_that_is_not_level_is_noted(
    kind: str, y_deg: float, notes: list[str]
) -> None:
    """An SCL3300 measures with the least noise near level only."""
    table = {"kind": kind, "name": "s", "device": 1}
    site = SlopeSite(START_S, mounted_deg=(0.0, y_deg))
    _, sensors = opened(table, site=site)
    reader = SensorReader(list(sensors.values()), lambda: 0.0)
    readings = reader.read(list(sensors.values()), 0.0)
    check = make_sensor_check(parse_sensors([table])[0], readings, reader)

    assert check.is_ok
    assert [n.partition(" an SCL")[0] for n in find_mounting_notes([check])] == notes


def test_healthy_sensor_shows_all_columns() -> None:
    """Value, unit, range, step, quality, wiring."""
    check = check_sensor(PORE)

    assert check.health is Health.OK
    assert [each.name for each in check.shown] == ["s", "s/head", "s/loop"]
    assert format_table([check])[1].split() == [
        "s", "s", *str(check.shown[0]).split()[1:], "-1000..10000", "hPa", "100",
        "good", "SPI0.0", "channel", "0", "ok",
    ]  # fmt: skip


def test_table_with_a_problem_fits_the_width() -> None:
    """Long remedies are wrapped."""
    lines = format_table([check_sensor(COLD, Fault.UNCONVERTED)])

    assert max(map(len, lines)) <= WIDTH
    assert "85.0 C, its value after power-on" in " ".join(lines)


@pytest.mark.parametrize(
    ("loop_ma", "health"),
    [
        (0.0, Health.LOOP_BROKEN),
        (3.4, Health.LOOP_BROKEN),
        (3.7, Health.IMPLAUSIBLE),
        (21.5, Health.LOOP_FAULT),
    ],
)
def test_currents_outside_the_measuring_range_have_a_health(
    loop_ma: float, health: Health
) -> None:
    """NE 43: 3.4 mA is a broken loop, not a dry hole."""
    diagnosis = diagnose_loop(loop_ma)

    assert diagnosis is not None
    assert diagnosis[2] is health
