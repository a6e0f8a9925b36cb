from pathlib import Path

import pytest

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.errors import SensorBusError
from edge_agent.sensors.linux.buses import LinuxBuses
from edge_agent.sensors.machine import (
    MachineHealth,
    MachineSettings,
    check_block_device,
)
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.triage import Triage
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
    """Write a file."""
    buses.files[path] = lambda: text


def part() -> tuple[SimulatedBuses, MachineHealth]:
    """The files of a Raspberry Pi with eMMC, and the sensor."""
    buses = SimulatedBuses()
    for path, text in PI.items():
        put(buses, path, text)
    hardware = Hardware(None, lambda _: None, buses=buses)
    return buses, MachineHealth(MachineSettings(kind="node", name="node"), hardware)


def test_all_that_a_pi_tells() -> None:
    """Heat, time, memory, load, flash, power and room."""
    _, sensor = part()
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
def test_what_is_missing_or_strange_is_left_out(path: str, text: str | None) -> None:
    """One file that is absent, empty or of another form takes no other along."""
    buses, sensor = part()
    if text is None:
        del buses.files[path]
    else:
        put(buses, path, text)
    assert len(sensor.read(0)) in {10, 7}


def test_alarm_stands_in_for_the_firmwares_file() -> None:
    """Kernels without ``get_throttled`` tell of under-voltage through hwmon."""
    buses, sensor = part()
    del buses.files["/sys/devices/platform/soc/soc:firmware/get_throttled"]
    put(buses, "/sys/class/hwmon/hwmon0/name", "cpu_thermal\n")
    put(buses, "/sys/class/hwmon/hwmon2/name", "rpi_volt\n")
    for alarm, is_low in (("0\n", False), ("1\n", True)):
        put(buses, "/sys/class/hwmon/hwmon2/in0_lcrit_alarm", alarm)
        told = {r.name: r.value for r in sensor.read(0)}
        assert told["node/under-voltage"] == float(is_low)
        assert "node/throttled" not in told


def test_sagging_supply_is_no_cut_wire() -> None:
    """Triage takes a truth value for a wire: the node has none."""
    _, sensor = part()
    triage = Triage([MachineSettings(kind="node", name="node")])
    assert triage.assess(sensor.read(0), 0.0).level == 1


def test_machine_that_tells_nothing_is_an_error() -> None:
    """No file at all is a fault of the sandbox, not of the machine."""
    buses, sensor = part()
    buses.files.clear()
    buses.disk_bytes = (0, 0)
    with pytest.raises(SensorBusError, match="finds none of the kernel's files; mount"):
        sensor.read(0)


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="needs Linux")
def test_this_machine_tells_something() -> None:
    """The real files of the machine that runs the tests."""
    hardware = Hardware(None, lambda _: None, buses=LinuxBuses())
    sensor = MachineHealth(MachineSettings(kind="node", name="node"), hardware)
    names = {reading.name for reading in sensor.read(0)}
    assert {"node/uptime", "node/memory-free", "node/load", "node/disk-free"} <= names


@pytest.mark.parametrize("device", ["../..", "MMC", "", "sda/device"])
def test_device_is_the_name_of_a_folder(device: str) -> None:
    """It cannot lead elsewhere."""
    with pytest.raises(FieldError, match="device must be a name in /sys/block"):
        check_block_device(device)
