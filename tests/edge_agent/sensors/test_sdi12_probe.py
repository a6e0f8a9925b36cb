import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from edge_agent.sensor_reader import SensorReader
from edge_agent.sensors.base import Hardware, SensorBusError, SensorRangeError
from edge_agent.sensors.sdi12 import Sdi12Probe, Sdi12Settings, check_sdi12_address
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.simulator.digital_parts import Sdi12Sensor
from service_runtime.errors import FieldError

PORT = "/dev/ttyUSB1"
TENSION = {
    "kind": "sdi12", "name": "tension", "port": PORT, "address": "2", "unit": "Pa",
    "measures": "soil water potential", "scale": 1000.0, "low": -100_000.0,
    "high": 10_000.0,
}  # fmt: skip


def make_sensor(
    get_state: Callable[[str], str | None] = lambda _: None, **keys: object
) -> tuple[Sdi12Sensor, Sdi12Probe]:
    """A probe with two values, potential and temperature."""
    settings = Sdi12Settings(**(TENSION | keys))  # type: ignore[arg-type]
    buses = SimulatedBuses()
    probe = Sdi12Sensor("2")
    probe.values = {0: (-12.5, 17.25), 1: tuple(n + 0.12345 for n in range(9))}
    buses.attach_serial(PORT, probe.answer)
    hardware = Hardware(None, lambda _: None, get_state, buses=buses)
    return probe, Sdi12Probe(settings, hardware)


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("wait_s", [0, 3])
def test_value_is_measured_and_read(crc: bool, wait_s: int) -> None:
    """At once or after the announced wait; with a CRC or without."""
    probe, sensor = make_sensor(crc=crc)
    probe.wait_s = wait_s
    (reading,) = sensor.read(0.0)
    assert (reading.name, reading.unit, reading.value) == ("tension", "Pa", -12_500.0)


def test_later_values_come_from_later_pages() -> None:
    """Nine values do not fit into one answer of 35 characters."""
    keys = {"command": 1, "value": 9, "scale": 1.0, "unit": "Cel"}
    _, sensor = make_sensor(**keys)
    assert sensor.read(0.0)[0].value == 8.12345


def test_corrected_scale_of_a_counter_is_no_rain() -> None:
    """The total goes on, as that of a Modbus probe."""
    keys: dict[str, object] = {
        "name": "rain", "unit": "mm", "measures": "rain", "counter": True, "low": 0.0,
    }  # fmt: skip
    probe, first = make_sensor(**keys, scale=0.2)
    probe.values[0] = (1000.0, 17.25)
    (before,) = first.read(0.0)
    probe, second = make_sensor(get_state=first.state().get, **keys, scale=0.5)
    probe.values[0] = (1002.0, 17.25)
    (after,) = second.read(0.0)
    assert (before.sum, after.sum) == (200.0, 201.0)


def test_noise_on_the_line_is_one_short_report() -> None:
    """It differs at each attempt, which is no change of the sensor's health."""
    buses, noise = SimulatedBuses(), random.Random(1)
    sizes = (0, 0, 1, 3, 6, 12, 40, 200, 512)
    buses.attach_serial(PORT, lambda _: noise.randbytes(noise.choice(sizes)))
    settings = Sdi12Settings(**TENSION)  # type: ignore[arg-type]
    sensor = Sdi12Probe(settings, Hardware(None, lambda _: None, buses=buses))
    reader = SensorReader([sensor], lambda: 0.0)
    reports = [
        r for _ in range(100) for r in reader.read([sensor], 0.0, is_urgent=True)
    ]
    (health,) = reports
    assert len(str(health.value)) < 250


def test_lost_and_damaged_answers_are_retried() -> None:
    """Three attempts for each command, then an error."""
    probe, sensor = make_sensor()
    probe.ignored_requests, probe.corrupt_answers = 1, 1
    assert sensor.read(0.0)[0].value == -12_500.0
    probe.ignored_requests = 3
    with pytest.raises(
        SensorBusError,
        match=r"^sensor tension SDI-12 2 on /dev/ttyUSB1 does not answer; check 12 V",
    ):
        sensor.read(0.0)
    probe.corrupt_answers = 3
    with pytest.raises(SensorBusError, match="must announce seconds and a count"):
        sensor.read(0.0)


