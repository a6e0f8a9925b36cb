"""Bad hardware is normal: each way to be broken has a name and a remedy."""

from typing import Any

import pytest
from slope_bench import opened

from edge_agent.commissioning.sensor_check import (
    WIDTH,
    SensorCheck,
    format_table,
    make_sensor_check,
)
from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.analog import diagnose_loop
from edge_agent.sensors.errors import Health
from edge_agent.sensors.registry import parse_sensors
from edge_agent.simulator.parts.base import Fault

RAIN = {"kind": "rain-gauge", "name": "s", "pin": 17}
WIRE = {"kind": "wire-eol", "name": "s", "channel": 0}
TILT = {"kind": "tilt", "name": "s", "device": 1}
PORE = {"kind": "piezometer", "name": "s", "channel": 0, "at_20ma_kpa": 80}
AIR = {"kind": "bme280", "name": "s"}
COLD = {"kind": "ds18b20", "name": "s", "rom": "28-0000055c1aa1"}


def look(
    table: dict[str, Any], fault: Fault | None = None, later_s: tuple[float, ...] = ()
) -> SensorCheck:
    """The last of some looks at one sensor whose part is broken."""
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
def test_broken_part_has_a_named_health_and_a_remedy(
    table: dict[str, Any], fault: Fault, later_s: tuple[float, ...], health: Health
) -> None:
    """What an installer looks up in the guide, and what to do about it."""
    seen = look(table, fault, later_s)

    assert seen.health is health
    assert not seen.is_ok
    assert seen.problem is not None
    assert "; " in seen.problem


def test_well_sensor_shows_all_an_installer_compares() -> None:
    """Value, unit, range, step, quality, wiring."""
    seen = look(PORE)

    assert seen.health is Health.OK
    assert [each.name for each in seen.shown] == ["s", "s/head", "s/loop"]
    assert format_table([seen])[1].split() == [
        "s", "s", *str(seen.shown[0]).split()[1:], "-1000..10000", "hPa", "100",
        "good", "SPI0.0", "channel", "0", "ok",
    ]  # fmt: skip


def test_sentence_of_a_problem_fits_a_photograph() -> None:
    """Long remedies are broken, not cut."""
    lines = format_table([look(COLD, Fault.UNCONVERTED)])

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
def test_each_current_that_is_no_measurement_has_a_name(
    loop_ma: float, health: Health
) -> None:
    """NE 43: 3.4 mA is a broken loop, not a dry hole."""
    wrong = diagnose_loop(loop_ma)

    assert wrong is not None
    assert wrong[2] is health
