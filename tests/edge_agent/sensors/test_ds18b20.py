import pytest

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.ds18b20 import Ds18b20, Ds18b20Settings, check_rom
from edge_agent.sensors.errors import SensorBusError, SensorRangeError
from edge_agent.simulator.buses import SimulatedBuses
from service_runtime.errors import FieldError

ROM = "28-00000a1b2c3d"


SLAVE = """50 05 4b 46 7f ff 0c 10 1c : crc=1c {word}
50 05 4b 46 7f ff 0c 10 1c t={milli}
"""


class Kernel(SimulatedBuses):
    """The two files of a chip, as texts that a test sets.

    Attributes:
        temperature: Text of the newer file; None where there is none.
        slave: Text of the older one.
        damaged: How many of the next texts come damaged.
        conversions: How often the newer file was read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.temperature: str | None = None
        self.slave: str | None = None
        self.damaged = 0
        self.conversions = 0

    def read_file(self, path: str) -> str:
        """Text of a file."""
        is_new = path == f"/sys/bus/w1/devices/{ROM}/temperature"
        text = self.temperature if is_new else self.slave
        if text is None:
            return super().read_file(path)
        self.conversions += is_new
        self.damaged, was = max(self.damaged - 1, 0), self.damaged
        return "" if was else text


def part() -> tuple[Kernel, Ds18b20]:
    """The kernel, without a chip yet, and the sensor."""
    kernel = Kernel()
    settings = Ds18b20Settings(kind="ds18b20", name="ground", rom=ROM)
    return kernel, Ds18b20(settings, Hardware(None, lambda _: None, buses=kernel))


def value(sensor: Ds18b20) -> object:
    """The one reading."""
    (reading,) = sensor.read(0.0)
    assert (reading.name, reading.unit) == ("ground", "Cel")
    return reading.value


def test_temperature_of_a_new_and_of_an_old_kernel() -> None:
    """``temperature`` where it is, else ``w1_slave``."""
    kernel, sensor = part()
    kernel.slave = SLAVE.format(word="YES", milli=-10125)
    assert value(sensor) == -10.125
    kernel.temperature = "25062\n"
    assert value(sensor) == 25.062


def test_absent_chip_is_named_and_comes_back() -> None:
    """A chip that fell off the wire has no folder; the sensor goes on trying."""
    kernel, sensor = part()
    with pytest.raises(
        SensorBusError, match=rf"sensor ground 1-Wire {ROM} is not there: .*; check the"
    ):
        sensor.read(0.0)
    kernel.temperature = "12000\n"
    assert value(sensor) == 12.0


def test_power_on_value_and_short_are_no_temperature() -> None:
    """85.0 C and -127 C are named."""
    kernel, sensor = part()
    kernel.temperature = "85000\n"
    with pytest.raises(
        SensorRangeError, match=r"sensor ground reads 85\.0 C, its value"
    ):
        sensor.read(0.0)
    kernel.temperature = "-127000\n"
    with pytest.raises(SensorRangeError, match="reads -127 C: it is disconnected"):
        sensor.read(0.0)


def test_damaged_answer_is_repeated_once() -> None:
    """One bad CRC is noise on the cable, two in a row are a fault."""
    kernel, sensor = part()
    kernel.temperature = "12000\n"
    kernel.damaged = 1
    assert value(sensor) == 12.0
    kernel.damaged = 2
    with pytest.raises(SensorBusError, match="gives an empty file"):
        sensor.read(0.0)
    assert (kernel.conversions, kernel.damaged) == (4, 0)


def test_no_of_the_kernel_is_a_wrong_crc() -> None:
    """The kernel reads and tells; the value is not used."""
    kernel, sensor = part()
    kernel.slave = SLAVE.format(word="NO", milli=20000)
    with pytest.raises(SensorBusError, match="answers with a wrong CRC"):
        sensor.read(0.0)


@pytest.mark.parametrize("rom", ["28-00000A1B2C3D", "10-000000000000", "28-1/../x"])
def test_number_of_another_form_is_refused(rom: str) -> None:
    """A chip's number names a folder, nothing else."""
    with pytest.raises(FieldError, match="rom must be 28- and 12 of 0-9 a-f"):
        check_rom(rom)
