"""Every kind of sensor, from its settings to a cleared fault."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from slope_bench import START_S, opened, quiet

from edge_agent.cli import cli
from edge_agent.sensors.base import (
    MAX_ANSWER_CHARS,
    Hardware,
    RetryingSensor,
    Sensor,
    SensorConfig,
    SensorError,
)
from edge_agent.sensors.registry import SENSOR_KINDS, open_sensors, parse_sensors
from edge_agent.simulator.board import PARTS, Board
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import Slope, SlopeSite
from spatial_mqtt.senml import Reading

PROBE = {"unit": "m", "measures": "groundwater", "low": -5.0, "high": 20.0}
KEYS: Mapping[str, Mapping[str, Any]] = {
    "adxl345": {"device": 1},
    "ads1115-current": {"channel": 0, "unit": "hPa", "measures": "pore pressure"}
    | {"at_4ma": -100.0, "at_20ma": 900.0, "address": 0x49},
    "ads1115-voltage": {"channel": 1, "scale": 3.0, "offset": -1.0} | PROBE,
    "bme280": {},
    "ds18b20": {"rom": "28-0123456789ab"},
    "extensometer": {"channel": 1, "travel_mm": 500, "home_v": 0.2, "full_v": 3.0},
    "gnss": {"latitude": 33.5588, "longitude": 133.5312},
    "lis3dh": {},
    "modbus": {"port": "/dev/ttyUSB0", "address": 1, "register": 0, "scale": 0.01}
    | PROBE,
    "node": {},
    "piezometer": {"channel": 2, "at_4ma_kpa": -20, "at_20ma_kpa": 80},
    "rain-gauge": {"pin": 17},
    "sca3300": {"device": 1},
    "scl3300": {"device": 1},
    "sdi12": {"port": "/dev/ttyUSB1", "address": "0", "scale": 0.01} | PROBE,
    "soil-moisture": {"channel": 0, "dry_v": 2.6, "wet_v": 1.2},
    "tilt": {"device": 1},
    "ultrasonic": {"trigger_pin": 23, "echo_pin": 24, "mount_m": 2.5},
    "vibration": {"pin": 22},
    "wire": {"pin": 27},
    "wire-eol": {"channel": 3},
}
"""As few keys as each needs; all but the tilt chips find room on one board."""

TILT = ("tilt", "adxl345", "sca3300", "scl3300")


def table(kind: str) -> dict[str, Any]:
    """The minimal settings of a sensor of this kind."""
    return {"kind": kind, "name": kind, **KEYS[kind]}


def open_one(kind: str) -> tuple[Board, Sensor]:
    """A sensor of this kind on its board, an hour after the start."""
    board, sensors = opened(table(kind))
    board.advance(START_S + 3600)
    return board, sensors[kind]


def values_in_unit(sensor: Sensor, readings: list[Reading]) -> list[float]:
    """The values in the sensor's unit."""
    unit = sensor.unit
    values = [r.value for r in readings if r.unit == unit]
    return [float(v) for v in values if isinstance(v, bool | int | float)]


def test_every_kind_has_minimal_settings_and_a_part() -> None:
    """A new kind needs a simulated part and an entry in `KEYS`."""
    assert KEYS.keys() == SENSOR_KINDS.keys() == PARTS.keys()


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_kind_declares_quantity_range_and_claims(kind: str) -> None:
    """Quantity, range and claims; a step greater than zero."""
    (settings,) = parse_sensors([table(kind)])
    low, high = settings.range
    assert settings.quantity
    assert math.isfinite(low)
    assert low < high < math.inf
    assert settings.claims
    assert settings.largest_step is None or settings.largest_step > 0


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_kind_opens_and_reads_within_its_range(kind: str) -> None:
    """On the simulated board, with minimal settings, for a whole day."""
    board, sensor = open_one(kind)
    assert not isinstance(sensor, RetryingSensor)
    for hour in range(1, 24, 4):
        now_s = START_S + hour * 3600
        board.advance(now_s)
        readings = sensor.read(now_s)
        low, high = sensor.range
        assert readings
        assert all(r.name.partition("/")[0] == kind for r in readings)
        assert all(low <= value <= high for value in values_in_unit(sensor, readings))
    sensor.close()


