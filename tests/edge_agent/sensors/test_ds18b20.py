import pytest
from slope_bench import START_S, opened, values

from edge_agent.sensors.base import Hardware, Health, SensorBusError, SensorRangeError
from edge_agent.sensors.ds18b20 import Ds18b20, Ds18b20Settings, check_rom, decode
from edge_agent.simulator.buses import Fault, SimulatedBuses
from service_runtime.errors import FieldError

ROM = "28-00000a1b2c3d"


SLAVE = """50 05 4b 46 7f ff 0c 10 1c : crc=1c {word}
50 05 4b 46 7f ff 0c 10 1c t={milli}
"""


class FakeKernel(SimulatedBuses):
    """The two files of a chip, with settable texts.

    Attributes:
        temperature: Text of the newer file; None without the file.
        slave: Text of the older file.
        damaged: Number of next reads that give an empty text.
        conversions: Number of reads of the newer file.
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


def make_sensor() -> tuple[FakeKernel, Ds18b20]:
    """The kernel without a chip, and the sensor."""
    kernel = FakeKernel()
    settings = Ds18b20Settings(kind="ds18b20", name="ground", rom=ROM)
    return kernel, Ds18b20(settings, Hardware(None, lambda _: None, buses=kernel))


def value(sensor: Ds18b20) -> object:
    """The value of the one reading."""
    (reading,) = sensor.read(0.0)
    assert (reading.name, reading.unit) == ("ground", "Cel")
    return reading.value


def test_temperature_of_a_new_and_of_an_old_kernel() -> None:
    """``temperature`` if present, else ``w1_slave``."""
    kernel, sensor = make_sensor()
    kernel.slave = SLAVE.format(word="YES", milli=-10125)
    assert value(sensor) == -10.125
    kernel.temperature = "25062\n"
    assert value(sensor) == 25.062


def test_missing_chip_is_reported_and_retried() -> None:
    """A chip that is disconnected has no folder; the sensor is retried."""
    kernel, sensor = make_sensor()
    with pytest.raises(
        SensorBusError, match=rf"sensor ground 1-Wire {ROM} is not there: .*; check the"
    ):
        sensor.read(0.0)
    kernel.temperature = "12000\n"
    assert value(sensor) == 12.0


def test_power_on_value_and_short_are_no_temperature() -> None:
    """85.0 C and -127 C are reported as faults."""
    kernel, sensor = make_sensor()
    kernel.temperature = "85000\n"
    with pytest.raises(
        SensorRangeError, match=r"sensor ground reads 85\.0 C, its value"
    ):
        sensor.read(0.0)
    kernel.temperature = "-127000\n"
    with pytest.raises(SensorRangeError, match="reads -127 C: it is disconnected"):
        sensor.read(0.0)


def test_zero_is_confirmed_by_the_bytes_of_the_chip() -> None:
    """A line that is held low reads 0 C with a valid CRC, too."""
    kernel, sensor = make_sensor()
    kernel.temperature, zeros = "0\n", "00 " * 9
    kernel.slave = f"{zeros}: crc=00 YES\n{zeros}t=0\n"
    with pytest.raises(SensorRangeError, match="only zero bytes") as caught:
        sensor.read(0.0)
    assert caught.value.health is Health.SHORTED
    kernel.slave = SLAVE.format(word="YES", milli=0)
    assert value(sensor) == 0.0
    kernel.temperature = "62\n"
    kernel.slave = f"{zeros}: crc=00 YES\n{zeros}t=0\n"
    assert value(sensor) == 0.062


@pytest.mark.parametrize("celsius", [-10.125, 0.0, 25.0625])
def test_simulated_chip_has_both_files(celsius: float) -> None:
    """As the kernel: nine bytes with their CRC, also of 0 C."""
    board, sensors = opened({"kind": "ds18b20", "name": "ground", "rom": ROM})
    board._parts["ground"]._celsius = celsius  # noqa: SLF001 - as at another time
    text = board.buses.read_file(f"/sys/bus/w1/devices/{ROM}/w1_slave")
    assert (
        decode(text)
        == values(sensors["ground"])["ground"]
        == int(celsius * 1000) / 1000
    )


def test_shorted_line_is_reported() -> None:
    board, sensors = opened({"kind": "ds18b20", "name": "ground", "rom": ROM})
    board.inject_fault("ground", Fault.SHORTED)
    with pytest.raises(SensorRangeError, match="only zero bytes") as caught:
        sensors["ground"].read(0.0)
    assert caught.value.health is Health.SHORTED
    board.clear_fault("ground")
    board.advance(START_S + 60)
    assert isinstance(values(sensors["ground"])["ground"], float)


def test_damaged_answer_is_retried_once() -> None:
    """One bad CRC is noise on the cable, two in a row are a fault."""
    kernel, sensor = make_sensor()
    kernel.temperature = "12000\n"
    kernel.damaged = 1
    assert value(sensor) == 12.0
    kernel.damaged = 2
    with pytest.raises(SensorBusError, match="gives an empty file"):
        sensor.read(0.0)
    assert (kernel.conversions, kernel.damaged) == (4, 0)


def test_answer_with_no_is_a_wrong_crc() -> None:
    """The value of an answer with NO is not used."""
    kernel, sensor = make_sensor()
    kernel.slave = SLAVE.format(word="NO", milli=20000)
    with pytest.raises(SensorBusError, match="answers with a wrong CRC"):
        sensor.read(0.0)


@pytest.mark.parametrize("rom", ["28-00000A1B2C3D", "10-000000000000", "28-1/../x"])
def test_invalid_rom_id_is_refused(rom: str) -> None:
    """A ROM id names a folder, nothing else."""
    with pytest.raises(FieldError, match="rom must be 28- and 12 of 0-9 a-f"):
        check_rom(rom)
