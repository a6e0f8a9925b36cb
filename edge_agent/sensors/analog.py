"""MCP3008 and MCP3208 converters, and their soil probe, extensometer and piezometer.

The converters on SPI give the robust mean of samples of a channel; the piezometer is
read as a current of 4 to 20 mA.

Source: NAMUR NE 43 for the loop current: 3.8 to 20.5 mA is a measurement; 3.6 mA or
less and 21 mA or more signal a failure. The limits are quoted from memory.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from gpiozero import MCP3008, MCP3208

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    SensorBusError,
    SensorRangeError,
    SensorSettings,
    pin_error_types,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

TRIMMED_SHARE = 0.25
"""Fraction of the samples that is discarded at each end."""

MEAN_EFFICIENCY = 0.83
"""Efficiency under Gaussian noise: variance of the plain mean over its own."""

RAIL_MARGIN_V = 0.1
"""Minimum distance of a calibration of the string, and of a reading of soil, from
ground and from the reference, which a cut or shorted cable reads."""

MIN_MOISTURE_SPAN_V = 0.1
MAX_VWC = 0.7
_SLACK = 0.02  # tolerates noise at either end of the range


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half: ignores single shocks, and averages noise."""
    cut = int(len(values) * TRIMMED_SHARE)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def standard_error(values: Sequence[float]) -> float:
    """Noise of `interquartile_mean`, from the samples; 0 for fewer than 2.

    Source:
        Tukey and McLaughlin 1963: standard deviation of the winsorized samples,
        over (1 - 2 x trimmed share) sqrt(n).
    """
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return 0.0
    cut = int(len(values) * TRIMMED_SHARE)
    ordered = sorted(values)
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    winsorized = [min(max(value, low), high) for value in ordered]
    kept = 1 - 2 * cut / len(ordered)
    return statistics.stdev(winsorized) / (kept * math.sqrt(len(ordered)))


MAX_NOISE_V = 0.1
_CHIPS: Mapping[str, tuple[type[Any], int]] = {
    "MCP3008": (MCP3008, 2**10 - 1),
    "MCP3208": (MCP3208, 2**12 - 1),
}
_MIN_SAMPLES_FOR_NOISE = 5
_SIGMA_PER_MAD = 1.4826  # of Gaussian noise


@dataclass(frozen=True)
class AdcSettings(SensorSettings):
    """Keys of every sensor on a channel."""

    warm_up_s: ClassVar[float] = 1.0

    channel: int = key(KeyRule("Channel of the converter.", low=0, high=7))
    device: int = key(
        KeyRule("Chip select of SPI0: 0 for CE0, 1 for CE1.", low=0, high=1), 0
    )
    chip: str = key(
        KeyRule("The converter: 10 bits or 12.", choices=("MCP3008", "MCP3208")),
        "MCP3208",
    )
    vref_v: float = key(
        KeyRule("Reference of the converter.", unit="V", low=2.5, high=5.5), 3.3
    )
    samples: int = key(
        KeyRule(
            "Samples in one reading; the mean of the middle half counts.",
            low=1,
            high=99,
        ),
        9,
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"SPI0.{self.device} channel {self.channel}",)

    @property
    def shared_places(self) -> Mapping[str, str]:
        return {f"SPI0.{self.device}": f"an {self.chip} at {self.vref_v:g} V"}


def estimate_noise(samples: Sequence[float]) -> float:
    """Standard deviation of samples, estimated from their median deviation."""
    middle = statistics.median(samples)
    return _SIGMA_PER_MAD * statistics.median(abs(v - middle) for v in samples)


