import random

import pytest
from triage_readings import RAIN as TRIAGE_RAIN
from triage_readings import START_S

from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.base import Hardware, SensorBusError, SensorRangeError
from edge_agent.sensors.generic_probe import CountedTotal
from edge_agent.sensors.modbus import ModbusProbe, ModbusSettings
from edge_agent.simulator.buses import SimulatedBuses, SimulatedSerial
from edge_agent.simulator.digital_parts import ModbusSlave
from edge_agent.triage.engine import Triage
from service_runtime.errors import FieldError
from slope_science.levels import Criteria
from spatial_mqtt.senml import Reading

PORT = "/dev/ttyUSB0"
SOIL = {
    "kind": "modbus", "name": "soil", "port": PORT, "address": 3, "register": 7,
    "unit": "/", "measures": "volumetric water content", "scale": 0.001,
    "low": 0.0, "high": 0.7, "type": "uint16",
}  # fmt: skip


def make_settings(**keys: object) -> ModbusSettings:
    """A soil probe, with some keys changed."""
    return ModbusSettings(**(SOIL | keys))  # type: ignore[arg-type]


def make_sensor(**keys: object) -> tuple[ModbusSlave, SimulatedSerial, ModbusProbe]:
    """A device with 312 in the register of the settings."""
    settings = make_settings(**keys)
    buses = SimulatedBuses()
    slave = ModbusSlave(3)
    slave.set_number(settings.register, 312, settings.type, settings.order)
    buses.attach_serial(PORT, slave.answer)
    hardware = Hardware(None, lambda _: None, buses=buses)
    return slave, buses.line(PORT), ModbusProbe(settings, hardware)


@pytest.mark.parametrize("kind", ["int16", "uint16", "int32", "uint32", "float32"])
@pytest.mark.parametrize("order", ["ABCD", "CDAB", "BADC", "DCBA"])
def test_number_is_read_back(kind: str, order: str) -> None:
    """Every type in every order, scaled to the installer's unit."""
    _, _, sensor = make_sensor(type=kind, order=order, function=4)
    (reading,) = sensor.read(0.0)
    assert (reading.name, reading.unit, reading.value) == ("soil", "/", 0.312)


def test_noise_on_the_line_is_one_short_report() -> None:
    """It differs at each attempt, which is no change of the sensor's health."""
    buses, noise = SimulatedBuses(), random.Random(1)
    sizes = (0, 0, 1, 3, 6, 12, 40, 200, 512)
    buses.attach_serial(PORT, lambda _: noise.randbytes(noise.choice(sizes)))
    sensor = ModbusProbe(make_settings(), Hardware(None, lambda _: None, buses=buses))
    reader = SensorReader([sensor], lambda: 0.0)
    reports = [
        r for _ in range(100) for r in reader.read([sensor], 0.0, is_urgent=True)
    ]
    (health,) = reports
    assert len(str(health.value)) < 250


def test_lost_and_damaged_answers_are_retried() -> None:
    """Two in a row are common on a long cable; three are a fault."""
    slave, _, sensor = make_sensor()
    slave.ignored_requests, slave.corrupt_answers = 1, 1
    assert sensor.read(0.0)[0].value == 0.312
    slave.ignored_requests = 3
    with pytest.raises(
        SensorBusError,
        match=r"^sensor soil Modbus 3 on /dev/ttyUSB0 does not answer; check power, A",
    ):
        sensor.read(0.0)
    slave.corrupt_answers = 3
    with pytest.raises(SensorBusError, match="answers with a wrong CRC: 03 03 02"):
        sensor.read(0.0)


def test_slow_probe_has_two_attempts() -> None:
    """Three of 5 s with their waits exceed the deadline of a reading."""
    slave, _, sensor = make_sensor(timeout_s=5.0)
    slave.ignored_requests = 2
    with pytest.raises(SensorBusError, match="does not answer"):
        sensor.read(0.0)
    assert sensor.read(0.0)[0].value == 0.312
    assert sensor.read(0.0)[0].value == 0.312


def test_exception_is_reported_and_not_retried() -> None:
    """A register that does not exist is a mistake in the settings."""
    slave, _, sensor = make_sensor()
    slave.registers.clear()
    slave.corrupt_answers = 0
    with pytest.raises(
        SensorBusError,
        match="refuses with exception 2, illegal data address; check function and",
    ):
        sensor.read(0.0)
    slave.functions = frozenset({4})
    with pytest.raises(SensorBusError, match="exception 1, illegal function"):
        sensor.read(0.0)


def test_unplugged_adapter_is_reported() -> None:
    """The serial port itself is missing."""
    _, line, sensor = make_sensor()
    line.is_plugged = False
    with pytest.raises(SensorBusError, match="Modbus 3 on /dev/ttyUSB0 is not there"):
        sensor.read(0.0)


@pytest.mark.parametrize(
    ("number", "kind"), [(900, "uint16"), (float("nan"), "float32")]
)
def test_impossible_number_is_reported(number: float, kind: str) -> None:
    """Outside the installer's range, and NaN."""
    slave, _, sensor = make_sensor(type=kind)
    slave.set_number(7, number, kind, "ABCD")
    with pytest.raises(SensorRangeError, match=r"between 0 and 0.7 /, got (0\.9|nan)"):
        sensor.read(0.0)


def test_dead_device_on_the_line_does_not_matter() -> None:
    """Two probes on one line; one is dead, the other is read."""
    slave, line, sensor = make_sensor()
    other = ModbusSlave(4)
    other.ignored_requests = 99
    line.devices.append(other.answer)
    slave.set_number(7, 400, "uint16", "ABCD")
    assert sensor.read(0.0)[0].value == 0.4


