"""ADS1115, a 16-bit I2C converter with four inputs: 4-20 mA current or scaled voltage.

Source: ADS111x data sheet (TI SBAS444D), "Config Register", and "Data Format" for
the output code against the input.
"""

import statistics
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge_agent.sensors.analog import (
    MAX_DRIVE_MA,
    MAX_MEASURED_MA,
    MAX_NOISE_V,
    MIN_MEASURED_MA,
    decode_loop_ma,
    estimate_noise,
    fraction_of_span,
)
from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    I2cChip,
    I2cSettings,
    SensorRangeError,
)
from edge_agent.sensors.generic_probe import (
    ProbeSettings,
    ScaledSettings,
    adds_up,
    make_reading,
    round_significant,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

FULL_SCALES_V = (6.144, 4.096, 2.048, 1.024, 0.512, 0.256)
RATE_HZ = 128.0
"""Samples in a second that the chip is set to; one takes up to 10 % longer."""

_CONVERSION, _CONFIG = 0x00, 0x01
_START_OR_READY = 0x8000
_AIN0_TO_GROUND = 0b100
_SINGLE_SHOT = 0x0100
_RATE_128 = 0b100 << 5
_NO_COMPARATOR = 0b11
_MAX_POLLS = 20


@dataclass(frozen=True)
class Ads1115Settings(I2cSettings):
    """Keys of every sensor on an input of the chip."""

    address: int = key(
        KeyRule("Address: 0x48 to 0x4B, by the pin ADDR.", low=0x48, high=0x4B), 0x48
    )
    channel: int = key(KeyRule("Input AIN0 to AIN3, against ground.", low=0, high=3))
    full_scale_v: float = key(
        KeyRule("Range of the amplifier.", unit="V", choices=FULL_SCALES_V), 4.096
    )
    samples: int = key(
        KeyRule("Samples in one reading; the median counts.", low=1, high=99), 9
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"{self.place} channel {self.channel}",)


class InputSaturatedError(ValueError):
    """The input is beyond the amplifier's range."""


def encode_config(channel: int, full_scale_v: float) -> int:
    """The config register that starts one conversion of a channel."""
    mux = _AIN0_TO_GROUND + channel
    gain = FULL_SCALES_V.index(full_scale_v)
    bits = _START_OR_READY | mux << 12 | gain << 9
    return bits | _SINGLE_SHOT | _RATE_128 | _NO_COMPARATOR


def decode(raw: bytes, full_scale_v: float) -> float:
    """Volts from the two bytes of the conversion register.

    Raises:
        InputSaturatedError: The code is the maximum or the minimum.
    """
    code = int.from_bytes(raw, signed=True)
    if code in {0x7FFF, -0x8000}:
        raise InputSaturatedError(f"reads {code:+d}, the end of +-{full_scale_v:g} V")
    return code * full_scale_v / 0x8000


class Ads1115Input:
    """One input of the chip, for one sensor."""

    def __init__(self, settings: Ads1115Settings, hardware: Hardware) -> None:
        s = self._settings = settings
        self._sleep = hardware.sleep
        bus = hardware.buses.i2c(s.bus)
        self._chip = I2cChip(s.name, s.place, bus, s.address)

    def volts(self) -> float:
        """Median voltage of some samples, against ground.

        Raises:
            SensorBusError: The chip does not answer, or is not an ADS1115.
            SensorRangeError: The input is beyond the amplifier's range, or its
                samples are too noisy.
        """
        s = self._settings
        try:
            samples = [self._converted() for _ in range(s.samples)]
        except InputSaturatedError as error:
            raise SensorRangeError(
                s.name,
                str(error),
                "check the wiring, or raise full_scale_v",
                Health.SATURATED,
            ) from error
        if (sigma_v := estimate_noise(samples)) > MAX_NOISE_V:
            raise SensorRangeError(
                s.name,
                f"is too noisy: {sigma_v:.2f} V among the samples of one reading",
                "check the shield, the ground and for a loose contact",
                Health.NOISY,
            )
        return statistics.median(samples)

    def _converted(self) -> float:
        s = self._settings
        config = encode_config(s.channel, s.full_scale_v)
        with (
            self._chip.exclusive()
        ):  # a conversion of another input would replace this one
            self._chip.write_registers(_CONFIG, *config.to_bytes(2))
            for _ in range(_MAX_POLLS):
                self._sleep(1.1 / RATE_HZ)
                if self._is_ready(config):
                    return decode(
                        self._chip.read_registers(_CONVERSION, 2), s.full_scale_v
                    )
        raise self._chip.make_error(f"is not ready after {_MAX_POLLS} conversion times")

    def _is_ready(self, config: int) -> bool:
        actual = int.from_bytes(self._chip.read_registers(_CONFIG, 2))
        if (actual ^ config) & ~_START_OR_READY:
            raise self._chip.make_error(
                f"must keep its settings as an ADS1115 does, {config:04X}, "
                f"got {actual:04X}",
                Health.WRONG_CHIP,
            )
        return bool(actual & _START_OR_READY)


AnySettings = TypeVar("AnySettings", bound=Ads1115Settings)


class _InputSensor(BaseSensor, Generic[AnySettings]):
    """Base of the sensors on one input."""

    def __init__(self, settings: AnySettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._input = Ads1115Input(settings, hardware)


def _refuse_rain(settings: ProbeSettings) -> None:
    if adds_up(settings.measures, settings.unit):
        raise FieldError(
            "measures",
            f"other than rain in {settings.unit!r}, which each reading would add again",
            settings.measures,
            "use a rain-gauge, or modbus or sdi12 with counter = true",
        )


@dataclass(frozen=True)
class Ads1115CurrentSettings(ProbeSettings, Ads1115Settings):
    """Keys of kind ``ads1115-current``."""

    at_4ma: float = key(KeyRule("Reading at 4 mA, from the plate, in `unit`."))
    at_20ma: float = key(KeyRule("Reading at 20 mA, from the plate, in `unit`."))
    shunt_ohm: float = key(
        KeyRule(
            "Resistor that the current runs through.", unit="Ohm", low=10, high=250
        ),
        100.0,
    )

    def __post_init__(self) -> None:
        _refuse_rain(self)
        if self.at_4ma == self.at_20ma:
            rule = f"other than at_4ma ({self.at_4ma:g})"
            raise FieldError("at_20ma", rule, self.at_20ma)
        max_ohm = 1000 * self.full_scale_v / MAX_DRIVE_MA
        if self.shunt_ohm > max_ohm:
            rule = f"at most {max_ohm:.0f} Ohm, for {MAX_DRIVE_MA:g} mA to be seen"
            raise FieldError("shunt_ohm", rule, self.shunt_ohm, "raise full_scale_v")

    @property
    def range(self) -> tuple[float, float]:  # type: ignore[override]
        ends = sorted(
            scale_current(self, loop_ma)
            for loop_ma in (MIN_MEASURED_MA, MAX_MEASURED_MA)
        )
        return ends[0], ends[1]


def scale_current(settings: Ads1115CurrentSettings, loop_ma: float) -> float:
    """The reading for a current."""
    return settings.at_4ma + (settings.at_20ma - settings.at_4ma) * fraction_of_span(
        loop_ma
    )


class Ads1115Current(_InputSensor[Ads1115CurrentSettings]):
    """The transmitter's reading, and the loop current."""

    def read(self, now_s: float) -> list[Reading]:
        """Reading for the current.

        Raises:
            SensorBusError: The chip does not answer, or is another one.
            SensorRangeError: The current signals a fault.
        """
        shunt_ohm = self._settings.shunt_ohm
        loop_ma = decode_loop_ma(self.name, self._input.volts(), shunt_ohm)
        value = round_significant(scale_current(self._settings, loop_ma))
        return [
            Reading(self.name, self._settings.unit, value),
            Reading(f"{self.name}/loop", "mA", round(loop_ma, 4)),
        ]


@dataclass(frozen=True)
class Ads1115VoltageSettings(ScaledSettings, Ads1115Settings):
    """Keys of kind ``ads1115-voltage``; the probe's number is volts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_rain(self)


class Ads1115Voltage(_InputSensor[Ads1115VoltageSettings]):
    """The reading for the median voltage of some samples."""

    def read(self, now_s: float) -> list[Reading]:
        """Reading for the voltage.

        Raises:
            SensorBusError: The chip does not answer, or is another one.
            SensorRangeError: The voltage is beyond the amplifier or the range.
        """
        return [make_reading(self._settings, self._input.volts())]
