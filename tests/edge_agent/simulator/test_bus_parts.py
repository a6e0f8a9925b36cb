import random

import pytest

from edge_agent.sensors.base import Hardware, RetryingSensor, Sensor, SensorError
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.buses import Fault
from edge_agent.simulator.slope import Slope, SlopeSite, SlopeState, make_storm

START_S = 1_700_000_000.0
USB0, USB1 = "/dev/ttyUSB0", "/dev/ttyUSB1"
VOLTS = {"kind": "ads1115-voltage", "samples": 9, "full_scale_v": 4.096}
SOIL = {"kind": "modbus", "port": USB0, "type": "uint16", "scale": 0.001}
TENSION = {"kind": "sdi12", "port": USB1, "address": "2"}
TABLES = (
    VOLTS
    | {"name": "water", "channel": 0, "unit": "m", "measures": "groundwater"}
    | {"scale": 2.0, "offset": -1.0, "low": -0.5, "high": 5.0},
    VOLTS
    | {"name": "crack", "channel": 3, "unit": "mm", "measures": "opening"}
    | {"scale": 100.0, "low": -10.0, "high": 300.0},
    {"kind": "ads1115-current", "name": "pore", "address": 0x49, "channel": 1}
    | {"unit": "hPa", "measures": "pore pressure", "at_4ma": -100.0, "at_20ma": 900.0},
    {"kind": "lis3dh", "name": "knock"},
    {"kind": "bme280", "name": "air"},
    {"kind": "ds18b20", "name": "ground", "rom": "28-00000a1b2c3d"},
    SOIL
    | {"name": "soil", "address": 1, "register": 0, "unit": "/", "measures": "water"}
    | {"low": 0.0, "high": 0.7},
    SOIL
    | {"name": "warmth", "address": 2, "register": 5, "unit": "Cel", "type": "float32"}
    | {"measures": "temperature", "low": -40.0, "high": 60.0, "scale": 1.0},
    TENSION
    | {"name": "tension", "unit": "Pa", "measures": "water potential"}
    | {"scale": 1000.0, "low": -100_000.0, "high": 50_000.0},
    {"kind": "gnss", "name": "gnss", "latitude": 35.1, "longitude": 139.2},
    {"kind": "node", "name": "node"},
)
SOIL_TABLE, TENSION_TABLE = (t for t in TABLES if t["name"] in {"soil", "tension"})
NAMES = {str(table["name"]) for table in TABLES}


def node() -> tuple[Board, dict[str, Sensor], SlopeState]:
    """A node with one of each sensor, an hour into a storm."""
    settings = parse_sensors(TABLES)
    slope = Slope(make_storm("peaked", START_S, 10, 100), SlopeSite(start_s=START_S))
    board = Board(slope, settings, random.Random(1))
    hardware = Hardware(board.pin_factory, lambda _: None, buses=board.buses)
    state = board.advance(START_S + 3600)
    sensors = {each.name: each for each in open_sensors(settings, hardware)}
    return board, sensors, state


def values(sensor: Sensor) -> dict[str, float]:
    """Readings by name."""
    return {r.name: float(str(r.value)) for r in sensor.read(START_S) if r.unit}


def readable(sensors: dict[str, Sensor]) -> set[str]:
    """Names of the sensors that can be read."""
    found = set()
    for name, sensor in sensors.items():
        try:
            assert sensor.read(START_S), name
        except SensorError:
            continue
        found.add(name)
    return found


def test_drivers_read_the_state_of_the_slope() -> None:
    """Every quantity is read back through registers, wires and protocols."""
    _, sensors, state = node()
    assert not [s for s in sensors.values() if isinstance(s, RetryingSensor)]
    seen = {k: v for s in sensors.values() for k, v in values(s).items()}
    for name, expected, tolerance in (
        ("water", state.groundwater_m, 0.02),
        ("crack", state.displacement_mm, 0.3),
        ("pore", state.pore_kpa * 10, 1.0),
        ("knock/pitch", state.tilt_x_deg, 0.8),
        ("air/temp", state.air.temp_c, 0.1),
        ("air/humidity", state.air.humidity_pct, 0.5),
        ("air/pressure", state.air.pressure_hpa, 0.1),
        ("ground", state.temp_c, 0.04),
        ("soil", state.vwc, 0.002),
        ("warmth", state.temp_c, 0.1),
        ("tension", state.pore_kpa * 1000, 100),
        ("gnss/moved", 0.0, 8.0),
        ("node/cpu-temp", state.air.temp_c + 22, 0.01),
    ):
        assert seen[name] == pytest.approx(expected, abs=tolerance), name