def test_claim_names_port_address_and_register() -> None:
    """A claim consists of port, address, function and register."""
    assert make_settings().claims == ("/dev/ttyUSB0 address 3 function 3 register 7",)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"register": 65535, "type": "int32"},
            "register must be at most 65534 for int32",
        ),
        ({"scale": 0.0}, "scale must be other than 0"),
        ({"low": 1.0}, r"low must be less than high \(0\.7\), got 1\.0"),
    ],
)
def test_contradictory_settings_are_refused(
    keys: dict[str, object], expected: str
) -> None:
    """Rules that bounds of a single field cannot express."""
    with pytest.raises(FieldError, match=expected):
        make_settings(**keys)


def test_simulated_probe_limits_numbers_to_the_register() -> None:
    """Numbers beyond the register are limited, as in a real probe."""
    slave = ModbusSlave(3)
    slave.set_number(0, 1e9, "uint16", "ABCD")
    slave.set_number(1, -1e9, "int16", "ABCD")
    assert slave.registers == {0: 0xFFFF, 1: 0x8000}


RAIN = {
    "name": "rain", "unit": "mm", "measures": "rain", "counter": True, "high": 9999.0,
}  # fmt: skip


def totals(
    numbers: list[int], stored: dict[str, str], **keys: object
) -> list[float | None]:
    """Totals of a rain gauge for numbers in its register; changes the stored state."""
    settings, slave = make_settings(**RAIN, **keys), ModbusSlave(3)
    buses = SimulatedBuses()
    buses.attach_serial(PORT, slave.answer)
    hardware = Hardware(None, lambda _: None, dict(stored).get, buses=buses)
    sensor = ModbusProbe(settings, hardware)
    found = []
    for number in numbers:
        slave.set_number(settings.register, number, settings.type, settings.order)
        found += [reading.sum for reading in sensor.read(0.0)]
        stored.update(sensor.state())
    return found


def test_corrected_scale_of_a_counter_is_no_rain() -> None:
    """The probe counts on, and rain that falls during the restart counts."""
    stored: dict[str, str] = {}
    assert totals([999, 1000], stored, scale=0.2) == [199.8, 200.0]
    assert totals([1000, 1002], stored, scale=0.5) == [200.0, 201.0]
    assert totals([1003], stored, scale=0.5) == [201.5]
    assert totals([1004], stored, scale=0.2, offset=7.0) == [201.7]


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.5), (0.5, 0.2)])
def test_counter_that_falls_after_a_correction_is_never_a_rise(
    before: float, after: float
) -> None:
    """A reset gives the counter's own total.

    A reading that is a little less does not bring back what the correction took away.
    """
    stored: dict[str, str] = {}
    (last,) = totals([1000], stored, scale=before)
    lower = totals([999, 1000], dict(stored), scale=after)
    assert last is not None
    assert all(total is not None and total <= last for total in lower)
    assert totals([0, 10], stored, scale=after) == [0.0, 10 * after]


@pytest.mark.parametrize("low", [[0], [0, 0], [100]])
@pytest.mark.parametrize("restarts", [False, True])
def test_wrong_low_number_after_a_correction_is_no_sure_rain(
    low: list[int], *, restarts: bool
) -> None:
    """The rise to the earlier total is doubtful, also if the node was off meanwhile."""
    stored: dict[str, str] = {}
    totals([408], stored, scale=0.5)
    numbers = [408, *low, 408, 409]
    groups = [[number] for number in numbers] if restarts else [numbers]
    found = [mm for each in groups for mm in totals(each, stored, scale=0.25)]
    assert found == [204.0, *[0.25 * number for number in low], 204.0, 204.25]
    triage, levels = Triage([TRIAGE_RAIN], criteria=Criteria(150, 112, 277)), []
    for n, sum_mm in enumerate(found):
        reading = Reading("rain", "mm", None, sum_mm)
        levels.append(triage.assess([reading], START_S + 3600 * n).level)
    assert max(levels) == 3


def test_small_fall_after_a_correction_stays_small() -> None:
    """Else the return to the number would be doubtful rain of the whole correction."""
    stored: dict[str, str] = {}
    totals([1000], stored, scale=0.5)
    assert totals([999, 1000], stored, scale=0.2) == [499.8, 500.0]


def test_wrong_low_number_before_a_correction_loses_nothing() -> None:
    """Both the fall and the total before it are known after the restart."""
    stored: dict[str, str] = {}
    totals([408, 0], stored, scale=0.5)
    assert totals([408, 0], stored, scale=0.25) == [204.0, 0.0]
    assert totals([408, 410], stored, scale=0.2) == [204.0, 204.4]


def test_reset_counter_that_grows_past_its_earlier_number_is_its_own() -> None:
    stored: dict[str, str] = {}
    totals([408], stored, scale=0.5)
    assert totals([0, 10, 500], stored, scale=0.25) == [0.0, 2.5, 125.0]


@pytest.mark.parametrize(
    "stored", ["", "x", "1000 0.2 0", "nan 1 0 0 mm", "1 1 0 0 2 nan mm"]
)
def test_counter_without_its_scale_is_of_the_present_one(stored: str) -> None:
    assert totals([1000], {"sensor.rain.counter": stored}, scale=0.5) == [500.0]


def test_total_in_another_unit_is_its_own() -> None:
    """Triage and the backend convert it."""
    stored: dict[str, str] = {}
    totals([1000], stored, scale=0.2)
    in_cm = ModbusSettings(**(SOIL | RAIN | {"unit": "cm", "scale": 0.02}))  # type: ignore[arg-type]
    total = CountedTotal(in_cm, stored.get)
    assert total.reading(1000).sum == 20.0
