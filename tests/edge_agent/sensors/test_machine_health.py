from pathlib import Path

import pytest

from edge_agent.sensors.base import Hardware, SensorBusError
from edge_agent.sensors.linux import LinuxBuses
from edge_agent.sensors.machine import (
    MachineHealth,
    MachineSettings,
    check_block_device,
)
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.triage.engine import Triage
from service_runtime.errors import FieldError

PI = {
    "/sys/class/thermal/thermal_zone0/temp": "61234\n",
    "/proc/uptime": "3600.5 100.0\n",
    "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\n",
    "/proc/loadavg": "0.25 0.1 0.1 1/99 1234\n",
    "/sys/block/mmcblk0/stat": "1 2 3 4 5 6 1000 8 9 10 11\n",
    "/sys/block/mmcblk0/device/life_time": "0x01 0x03\n",
    "/sys/devices/platform/soc/soc:firmware/get_throttled": "50001\n",
}


def put(buses: SimulatedBuses, path: str, text: str) -> None:
    """Set the text of a simulated file."""
    buses.files[path] = lambda: text


def make_sensor() -> tuple[SimulatedBuses, MachineHealth]:
    """The files of a Raspberry Pi with eMMC, and the sensor."""
    buses = SimulatedBuses()
    for path, text in PI.items():
        put(buses, path, text)
    hardware = Hardware(None, lambda _: None, buses=buses)
    return buses, MachineHealth(MachineSettings(kind="node", name="node"), hardware)


def test_all_readings_of_a_raspberry_pi() -> None:
    """Temperature, uptime, memory, load, flash, power and disk space."""
    _, sensor = make_sensor()
    assert {
        r.name.removeprefix("node/"): (r.unit, r.value) for r in sensor.read(0)
    } == {
        "cpu-temp": ("Cel", 61.234),
        "uptime": ("s", 3600.5),
        "memory-free": ("/", 0.4),
        "load": ("/", 0.25),
        "written": ("B", 512_000),
        "life-used": ("/", 0.3),
        "under-voltage": ("/", 1.0),
        "under-voltage-seen": ("/", 1.0),
        "throttled": ("/", 0.0),
        "throttled-seen": ("/", 1.0),
        "disk-free": ("/", 0.625),
    }


@pytest.mark.parametrize("path", PI)
@pytest.mark.parametrize("text", [None, "", "broken\n"])
def test_missing_or_malformed_file_is_left_out(path: str, text: str | None) -> None:
    """A file that is missing, empty or malformed does not affect the others."""
    buses, sensor = make_sensor()
    if text is None:
        del buses.files[path]
    else:
        put(buses, path, text)
    assert len(sensor.read(0)) in {10, 7}


def test_hwmon_alarm_replaces_the_firmware_file() -> None:
    """Kernels without ``get_throttled`` report under-voltage through hwmon."""
    buses, sensor = make_sensor()
    del buses.files["/sys/devices/platform/soc/soc:firmware/get_throttled"]
    put(buses, "/sys/class/hwmon/hwmon0/name", "cpu_thermal\n")
    put(buses, "/sys/class/hwmon/hwmon2/name", "rpi_volt\n")
    for alarm, is_low in (("0\n", False), ("1\n", True)):
        put(buses, "/sys/class/hwmon/hwmon2/in0_lcrit_alarm", alarm)
        readings = {r.name: r.value for r in sensor.read(0)}
        assert readings["node/under-voltage"] == float(is_low)
        assert "node/throttled" not in readings


def test_under_voltage_is_not_taken_for_a_cut_wire() -> None:
    """Triage takes a boolean for a trip wire, so these readings are numbers."""
    _, sensor = make_sensor()
    triage = Triage([MachineSettings(kind="node", name="node")])
    assert triage.assess(sensor.read(0), 0.0).level == 1


def test_machine_without_any_file_is_an_error() -> None:
    """No file at all is a fault of the sandbox, not of the machine."""
    buses, sensor = make_sensor()
    buses.files.clear()
    buses.disk_bytes = (0, 0)
    with pytest.raises(SensorBusError, match="finds none of the kernel's files; mount"):
        sensor.read(0)


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="needs Linux")
def test_readings_of_this_machine() -> None:
    """The real files of the machine that runs the tests."""
    hardware = Hardware(None, lambda _: None, buses=LinuxBuses())
    sensor = MachineHealth(MachineSettings(kind="node", name="node"), hardware)
    names = {reading.name for reading in sensor.read(0)}
    assert {"node/uptime", "node/memory-free", "node/load", "node/disk-free"} <= names


@pytest.mark.parametrize("device", ["../..", "MMC", "", "sda/device"])
def test_invalid_block_device_is_refused(device: str) -> None:
    """The name cannot leave the folder."""
    with pytest.raises(FieldError, match="device must be a name in /sys/block"):
        check_block_device(device)
