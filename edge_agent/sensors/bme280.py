"""BME280 on I2C: temperature, humidity and pressure of the air in the housing.

A rise in humidity shows a leak before water does.

Source: BME280 data sheet (Bosch BST-BME280-DS002), 3.5.1 weather monitoring, 4.2.2
trimming parameters, 5.4 registers, 9.1 measurement time, and appendix A (8.1),
compensation in double precision.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    I2cChip,
    I2cSettings,
    SensorBusError,
    SensorRangeError,
    SlowSensorSettings,
    health_of_identity,
)
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

TRIM_TP_REGISTERS = (0x88, 26)
TRIM_H_REGISTERS = (0xE1, 7)
DATA_REGISTERS = (0xF7, 8)
_SKIPPED_TP, _SKIPPED_H = 0x80000, 0x8000


class NotMeasuredError(ValueError):
    """The chip has not measured: its registers are as after power-on."""


@dataclass(frozen=True)
class TrimParameters:
    """A chip's own calibration: T1..T3, P1..P9, H1..H6 of the data sheet."""

    t: tuple[int, ...]
    p: tuple[int, ...]
    h: tuple[int, ...]


@dataclass(frozen=True)
class AirMeasurement:
    """State of the air.

    Attributes:
        temp_c: Temperature.
        pressure_pa: Pressure.
        humidity_percent: Relative humidity, 0 to 100.
    """

    temp_c: float
    pressure_pa: float
    humidity_percent: float


def decode_trim(tp: bytes, h: bytes) -> TrimParameters:
    """Trimming parameters from the registers 0x88..0xA1 and 0xE1..0xE7."""
    t1, t2, t3, *rest = struct.unpack("<HhhHhhhhhhhh", tp[:24])
    h2, h3 = struct.unpack("<hB", h[:3])
    # H4 and H5 have 12 bits each and share the byte 0xE5
    h4 = int.from_bytes(h[3:4], signed=True) << 4 | h[4] & 0x0F
    h5 = int.from_bytes(h[5:6], signed=True) << 4 | h[4] >> 4
    h6 = int.from_bytes(h[6:7], signed=True)
    return TrimParameters((t1, t2, t3), tuple(rest), (tp[25], h2, h3, h4, h5, h6))


def decode(raw: bytes, trim: TrimParameters) -> AirMeasurement:
    """The air from the eight data registers, 0xF7 first.

    Raises:
        NotMeasuredError: Nothing was measured.
    """
    pressure = int.from_bytes(raw[0:3]) >> 4
    temp = int.from_bytes(raw[3:6]) >> 4
    humidity = int.from_bytes(raw[6:8])
    if _SKIPPED_TP in {pressure, temp} or humidity == _SKIPPED_H:
        raise NotMeasuredError("has measured nothing")
    fine = compensate_temperature(temp, trim)
    return AirMeasurement(
        fine / 5120,
        compensate_pressure(pressure, fine, trim),
        compensate_humidity(humidity, fine, trim),
    )


def compensate_temperature(adc: int, trim: TrimParameters) -> float:
    """Fine temperature in 1/5120 degree, an input of the other formulas."""
    t1, t2, t3 = trim.t
    first = (adc / 16384 - t1 / 1024) * t2
    return first + (adc / 131072 - t1 / 8192) ** 2 * t3


def compensate_pressure(adc: int, fine: float, trim: TrimParameters) -> float:
    """Pressure in Pa; 0 for an invalid calibration."""
    p1, p2, p3, p4, p5, p6, p7, p8, p9 = trim.p
    a = fine / 2 - 64000
    b = (a * a * p6 / 32768 + a * p5 * 2) / 4 + p4 * 65536
    c = (1 + (p3 * a * a / 524288 + p2 * a) / 524288 / 32768) * p1
    if c == 0:
        return 0.0
    p = (1048576 - adc - b / 4096) * 6250 / c
    return p + (p9 * p * p / 2147483648 + p * p8 / 32768 + p7) / 16


