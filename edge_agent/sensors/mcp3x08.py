"""MCP3008 and MCP3208 converters on SPI: channel settings, and a robust mean."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpiozero import MCP3008, MCP3208

from edge_agent.sensors.base import (
    Hardware,
    Health,
    SensorBusError,
    SensorRangeError,
    SensorSettings,
    pin_error_types,
)
from service_runtime.settings import KeyRule, key

TRIMMED_SHARE = 0.25
"""Fraction of the samples that is discarded at each end."""

MEAN_EFFICIENCY = 0.83
"""Efficiency under Gaussian noise: variance of the plain mean over its own."""


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
