from functools import partial

import pytest

from edge_agent.sensors.buses import NoBuses, SerialSettings
from edge_agent.simulator.buses import RegisterChip, SimulatedBuses

MODBUS = SerialSettings("Modbus")


def answer_to(name: bytes, request: bytes) -> bytes:
    """Answer of a device with this name."""
    return name + b"!" if request == name else b""


def test_chip_stores_written_registers() -> None:
    """Reading continues with the register after the first."""
    buses = SimulatedBuses()
    buses.attach_i2c(1, 0x48, RegisterChip())
    buses.i2c(1).write(0x48, 2, b"\x12\x34")
    assert buses.i2c(1).read(0x48, 1, 3) == b"\x00\x12\x34"


def test_missing_chip_is_a_remote_io_error() -> None:
    """The kernel's error, for an empty address and for a dead chip."""
    buses, chip = SimulatedBuses(), RegisterChip()
    buses.attach_i2c(1, 0x48, chip)
    chip.is_dead = True
    for address in (0x48, 0x49):
        with pytest.raises(OSError, match="Remote I/O error"):
            buses.i2c(1).read(address, 0, 1)


def test_every_device_of_a_line_receives_every_request() -> None:
    """Only the addressed device answers; an unplugged adapter is an error."""
    buses = SimulatedBuses()
    for name in (b"a", b"b"):
        buses.attach_serial("/dev/ttyS0", partial(answer_to, name))
    line = buses.serial("/dev/ttyS0", MODBUS)
    assert [line.query(name, bool, 1.0) for name in (b"a", b"b", b"c")] == [
        b"a!",
        b"b!",
        b"",
    ]
    line.is_plugged = False
    with pytest.raises(FileNotFoundError, match="No such file"):
        line.query(b"a", bool, 1.0)
    with pytest.raises(OSError, match="already used for Modbus at 9600 8N1, and not"):
        buses.serial("/dev/ttyS0", SerialSettings("SDI-12"))


def test_files_and_gpsd_are_provided_by_parts() -> None:
    """Without a part they are absent."""
    buses = SimulatedBuses()
    with pytest.raises(FileNotFoundError, match="w1_slave"):
        buses.read_file("w1_slave")
    with pytest.raises(ConnectionRefusedError, match="refused"):
        buses.poll_gpsd()
    buses.files["w1_slave"] = lambda: "t=85000"
    buses.gpsd_report = lambda: "{}"
    assert (buses.read_file("w1_slave"), buses.poll_gpsd()) == ("t=85000", "{}")


def test_missing_buses_are_reported() -> None:
    """The error explains that no bus was given with the hardware."""
    no_buses = NoBuses()
    with pytest.raises(FileNotFoundError, match="no I2C bus 1: the sensors were"):
        no_buses.i2c(1)
    with pytest.raises(FileNotFoundError, match="no serial port /dev/ttyS0"):
        no_buses.serial("/dev/ttyS0", MODBUS)
    with pytest.raises(FileNotFoundError, match="no file /sys/x"):
        no_buses.read_file("/sys/x")
    with pytest.raises(FileNotFoundError, match="no disk /"):
        no_buses.disk_usage("/")
    with pytest.raises(FileNotFoundError, match="no gpsd"):
        no_buses.poll_gpsd()
