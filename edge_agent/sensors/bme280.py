"""Air in the housing: a BME280 on I2C gives temperature, humidity and pressure.

Humidity tells of a leaking box before the water does.

Source: BME280 data sheet (Bosch BST-BME280-DS002), 3.5.1 weather monitoring, 5.4
registers, 9.1 measurement time.
"""

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import Described, Hardware
from edge_agent.sensors.bme280_formulas import (
    DATA,
    TRIM_H,
    TRIM_TP,
    Air,
    SkippedError,
    Trim,
    decode,
    trim_of,
)
from edge_agent.sensors.errors import (
    Health,
    SensorBusError,
    SensorRangeError,
    stranger,
)
from edge_agent.sensors.i2c_chip import I2cChip, I2cSettings
from edge_agent.sensors.slow import SlowSettings
from spatial_mqtt.envelope import Reading
from spatial_mqtt.settings import Rule, key

_ID, _CTRL_HUM, _STATUS, _CTRL_MEAS = 0xD0, 0xF2, 0xF3, 0xF4
_BME280, _BMP280 = 0x60, 0x58
_ONCE_EACH, _ONCE_HUM = 0x25, 0x01  # forced mode, every quantity sampled once
_MEASURING = 0x08
_MEASURE_S = 0.0093
_MOST_POLLS = 10
_TEMP_C, _PRESSURE_PA = (-40.0, 85.0), (30_000.0, 110_000.0)


@dataclass(frozen=True)
class Bme280Settings(SlowSettings, I2cSettings):
    """Keys of kind ``bme280``."""

    quantity: ClassVar[str] = "air in the housing"
    senml_unit: ClassVar[str | None] = "Cel"
    range: ClassVar[tuple[float, float]] = _TEMP_C
    largest_step: ClassVar[float | None] = 3.0

    address: int = key(
        Rule("Address: 0x76 or 0x77, by the pin SDO.", choices=(0x76, 0x77)), 0x76
    )

    @property
    def claims(self) -> tuple[str, ...]:
        """The chip."""
        return (self.place,)


class Bme280(Described):
    """Measures once at each reading and sleeps in between, so it warms nothing."""

    def __init__(self, settings: Bme280Settings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._sleep = hardware.sleep
        bus = hardware.buses.i2c(settings.bus)
        self._chip = I2cChip(settings.name, settings.place, bus, settings.address)
        self._trim: Trim | None = self._calibration()

    def read(self, now_s: float) -> list[Reading]:
        """Temperature, humidity and pressure of the air now.

        Raises:
            SensorBusError: The chip does not answer, or is another one.
            SensorRangeError: It measures what no air is.
        """
        try:
            air = self._measure()
        except SensorBusError:
            self._trim = None  # perhaps the chip is replaced before the next reading
            raise
        return [
            Reading(f"{self.name}/temp", "Cel", round(air.temp_c, 2)),
            Reading(f"{self.name}/humidity", "%RH", round(air.humidity_percent, 1)),
            Reading(f"{self.name}/pressure", "hPa", round(air.pressure_pa / 100, 2)),
        ]

    def _calibration(self) -> Trim:
        found = self._chip.load(_ID, 1)[0]
        if found != _BME280:
            other = ", a BMP280 without humidity" if found == _BMP280 else ""
            raise self._chip.wrong(
                f"must answer as a BME280 ({_BME280:02X}), got {found:02X}{other}",
                stranger(found),
            )
        return trim_of(self._chip.load(*TRIM_TP), self._chip.load(*TRIM_H))

    def _measure(self) -> Air:
        trim = self._trim = self._trim or self._calibration()
        self._chip.store(_CTRL_HUM, _ONCE_HUM)  # takes effect with the next line
        self._chip.store(_CTRL_MEAS, _ONCE_EACH)
        for _ in range(_MOST_POLLS):
            self._sleep(_MEASURE_S)
            if not self._chip.load(_STATUS, 1)[0] & _MEASURING:
                return self._checked(self._chip.load(*DATA), trim)
        raise self._chip.wrong(f"is not ready after {_MOST_POLLS} measuring times")

    def _checked(self, raw: bytes, trim: Trim) -> Air:
        try:
            air = decode(raw, trim)
        except SkippedError as error:
            raise self._chip.wrong(str(error), Health.NOT_CONVERTED) from error
        for value, (low, high), words in (
            (air.temp_c, _TEMP_C, "C"),
            (air.pressure_pa, _PRESSURE_PA, "Pa"),
        ):
            if not low <= value <= high:
                raise SensorRangeError(
                    self.name,
                    f"must read between {low:g} and {high:g} {words}, got {value:g}",
                    "replace the chip",
                )
        return air