class AdcChannel:
    """Reads one channel for a sensor."""

    def __init__(self, settings: AdcSettings, hardware: Hardware) -> None:
        self._settings = settings
        chip, self._full_scale = _CHIPS[settings.chip]
        self._adc = chip(
            channel=settings.channel,
            port=0,
            device=settings.device,
            pin_factory=hardware.pin_factory,
        )

    def ratio(self) -> float:
        """The voltage as a fraction of the reference; 1 is full scale.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The samples are too noisy.
        """
        s = self._settings
        try:
            codes = [int(self._adc.raw_value) for _ in range(s.samples)]
        except pin_error_types() as error:
            raise SensorBusError(
                s.name, f"cannot be read: {error}", "check SPI and the wiring"
            ) from error
        samples = [code / self._full_scale for code in codes]
        sigma_v = estimate_noise(samples) * s.vref_v
        if len(samples) >= _MIN_SAMPLES_FOR_NOISE and sigma_v > MAX_NOISE_V:
            raise SensorRangeError(
                s.name,
                f"is too noisy: a noise of {sigma_v:.2f} V in one reading",
                "check the shield, the ground and for a loose contact",
                Health.NOISY,
            )
        return interquartile_mean(samples)

    def volts(self) -> float:
        """The voltage.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The samples are too noisy, or the voltage is
                beyond the scale.
        """
        ratio = self.ratio()
        if ratio >= 1:
            raise SensorRangeError(
                self._settings.name,
                f"is saturated: {self._settings.vref_v:g} V or more at the converter",
                "check the supply of the sensor, its ground and vref_v",
                Health.SATURATED,
            )
        return ratio * self._settings.vref_v

    def close(self) -> None:
        self._adc.close()


AnySettings = TypeVar("AnySettings", bound=AdcSettings)