def test_probe_without_crc_support_does_not_answer() -> None:
    """It does not know ``aMC!``; the remedy is crc = false."""
    probe, sensor = make_sensor()
    probe.knows_crc = False
    with pytest.raises(SensorBusError, match="does not answer"):
        sensor.read(0.0)


def test_other_probe_waits_until_the_measurement_is_read() -> None:
    """A command to another probe would abort the measurement, so the line is held."""
    buses = SimulatedBuses()
    hardware = Hardware(None, lambda _: None, buses=buses)
    probes = {name: Sdi12Sensor(name) for name in ("2", "3")}
    seen: list[object] = []

    def read_other_probe() -> None:
        settings = Sdi12Settings(**(TENSION | {"name": "b", "address": "3"}))  # type: ignore[arg-type]
        seen.extend(Sdi12Probe(settings, hardware).read(0.0))

    other_thread = threading.Thread(target=read_other_probe)

    def answer_request(request: bytes) -> bytes:
        if request == b"2MC!":
            other_thread.start()
            other_thread.join(0.05)  # long enough to send if the line were free
        return b"".join(probe.answer(request) for probe in probes.values())

    for probe in probes.values():
        probe.values, probe.wait_s = {0: (-12.5,)}, 1
    buses.attach_serial(PORT, answer_request)
    settings = Sdi12Settings(**TENSION)  # type: ignore[arg-type]
    assert Sdi12Probe(settings, hardware).read(0.0)[0].value == -12_500.0
    other_thread.join()
    assert len(seen) == 1


def test_values_of_one_probe_that_are_read_at_once_share_a_measurement() -> None:
    """Nine measurements of 4 s would exceed the deadline; the next reading is new."""
    probe, measured = Sdi12Sensor("2"), []
    probe.values = {0: tuple(n + 0.5 for n in range(9))}

    def answer(request: bytes) -> bytes:
        if b"M" in request:
            measured.append(request)
            time.sleep(0.5)  # the others begin to wait for the line meanwhile
        return probe.answer(request)

    buses = SimulatedBuses()
    buses.attach_serial(PORT, answer)
    hardware = Hardware(None, lambda _: None, buses=buses)
    tables = [TENSION | {"name": f"m{n}", "value": n} for n in range(1, 10)]
    sensors = [Sdi12Probe(Sdi12Settings(**each), hardware) for each in tables]
    with ThreadPoolExecutor(len(sensors)) as pool:
        values = [list(pool.map(lambda s: s.read(0.0)[0].value, sensors))]
        count = len(measured)
        probe.values = {0: tuple(n + 1.5 for n in range(9))}
        values.append(list(pool.map(lambda s: s.read(0.0)[0].value, sensors)))

    assert values[0] == [1000.0 * (n + 0.5) for n in range(9)]
    assert values[1] == [1000.0 * (n + 1.5) for n in range(9)]
    assert count <= 3


def test_long_wait_and_missing_value_are_reported() -> None:
    """A wait that would block the line, and a value that does not exist."""
    probe, sensor = make_sensor(longest_wait_s=10.0)
    probe.wait_s = 120
    with pytest.raises(SensorBusError, match=r"needs 120 s, more than longest_wait_s"):
        sensor.read(0.0)
    probe.wait_s = 0
    probe.values = {0: ()}
    with pytest.raises(SensorBusError, match="gives 0 values, and value is 1; check"):
        sensor.read(0.0)


def test_error_code_of_a_probe_is_out_of_range() -> None:
    """Probes answer -9999 for a broken element."""
    probe, sensor = make_sensor()
    probe.values = {0: (-9999.0,)}
    with pytest.raises(SensorRangeError, match=r"got -9\.999e\+06 from -9999; check"):
        sensor.read(0.0)


@pytest.mark.parametrize("address", ["", "?", "10", "あ"])
def test_address_is_one_character(address: str) -> None:
    """The question mark queries an address and is not valid in settings."""
    with pytest.raises(FieldError, match="address must be one of 0-9 A-Z a-z"):
        check_sdi12_address(address)
