"""Temperature of the ground or the water: a DS18B20 on 1-Wire, through the kernel."""

import re
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.bus_errors import naming
from edge_agent.sensors.ds18b20_file import (
    HIGH_C,
    LOW_C,
    DamagedError,
    WrongError,
    decode,
)
from edge_agent.sensors.errors import SensorBusError, SensorRangeError
from edge_agent.sensors.slow import SlowSettings
from spatial_mqtt.envelope import Reading
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import Rule, key

_FOLDER = "/sys/bus/w1/devices"
_FILES = ("temperature", "w1_slave")  # kernels before 5.8 have only the second
_ATTEMPTS = 2
_REMEDY = "check the cable, the 4.7 kOhm pull-up, and dtoverlay=w1-gpio"
_ROM = re.compile(r"28-[0-9a-f]{12}")


def check_rom(rom: str) -> str:
    """Let the number of a chip through as the kernel writes it.

    Raises:
        FieldError: It has another form.
    """
    if not _ROM.fullmatch(rom):
        raise FieldError("rom", "28- and 12 of 0-9 a-f", rom, f"look in {_FOLDER}")
    return rom


@dataclass(frozen=True)
class Ds18b20Settings(SlowSettings):
    """Keys of kind ``ds18b20``."""

    quantity: ClassVar[str] = "temperature"
    senml_unit: ClassVar[str | None] = "Cel"
    range: ClassVar[tuple[float, float]] = (LOW_C, HIGH_C)
    # no largest step: in steps of 1/16 degree, deep ground says the same for hours

    rom: str = key(Rule("Number of the chip, its folder's name.", check=check_rom))

    @property
    def claims(self) -> tuple[str, ...]:
        """The chip."""
        return (f"1-Wire {self.rom}",)


class Ds18b20(Described):
    """One conversion of 0.75 s at each reading; a damaged one is repeated once."""

    def __init__(self, settings: Ds18b20Settings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._rom = settings.rom
        self._file = hardware.buses.file

    def read(self, now_s: float) -> list[Reading]:
        """Temperature now.

        Raises:
            SensorBusError: The chip is gone, or its answers are damaged.
            SensorRangeError: It did not convert, or is disconnected.
        """
        with naming(self.name, f"1-Wire {self._rom}", _REMEDY):
            try:
                celsius = self._convert()
            except WrongError as error:
                raise SensorRangeError(
                    self.name, str(error), _REMEDY, error.health
                ) from error
            except DamagedError as error:
                raise SensorBusError(self.name, str(error), _REMEDY) from error
        return [Reading(self.name, "Cel", celsius)]

    def _convert(self) -> float:
        for left in reversed(range(_ATTEMPTS)):
            try:
                return decode(self._text())
            except DamagedError:
                if not left:
                    raise
        raise AssertionError("one attempt at least")

    def _text(self) -> str:
        first, second = (f"{_FOLDER}/{self._rom}/{file}" for file in _FILES)
        try:
            return self._file(first)
        except FileNotFoundError:
            return self._file(second)