class _AdcSensor(BaseSensor, Generic[AnySettings]):
    """Base of the sensors on one converter channel."""

    def __init__(self, settings: AnySettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._converter = AdcChannel(settings, hardware)

    def close(self) -> None:
        self._converter.close()


def _check_margins(settings: AdcSettings, keys: Sequence[str], remedy: str) -> None:
    """Check that voltages of a calibration are not near ground or the reference.

    Raises:
        FieldError: One is.
    """
    highest_v = settings.vref_v - RAIL_MARGIN_V
    for name in keys:
        volts = getattr(settings, name)
        if not RAIL_MARGIN_V <= volts <= highest_v:
            rule = f"between {RAIL_MARGIN_V:g} and {highest_v:g} V"
            raise FieldError(name, rule, volts, remedy)


@dataclass(frozen=True)
class SoilMoistureSettings(AdcSettings):
    """Keys of kind ``soil-moisture``."""

    quantity: ClassVar[str] = "volumetric water content"
    senml_unit: ClassVar[str | None] = "/"
    range: ClassVar[tuple[float, float]] = (0.0, MAX_VWC)
    largest_step: ClassVar[float | None] = 0.15
    is_noisy: ClassVar[bool] = True

    dry_v: float = key(KeyRule("Reading in dry soil.", unit="V", low=0, high=5))
    wet_v: float = key(KeyRule("Reading in saturated soil.", unit="V", low=0, high=5))
    porosity: float = key(
        KeyRule("Water content of saturated soil.", unit="m3/m3", low=0.2, high=0.7),
        0.45,
    )

    def __post_init__(self) -> None:
        if abs(self.wet_v - self.dry_v) < MIN_MOISTURE_SPAN_V:
            rule = (
                f"at least {MIN_MOISTURE_SPAN_V} V away from dry_v ({self.dry_v:g} V)"
            )
            raise FieldError("wet_v", rule, self.wet_v, "calibrate the probe")

    def is_of_cable(self, volts: float) -> bool:
        """Whether a voltage is that of a cut or shorted cable.

        Where the calibration reaches ground or the reference, it may be that of soil.
        """
        low_v, high_v = sorted((self.dry_v, self.wet_v))
        highest_v = self.vref_v - RAIL_MARGIN_V
        is_low = volts < RAIL_MARGIN_V <= low_v
        return is_low or volts > highest_v >= high_v


def decode_moisture(volts: float, settings: SoilMoistureSettings) -> float:
    """Water content of the soil, linear between the two calibration points."""
    s = settings
    return s.porosity * (volts - s.dry_v) / (s.wet_v - s.dry_v)


class SoilMoisture(_AdcSensor[SoilMoistureSettings]):
    """Volumetric water content as a ratio, from the median of some samples."""

    def read(self, now_s: float) -> list[Reading]:
        """Water content now.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The voltage is that of a broken cable, or outside the
                calibration.
        """
        volts = self._converter.volts()
        if self._settings.is_of_cable(volts):
            highest_v = self._settings.vref_v - RAIL_MARGIN_V
            raise SensorRangeError(
                self.name,
                f"must read between {RAIL_MARGIN_V:g} and {highest_v:g} V, "
                f"got {volts:.2f} V",
                "check the probe's cable, its supply and the converter",
                Health.DISCONNECTED,
            )
        vwc = decode_moisture(volts, self._settings)
        if not -_SLACK <= vwc <= MAX_VWC:
            raise SensorRangeError(
                self.name,
                f"must read a water content between 0 and {MAX_VWC}, "
                f"got {vwc:.2f} from {volts:.3f} V",
                "check the probe's cable, or calibrate dry_v and wet_v",
            )
        return [Reading(self.name, "/", round(max(vwc, 0.0), 5))]


MIN_STROKE_SPAN_V = 0.5


@dataclass(frozen=True)
class ExtensometerSettings(AdcSettings):
    """Keys of kind ``extensometer``."""

    quantity: ClassVar[str] = "displacement"
    senml_unit: ClassVar[str | None] = "mm"
    range: ClassVar[tuple[float, float]] = (0.0, 5000.0)
    # no largest step: a slide moves by metres in a minute, and a string at rest
    # reads the same for days

    travel_mm: float = key(
        KeyRule("How far the string runs out.", unit="mm", low=10, high=5000)
    )
    home_v: float = key(
        KeyRule("Reading with the string all in.", unit="V", low=0, high=5)
    )
    full_v: float = key(
        KeyRule("Reading with the string all out.", unit="V", low=0, high=5)
    )

    def __post_init__(self) -> None:
        if abs(self.full_v - self.home_v) < MIN_STROKE_SPAN_V:
            rule = (
                f"at least {MIN_STROKE_SPAN_V} V away from home_v ({self.home_v:g} V)"
            )
            raise FieldError("full_v", rule, self.full_v, "calibrate the sensor")
        remedy = (
            "put a resistor at each end of the potentiometer, or a broken cable looks "
            "like a place on its travel"
        )
        _check_margins(self, ("home_v", "full_v"), remedy)


def decode_displacement(volts: float, settings: ExtensometerSettings) -> float:
    """Extension of the string, in mm."""
    s = settings
    return s.travel_mm * (volts - s.home_v) / (s.full_v - s.home_v)


class ExtensometerSensor(_AdcSensor[ExtensometerSettings]):
    """Displacement in mm. Rates are computed by triage."""

    def read(self, now_s: float) -> list[Reading]:
        """How far the string is out, in mm.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The voltage is outside the travel.
        """
        volts = self._converter.volts()
        out_mm = decode_displacement(volts, self._settings)
        travel_mm = self._settings.travel_mm
        slack_mm = _SLACK * travel_mm
        if not -slack_mm <= out_mm <= travel_mm + slack_mm:
            raise SensorRangeError(
                self.name,
                f"must be between 0 and {travel_mm:g} mm of its travel, "
                f"got {out_mm:.0f} mm from {volts:.3f} V",
                "check cable and string; a string that is all out must be reset",
            )
        return [Reading(self.name, "mm", round(min(max(out_mm, 0.0), travel_mm), 3))]


ZERO_MA, FULL_MA = 4.0, 20.0
BROKEN_MA, MIN_MEASURED_MA = 3.6, 3.8
MAX_MEASURED_MA, FAULT_MA = 20.5, 21.0
MAX_DRIVE_MA = 22.0
"""Maximum current of a transmitter; the converter must be able to measure it."""

_NOTHING_MA = 0.5


def diagnose_loop(loop_ma: float) -> tuple[str, str, Health] | None:
    """Reason, remedy and health of a faulty loop; None for a valid measurement."""
    got = f"{loop_ma:.2f} mA"
    if loop_ma < _NOTHING_MA:
        return (
            f"has no current: {got}",
            "check the loop's supply, fuse and cable",
            Health.LOOP_BROKEN,
        )
    if loop_ma <= BROKEN_MA:
        return (
            f"is broken: {got}, {BROKEN_MA} mA or less",
            "check the cable for a leak to ground, or replace the transmitter",
            Health.LOOP_BROKEN,
        )
    if loop_ma >= FAULT_MA:
        return (
            f"reports a fault of its own: {got}, {FAULT_MA:g} mA or more",
            "check the cable for a short, or replace the transmitter",
            Health.LOOP_FAULT,
        )
    if not MIN_MEASURED_MA <= loop_ma <= MAX_MEASURED_MA:
        side = "below" if loop_ma < MIN_MEASURED_MA else "above"
        span = f"{MIN_MEASURED_MA} to {MAX_MEASURED_MA}"
        return (
            f"is {side} its measuring range: {got}, not {span} mA",
            "check the range of the transmitter",
            Health.IMPLAUSIBLE,
        )
    return None


def decode_current(volts: float, shunt_ohm: float) -> float:
    """Current of the loop in mA from the voltage over the shunt."""
    return 1000 * volts / shunt_ohm


def decode_loop_ma(name: str, volts: float, shunt_ohm: float) -> float:
    """Current of a sensor's loop in mA.

    Raises:
        SensorRangeError: The current signals a fault.
    """
    loop_ma = decode_current(volts, shunt_ohm)
    fault = diagnose_loop(loop_ma)
    if fault is not None:
        reason, remedy, health = fault
        raise SensorRangeError(name, f"has a loop that {reason}", remedy, health)
    return loop_ma


def fraction_of_span(loop_ma: float) -> float:
    """Position of a current between zero (0) and full scale (1)."""
    return (loop_ma - ZERO_MA) / (FULL_MA - ZERO_MA)


HPA_PER_KPA = 10.0
KPA_PER_M = 9.80665
"""Pressure of a metre of fresh water near 4 Celsius."""


@dataclass(frozen=True)
class PiezometerSettings(AdcSettings):
    """Keys of kind ``piezometer``."""

    quantity: ClassVar[str] = "pore pressure"
    senml_unit: ClassVar[str | None] = "hPa"  # SenML has no kPa
    range: ClassVar[tuple[float, float]] = (-1000.0, 10_000.0)
    largest_step: ClassVar[float | None] = 100.0
    is_noisy: ClassVar[bool] = True
    warm_up_s: ClassVar[float] = 2.0

    at_20ma_kpa: float = key(
        KeyRule("Pressure at 20 mA, from the plate.", unit="kPa", low=1, high=1000)
    )
    at_4ma_kpa: float = key(
        KeyRule("Pressure at 4 mA, from the plate.", unit="kPa", low=-100, high=100),
        0.0,
    )
    shunt_ohm: float = key(
        KeyRule("The resistor that the current runs through.", "Ohm", low=10, high=250),
        120.0,
    )

    def __post_init__(self) -> None:
        if self.at_4ma_kpa >= self.at_20ma_kpa:
            rule = f"less than at_20ma_kpa ({self.at_20ma_kpa:g})"
            raise FieldError("at_4ma_kpa", rule, self.at_4ma_kpa)
        max_ohm = 1000 * self.vref_v / MAX_DRIVE_MA
        if self.shunt_ohm > max_ohm:
            raise FieldError(
                "shunt_ohm",
                f"at most {max_ohm:.0f} Ohm, for {MAX_DRIVE_MA:g} mA to stay under "
                "vref_v",
                self.shunt_ohm,
            )


class Piezometer(_AdcSensor[PiezometerSettings]):
    """Pore pressure in hPa, the head of water in m, and the loop current in mA."""

    def read(self, now_s: float) -> list[Reading]:
        """Pressure now.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The current signals a fault.
        """
        s = self._settings
        loop_ma = decode_loop_ma(self.name, self._converter.volts(), s.shunt_ohm)
        kpa = s.at_4ma_kpa + (s.at_20ma_kpa - s.at_4ma_kpa) * fraction_of_span(loop_ma)
        return [
            Reading(self.name, "hPa", round(kpa * HPA_PER_KPA, 3)),
            Reading(f"{self.name}/head", "m", round(kpa / KPA_PER_M, 4)),
            Reading(f"{self.name}/loop", "mA", round(loop_ma, 4)),
        ]