@pytest.mark.parametrize(
    ("name", "fault", "expected", "also_failing"),
    [
        ("water", Fault.DEAD, "I2C1 0x48 does not answer", {"crack"}),
        ("water", Fault.IO_ERROR, "I2C1 0x48 does not .*Input/output", {"crack"}),
        ("water", Fault.IMPOSTOR, "as an ADS1115 does", {"crack"}),
        ("crack", Fault.SATURATED, "the end of", set()),
        ("crack", Fault.NOISY, "is too noisy: 0.* V among the samples", set()),
        ("pore", Fault.DISCONNECTED, "has a loop that has no current: 0", set()),
        ("pore", Fault.UPSCALE, "has a loop that reports a fault of its own", set()),
        ("pore", Fault.SHORTED, "has a loop that has no current: ", set()),
        ("pore", Fault.SATURATED, "the end of", set()),
        ("pore", Fault.DEAD, "I2C1 0x49 does not answer", set()),
        ("knock", Fault.DEAD, "I2C1 0x18 does not answer", set()),
        ("knock", Fault.IMPOSTOR, "has no new sample|as a LIS3DH", set()),
        ("air", Fault.IO_ERROR, "I2C1 0x76 does not answer", set()),
        ("ground", Fault.DEAD, "is not there", set()),
        ("ground", Fault.UNCONVERTED, r"85\.0 C, its value after power-on", set()),
        ("ground", Fault.SHORTED, "the line is held low", set()),
        ("ground", Fault.GARBLED, "a wrong CRC", set()),
        ("soil", Fault.DEAD, "Modbus 1 on /dev/ttyUSB0 does not answer", set()),
        ("soil", Fault.GARBLED, "a wrong CRC", set()),
        ("soil", Fault.SATURATED, "must read between 0 and 0.7", set()),
        ("soil", Fault.DISCONNECTED, "ttyUSB0 is not there", {"warmth"}),
        ("tension", Fault.DEAD, "SDI-12 2 on /dev/ttyUSB1 does not answer", set()),
        ("tension", Fault.GARBLED, "seconds and a count", set()),
        ("tension", Fault.SATURATED, "from -9999", set()),
        ("tension", Fault.DISCONNECTED, "ttyUSB1 is not there", set()),
        ("gnss", Fault.DEAD, "gpsd failed: .*refused", set()),
        ("gnss", Fault.DISCONNECTED, "gpsd has no receiver", set()),
        ("gnss", Fault.SATURATED, "the receiver has no fix", set()),
    ],
)  # fmt: skip
def test_fault_is_reported_and_affects_no_other_sensor(
    name: str, fault: Fault, expected: str, also_failing: set[str]
) -> None:
    """A broken part affects itself and what shares it, and nothing else."""
    board, sensors, _ = node()
    if fault is Fault.IMPOSTOR:
        values(sensors[name])
        board.clear_fault(name)  # replacing the chip interrupts its power
    board.inject_fault(name, fault)
    with pytest.raises(SensorError, match=rf"^sensor {name} .*({expected}).*; "):
        sensors[name].read(START_S)
    assert readable(sensors) == NAMES - {name} - also_failing
    board.clear_fault(name)
    board.advance(START_S + 3700)
    readable(sensors)  # the first reading configures a chip that lost power
    assert readable(sensors) == NAMES


@pytest.mark.parametrize("name", ["water", "air", "ground", "soil", "tension", "knock"])
def test_stuck_part_repeats_its_value(name: str) -> None:
    """A repeated value is not an error: quality control has to find it."""
    board, sensors, _ = node()
    before = values(sensors[name])
    board.inject_fault(name, Fault.STUCK)
    board.advance(START_S + 9 * 3600)
    assert values(sensors[name]) == pytest.approx(before, abs=0.5)


def test_slow_quantities_have_long_intervals() -> None:
    """Air, ground, position and machine every five minutes; the slope every minute."""
    intervals = {s.name: s.interval_s for s in parse_sensors(TABLES)}
    slow = {name for name, interval_s in intervals.items() if interval_s == 300}
    assert slow == {"air", "ground", "gnss", "node"}


def test_under_voltage_is_reported() -> None:
    """Under-voltage is a reading, not an error."""
    board, sensors, _ = node()
    board.inject_fault("node", Fault.SATURATED)
    readings = {r.name: r.value for r in sensors["node"].read(START_S)}
    assert readings["node/under-voltage"] == 1.0
    assert readings["node/throttled-seen"] == 1.0


def test_second_protocol_on_a_line_does_not_open() -> None:
    """A line is Modbus or SDI-12; the second sensor fails to open and is retried."""
    tables = (SOIL_TABLE, TENSION_TABLE | {"port": USB0})
    settings = [each for table in tables for each in parse_sensors([table])]
    slope = Slope(make_storm("quiet", START_S, 1, 0), SlopeSite(start_s=START_S))
    board = Board(slope, settings, random.Random(1))
    hardware = Hardware(board.pin_factory, lambda _: None, buses=board.buses)
    _, tension = open_sensors(settings, hardware)
    assert "USB0 is already used for Modbus at 9600 8N1, and not for SDI-12" in str(
        getattr(tension, "error", None)
    )


def test_conflicting_settings_of_a_line_are_refused() -> None:
    """It is found before anything is opened, and the error names both protocols."""
    with pytest.raises(
        ValueError, match="must give the same settings for /dev/ttyUSB0"
    ) as caught:
        parse_sensors([SOIL_TABLE, TENSION_TABLE | {"port": USB0}])
    assert "SDI-12 at 9600 8N1 and not Modbus at 9600 8N1" in str(caught.value)
    with pytest.raises(
        ValueError, match="Modbus at 9600 8E1 and not Modbus at 9600 8N"
    ):
        parse_sensors([SOIL_TABLE, SOIL_TABLE | {"name": "b", "parity": "even"}])


def test_conflicting_claims_are_found() -> None:
    """Two sensors that need one channel, one register, one chip, one machine."""
    clashing = [dict(table, name=f"{table['name']}2") for table in TABLES]
    with pytest.raises(ValueError, match="sensor") as caught:
        parse_sensors([*TABLES, *clashing])
    assert len(caught.value.problems) == len(TABLES)  # type: ignore[attr-defined]
