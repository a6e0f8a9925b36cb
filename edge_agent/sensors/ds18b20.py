"""DS18B20 thermometer on 1-Wire, read through the kernel's files.

Source: kernel documentation w1_therm (``temperature`` in thousandths of a degree;
``w1_slave`` with nine bytes, ``YES`` or ``NO`` for their CRC, and ``t=``); DS18B20
data sheet (Maxim 19-7487), table 1, power-on value and memory map (byte 5 is FF).
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    SensorBusError,
    SensorRangeError,
    SlowSensorSettings,
    bus_errors_as_sensor_errors,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

POWER_ON_MC = 85000
_DISCONNECTED_MC = {-127000, 127937}
MIN_C, MAX_C = -55.0, 125.0
_ZERO_BYTES = "00 " * 9  # their CRC is 0, too
_CRC = re.compile(r"crc=[0-9a-f]{2} (YES|NO)")
_TEMPERATURE = re.compile(r"t=(-?\d{1,6})")


class OneWireAnswerError(ValueError):
    """The chip's answer is missing or corrupt."""


class NoTemperatureError(ValueError):
    """The number is a code without a measurement."""

    def __init__(self, reason: str, health: Health) -> None:
        self.health = health
        super().__init__(reason)


def decode(text: str) -> float:
    """Temperature in Celsius from the text of either file.

    Raises:
        OneWireAnswerError: Bad CRC, or no number.
        NoTemperatureError: The number is a code without a measurement.
    """
    milli = _milli(text.strip())
    if milli == POWER_ON_MC:
        reason = "reads 85.0 C, its value after power-on: it did not convert"
        raise NoTemperatureError(reason, Health.NOT_CONVERTED)
    if milli in _DISCONNECTED_MC:
        reason = f"reads {milli / 1000:g} C: it is disconnected"
        raise NoTemperatureError(reason, Health.DISCONNECTED)
    if not MIN_C <= milli / 1000 <= MAX_C:
        reason = f"reads {milli / 1000:g} C, beyond what it can measure"
        raise NoTemperatureError(reason, Health.IMPLAUSIBLE)
    return milli / 1000


def _milli(text: str) -> int:
    if not text:
        raise OneWireAnswerError("gives an empty file: the chip did not answer")
    if re.fullmatch(r"-?\d{1,6}", text):
        return int(text)
    if text.startswith(_ZERO_BYTES):
        reason = "reads only zero bytes: the line is held low"
        raise NoTemperatureError(reason, Health.SHORTED)
    crc, found = _CRC.search(text), _TEMPERATURE.search(text)
    if crc is None or found is None:
        raise OneWireAnswerError(f"gives no temperature: {text[:60]!r}")
    if crc[1] != "YES":
        raise OneWireAnswerError("answers with a wrong CRC")
    return int(found[1])


_FOLDER = "/sys/bus/w1/devices"
_FILES = ("temperature", "w1_slave")  # kernels before 5.8 have only the second
_ATTEMPTS = 2
_REMEDY = "check the cable, the 4.7 kOhm pull-up, and dtoverlay=w1-gpio"
_ROM = re.compile(r"28-[0-9a-f]{12}")


def check_rom(rom: str) -> str:
    """Check the form of a chip's number as the kernel writes it.

    Raises:
        FieldError: It has another form.
    """
    if not _ROM.fullmatch(rom):
        raise FieldError("rom", "28- and 12 of 0-9 a-f", rom, f"look in {_FOLDER}")
    return rom


@dataclass(frozen=True)
class Ds18b20Settings(SlowSensorSettings):
    """Keys of kind ``ds18b20``."""

    quantity: ClassVar[str] = "temperature"
    senml_unit: ClassVar[str | None] = "Cel"
    range: ClassVar[tuple[float, float]] = (MIN_C, MAX_C)
    # no largest step: in steps of 1/16 degree, deep ground reads the same for hours

    rom: str = key(KeyRule("Number of the chip, its folder's name.", check=check_rom))

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"1-Wire {self.rom}",)


class Ds18b20(BaseSensor):
    """One conversion of 0.75 s per reading; a corrupt one is repeated once.

    A line that is held low reads 0 C, so that of 0 C the bytes are read as well.
    """

    def __init__(self, settings: Ds18b20Settings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._rom = settings.rom
        self._file = hardware.buses.read_file

    def read(self, now_s: float) -> list[Reading]:
        """Temperature now.

        Raises:
            SensorBusError: The chip is gone, or its answers are corrupt.
            SensorRangeError: It did not convert, or is disconnected.
        """
        with bus_errors_as_sensor_errors(self.name, f"1-Wire {self._rom}", _REMEDY):
            try:
                celsius = self._convert()
            except NoTemperatureError as error:
                raise SensorRangeError(
                    self.name, str(error), _REMEDY, error.health
                ) from error
            except OneWireAnswerError as error:
                raise SensorBusError(self.name, str(error), _REMEDY) from error
        return [Reading(self.name, "Cel", celsius)]

    def _convert(self) -> float:
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._celsius()
            except OneWireAnswerError:
                if not left:
                    raise
        raise AssertionError("one attempt at least")

    def _celsius(self) -> float:
        """The temperature of one conversion; 0 C of the nine bytes of another one."""
        first, second = (f"{_FOLDER}/{self._rom}/{file}" for file in _FILES)
        try:
            celsius = decode(self._file(first))
        except FileNotFoundError:
            return decode(self._file(second))
        return celsius or decode(self._file(second))