def compensate_humidity(adc: int, fine: float, trim: TrimParameters) -> float:
    """Relative humidity, 0 to 100."""
    h1, h2, h3, h4, h5, h6 = trim.h
    a = fine - 76800
    slope = h2 / 65536 * (1 + h6 / 67108864 * a * (1 + h3 / 67108864 * a))
    b = (adc - (h4 * 64 + h5 / 16384 * a)) * slope
    return min(max(b * (1 - h1 * b / 524288), 0.0), 100.0)


_ID, _CTRL_HUM, _STATUS, _CTRL_MEAS = 0xD0, 0xF2, 0xF3, 0xF4
_BME280, _BMP280 = 0x60, 0x58
_ONCE_EACH, _ONCE_HUM = 0x25, 0x01  # forced mode, every quantity sampled once
_MEASURING = 0x08
_MEASURE_S = 0.0093
_MAX_POLLS = 10
_TEMP_C, _PRESSURE_PA = (-40.0, 85.0), (30_000.0, 110_000.0)


@dataclass(frozen=True)
class Bme280Settings(SlowSensorSettings, I2cSettings):
    """Keys of kind ``bme280``."""

    quantity: ClassVar[str] = "air in the housing"
    senml_unit: ClassVar[str | None] = "Cel"
    range: ClassVar[tuple[float, float]] = _TEMP_C
    largest_step: ClassVar[float | None] = 3.0
    is_noisy: ClassVar[bool] = True

    address: int = key(
        KeyRule("Address: 0x76 or 0x77, by the pin SDO.", choices=(0x76, 0x77)), 0x76
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return (self.place,)


class Bme280(BaseSensor):
    """Measures once per reading and sleeps in between, to avoid self-heating."""

    def __init__(self, settings: Bme280Settings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._sleep = hardware.sleep
        bus = hardware.buses.i2c(settings.bus)
        self._chip = I2cChip(settings.name, settings.place, bus, settings.address)
        self._trim: TrimParameters | None = self._calibration()

    def read(self, now_s: float) -> list[Reading]:
        """Temperature, humidity and pressure of the air now.

        Raises:
            SensorBusError: The chip does not answer, or is another one.
            SensorRangeError: A value is impossible for air.
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

    def _calibration(self) -> TrimParameters:
        found = self._chip.read_registers(_ID, 1)[0]
        if found != _BME280:
            other = ", a BMP280 without humidity" if found == _BMP280 else ""
            raise self._chip.make_error(
                f"must answer as a BME280 ({_BME280:02X}), got {found:02X}{other}",
                health_of_identity(found),
            )
        return decode_trim(
            self._chip.read_registers(*TRIM_TP_REGISTERS),
            self._chip.read_registers(*TRIM_H_REGISTERS),
        )

    def _measure(self) -> AirMeasurement:
        trim = self._trim = self._trim or self._calibration()
        self._chip.write_registers(
            _CTRL_HUM, _ONCE_HUM
        )  # takes effect with the next line
        self._chip.write_registers(_CTRL_MEAS, _ONCE_EACH)
        for _ in range(_MAX_POLLS):
            self._sleep(_MEASURE_S)
            if not self._chip.read_registers(_STATUS, 1)[0] & _MEASURING:
                return self._checked(self._chip.read_registers(*DATA_REGISTERS), trim)
        raise self._chip.make_error(f"is not ready after {_MAX_POLLS} measuring times")

    def _checked(self, raw: bytes, trim: TrimParameters) -> AirMeasurement:
        try:
            air = decode(raw, trim)
        except NotMeasuredError as error:
            raise self._chip.make_error(str(error), Health.NOT_CONVERTED) from error
        for value, (low, high), unit in (
            (air.temp_c, _TEMP_C, "C"),
            (air.pressure_pa, _PRESSURE_PA, "Pa"),
        ):
            if not low <= value <= high:
                raise SensorRangeError(
                    self.name,
                    f"must read between {low:g} and {high:g} {unit}, got {value:g}",
                    "replace the chip",
                )
        return air
