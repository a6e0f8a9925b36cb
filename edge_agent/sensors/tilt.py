"""Base of the SPI accelerometers: tilt against gravity from a burst of samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from edge_agent.sensors.base import BaseSensor, SensorSettings
from edge_agent.sensors.errors import (
    Health,
    SensorBusError,
    SensorRangeError,
    pin_error_types,
)
from edge_agent.sensors.mcp3x08 import (
    MEAN_EFFICIENCY,
    interquartile_mean,
    standard_error,
)
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

Axes = tuple[float, float, float]

SPI_REMEDY = "check power, wiring, and that SPI is switched on"
_GRAVITY_BAND_G = (0.5, 1.5)
_MIN_DIFFERENT_SAMPLES = 8  # that many noisy samples are never all equal


@dataclass(frozen=True)
class TiltSettings(SensorSettings):
    """Keys of every accelerometer on SPI.

    Attributes:
        sample_noise_g: Noise of one sample of an axis, from the data sheet.
        sample_gap_s: Time after which the noise of two samples is independent.
        angles: Names of the two angles. Triage fits rates to x and y, so a chip
            whose drift resembles creep has other names.
    """

    quantity: ClassVar[str] = "tilt"
    senml_unit: ClassVar[str | None] = "deg"
    range: ClassVar[tuple[float, float]] = (-90.0, 90.0)
    largest_step: ClassVar[float | None] = 1.0
    is_noisy: ClassVar[bool] = True
    warm_up_s: ClassVar[float] = 2.0
    sample_noise_g: ClassVar[float] = 0.0
    sample_gap_s: ClassVar[float] = 0.1
    angles: ClassVar[tuple[str, str]] = ("x", "y")

    device: int = key(
        KeyRule("Chip select of SPI0: 0 for CE0, 1 for CE1.", low=0, high=1)
    )
    samples: int = key(
        KeyRule("Samples in one reading; the mean of the middle half counts."), 8
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"SPI0.{self.device}",)

    @property
    def sigma_deg(self) -> float:
        """Noise of one reading at a steady temperature, from the data sheet.

        For 0.01 deg/h in an hour of readings every 10 minutes it must be 0.0029 deg
        or less (3 sigma). Drift with temperature comes on top.
        """
        sample_deg = math.degrees(self.sample_noise_g)
        return sample_deg / math.sqrt(MEAN_EFFICIENCY * self.samples)


class TiltChip(Protocol):
    """An accelerometer; its methods raise `OSError` or errors of the pin library."""

    def set_up(self) -> None:
        """Check the chip's identity, and start measuring."""

    def sample(self) -> Axes:
        """Accelerations along x, y and z in g."""

    def temp_c(self) -> float | None:
        """Temperature of the die; None without a thermometer."""

    def close(self) -> None:
        """Release the bus."""


def angles_deg(x_g: float, y_g: float, z_g: float) -> tuple[float, float]:
    """Angles of the x and the y axis above the horizontal, in degrees."""
    return (
        math.degrees(math.atan2(x_g, math.hypot(y_g, z_g))),
        math.degrees(math.atan2(y_g, math.hypot(x_g, z_g))),
    )


def check_gravity(name: str, x_g: float, y_g: float, z_g: float) -> None:
    """Check that a sample's magnitude is near 1 g.

    Raises:
        SensorRangeError: It is not.
    """
    low, high = _GRAVITY_BAND_G
    if not low <= math.hypot(x_g, y_g, z_g) <= high:
        raise SensorRangeError(
            name,
            f"must measure a gravity between {low} and {high} g, "
            f"got {math.hypot(x_g, y_g, z_g):.2f}",
            "check the mounting, or replace the chip",
        )


class TiltSensor(BaseSensor):
    """Tilt about two axes, its noise, and the temperature for drift correction."""

    def __init__(
        self, settings: TiltSettings, chip: TiltChip, sleep: Callable[[float], object]
    ) -> None:
        super().__init__(settings)
        self._settings = settings
        self._chip = chip
        self._sleep = sleep
        self._is_set_up = self._is_settled = False
        try:
            self._set_up()
        except pin_error_types():  # includes SensorBusError, an OSError
            self._chip.close()
            raise

    def read(self, now_s: float) -> list[Reading]:
        """Tilt from a burst of samples, in degrees.

        Raises:
            SensorBusError: The chip does not answer; the next read sets it up again.
            SensorRangeError: It does not measure gravity.
        """
        try:
            if not self._is_set_up:
                self._set_up()
            if not self._is_settled:
                # the filter must settle after power-on
                self._sleep(self.warm_up_s)
                self._is_settled = True
            return self._measure()
        except pin_error_types() as error:
            # includes SensorBusError: a chip that lost power needs its settings again
            self._is_set_up = self._is_settled = False
            if isinstance(error, SensorBusError):
                raise
            raise make_chip_error(self.name, f"cannot be read: {error}") from error

    def close(self) -> None:
        self._chip.close()

    def _set_up(self) -> None:
        self._chip.set_up()
        self._is_set_up = True

    def _measure(self) -> list[Reading]:
        axes = list(zip(*self._burst(), strict=True))
        x_g, y_g, z_g = (interquartile_mean(axis) for axis in axes)
        check_gravity(self.name, x_g, y_g, z_g)
        x_deg, y_deg = angles_deg(x_g, y_g, z_g)
        sigma_deg = math.degrees(max(standard_error(axis) for axis in axes[:2]))
        temp_c = self._chip.temp_c()
        temp = [] if temp_c is None else [("temp", "Cel", round(temp_c, 2))]
        first, second = self._settings.angles
        return [
            Reading(f"{self.name}/{what}", unit, value)
            for what, unit, value in (
                (first, "deg", round(x_deg, 5)),
                (second, "deg", round(y_deg, 5)),
                ("sigma", "deg", round(sigma_deg, 5)),
                *temp,
            )
        ]

    def _burst(self) -> list[Axes]:
        samples = []
        for number in range(self._settings.samples):
            if number:
                self._sleep(self._settings.sample_gap_s)
            samples.append(self._chip.sample())
        if len(samples) >= _MIN_DIFFERENT_SAMPLES and len(set(samples)) == 1:
            raise make_chip_error(
                self.name,
                f"is stuck: it gave the same sample {len(samples)} times",
                Health.STUCK,
            )
        return samples


def make_chip_error(
    name: str, reason: str, health: Health | None = None
) -> SensorBusError:
    """Make the error for a missing or unexpected answer of the chip."""
    return SensorBusError(name, reason, SPI_REMEDY, health)
