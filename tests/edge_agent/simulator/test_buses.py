from functools import partial

import pytest

from edge_agent.sensors.buses import NoBuses, SerialSettings
from edge_agent.simulator.buses import RegisterChip, SimulatedBuses

MODBUS = SerialSettings("Modbus")


def answer_to(name: bytes, request: bytes) -> bytes:
    """What a device of a name says."""
    return name + b"!" if request == name else b""


def test_chip_keeps_what_is_written() -> None:
    """Registers run on from the one that was named."""
    buses = SimulatedBuses()
    buses.attach_i2c(1, 0x48, RegisterChip())
    buses.i2c(1).write(0x48, 2, b"\x12\x34")
    assert buses.i2c(1).read(0x48, 1, 3) == b"\x00\x12\x34"


def test_nobody_at_an_address_is_a_remote_io_error() -> None:
    """As the kernel says it, for an empty address and for a dead chip."""
    buses, chip = SimulatedBuses(), RegisterChip()
    buses.attach_i2c(1, 0x48, chip)
    chip.is_dead = True
    for address in (0x48, 0x49):
        with pytest.raises(OSError, match="Remote I/O error"):
            buses.i2c(1).read(address, 0, 1)


def test_every_device_of_a_line_hears_every_word() -> None:
    """Who is not meant keeps silent; an unplugged adapter is an error."""
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


def test_files_and_gpsd_are_there_when_a_part_brings_them() -> None:
    """Without a part they are absent, as on a machine without them."""
    buses = SimulatedBuses()
    with pytest.raises(FileNotFoundError, match="w1_slave"):
        buses.read_file("w1_slave")
    with pytest.raises(ConnectionRefusedError, match="refused"):
        buses.poll_gpsd()
    buses.files["w1_slave"] = lambda: "t=85000"
    buses.gpsd_report = lambda: "{}"
    assert (buses.read_file("w1_slave"), buses.poll_gpsd()) == ("t=85000", "{}")


def test_a_node_without_buses_says_so() -> None:
    """A driver that needs a bus is told that none came with the hardware."""
    none = NoBuses()
    with pytest.raises(FileNotFoundError, match="no I2C bus 1: the sensors were"):
        none.i2c(1)
    with pytest.raises(FileNotFoundError, match="no serial port /dev/ttyS0"):
        none.serial("/dev/ttyS0", MODBUS)
    with pytest.raises(FileNotFoundError, match="no file /sys/x"):
        none.read_file("/sys/x")
    with pytest.raises(FileNotFoundError, match="no disk /"):
        none.disk_usage("/")
    with pytest.raises(FileNotFoundError, match="no gpsd"):
        none.poll_gpsd()