def faults() -> list[tuple[str, Fault]]:
    """Each kind with each fault of its part."""
    pairs = []
    for kind in sorted(KEYS):
        settings = parse_sensors([table(kind)])
        board = Board(Slope(quiet(), SlopeSite(start_s=START_S)), settings, Random(1))
        supported = sorted(board.faults(kind), key=lambda fault: fault.value)
        pairs += [(kind, fault) for fault in supported]
    return pairs


@pytest.mark.parametrize(
    ("kind", "fault"), faults(), ids=lambda x: x if isinstance(x, str) else x.value
)
def test_kind_survives_every_fault_of_its_part(kind: str, fault: Fault) -> None:
    """A reading or a sensor error, nothing else; afterwards it reads as before."""
    board, sensor = open_one(kind)
    sensor.read(START_S + 3600)
    board.inject_fault(kind, fault)
    for minute in range(1, 4):
        now_s = START_S + 3600 + minute * 60
        board.advance(now_s)
        assert read_or_describe(sensor, now_s)
    board.clear_fault(kind)
    now_s = START_S + 3 * 3600
    board.advance(now_s)
    assert read_twice(sensor, now_s)
    sensor.close()


def read_or_describe(sensor: Sensor, now_s: float) -> object:
    """The readings, or whether the error is its reason, an answer and the remedy."""
    try:
        return sensor.read(now_s)
    except SensorError as error:
        begin, end = f"sensor {sensor.name} {error.reason}", f"; {error.remedy}"
        answer = str(error).removeprefix(begin).removesuffix(end)
        is_whole = str(error) == begin + answer + end
        shown = answer.removeprefix(" correctly: it ")
        return is_whole and len(shown) <= MAX_ANSWER_CHARS and error.remedy


def read_twice(sensor: Sensor, now_s: float) -> list[Reading]:
    """The readings; a chip that was reset may need a second attempt."""
    try:
        return sensor.read(now_s)
    except SensorError:
        return sensor.read(now_s)


@pytest.mark.parametrize(
    "kind", [kind for kind, fault in faults() if fault is Fault.DEAD]
)
def test_kind_that_is_missing_at_start_is_read_later(kind: str) -> None:
    """A sensor opened while its part is dead reads once the part works."""
    board, sensor = open_one(kind)
    sensor.close()
    board.inject_fault(kind, Fault.DEAD)
    (settings,) = parse_sensors([table(kind)])
    again = reopened(board, settings)
    board.clear_fault(kind)
    now_s = START_S + 2 * 3600
    board.advance(now_s)
    assert read_twice(again, now_s)
    again.close()


def reopened(board: Board, settings: SensorConfig) -> Sensor:
    hardware = Hardware(board.pin_factory, lambda _: None, buses=board.buses)
    return open_sensors([settings], hardware)[0]


def toml(kind_on_ce1: str, folder: Path) -> str:
    """A node with one of each kind, and this one on CE1."""
    kinds = [kind for kind in sorted(KEYS) if kind not in TILT or kind == kind_on_ce1]
    tables = "".join(
        "\n[[sensor]]\n"
        + "\n".join(
            f"{key} = {json.dumps(value)}" for key, value in table(kind).items()
        )
        for kind in kinds
    )
    return f"""
[node]
id = "all-of-them"
latitude = 33.5588
longitude = 133.5312
[uplink]
managers = ["mqtt://127.0.0.1:1883"]
[queue]
path = "{folder}/queue.db"
[simulation]
start = "2026-07-01T00:00:00+09:00"
{tables}
"""


@pytest.mark.parametrize("kind_on_ce1", TILT)
def test_check_of_a_node_with_one_of_each_passes(
    kind_on_ce1: str, tmp_path: Path
) -> None:
    """`edge-agent check` reads a node with every kind that fits."""
    path = tmp_path / "node.toml"
    path.write_text(toml(kind_on_ce1, tmp_path))
    result = CliRunner().invoke(cli, ["check", "--config", str(path)])
    count = len(KEYS) - len(TILT) + 1
    assert f"{count} of {count} well" in result.output, result.output
    assert result.exit_code == 0
