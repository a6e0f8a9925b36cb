"""Tilt from a LIS3DH accelerometer on I2C.

It detects movement or a fall. It is too coarse for 0.01 deg/h: one sample has a
noise of 0.045 deg, and the zero drifts by 0.03 deg per degree Celsius. Its angles
are therefore named pitch and roll: triage fits rates to x and y, and would take a
warm morning for a failing slope.

Source: LIS3DH data sheet (ST DocID17530 rev 2), sections 3.2.1 and 8; application
note AN3308, 4.2.3. Noise and drift are those of table 4, quoted from memory.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import BaseSensor, Hardware
from edge_agent.sensors.errors import SensorBusError, health_of_identity
from edge_agent.sensors.i2c import I2cChip, I2cSettings
from edge_agent.sensors.mcp3x08 import interquartile_mean
from edge_agent.sensors.tilt import Axes, angles_deg, check_gravity
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

G_PER_LSB = 0.001  # table 4: 1 mg a digit at +-2 g in high resolution
SAMPLE_GAP_S = 0.01
NOISE_G_PER_ROOT_HZ = 220e-6
BANDWIDTH_HZ = 1 / SAMPLE_GAP_S / 9  # of high resolution: the data rate over nine

_WHO_AM_I, _CTRL_REG1, _CTRL_REG4, _STATUS, _OUT = 0x0F, 0x20, 0x23, 0x27, 0x28
_LIS3DH = 0x33
_AUTO_INCREMENT = 0x80
_100_HZ_XYZ, _WHOLE_HIGH_RESOLUTION = 0x57, 0x88
_FRESH = 0x08
_MAX_POLLS = 10


@dataclass(frozen=True)
class Lis3dhSettings(I2cSettings):
    """Keys of kind ``lis3dh``."""

    quantity: ClassVar[str] = "tilt"
    senml_unit: ClassVar[str | None] = "deg"
    range: ClassVar[tuple[float, float]] = (-90.0, 90.0)
    largest_step: ClassVar[float | None] = 1.0
    is_noisy: ClassVar[bool] = True
    angles: ClassVar[tuple[str, str]] = ("pitch", "roll")
    warm_up_s: ClassVar[float] = 0.1

    address: int = key(
        KeyRule("Address: 0x18 or 0x19, by the pin SA0.", choices=(0x18, 0x19)), 0x18
    )
    samples: int = key(
        KeyRule("Samples in one reading, 0.01 s apart.", low=4, high=256), 64
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return (self.place,)

    @property
    def sigma_deg(self) -> float:
        """Noise of one reading at a steady temperature.

        With 0.0029 deg in ten minutes 0.01 deg/h could be detected; the chip's drift
        with temperature forbids that however many samples there are.
        """
        noise_g = NOISE_G_PER_ROOT_HZ * math.sqrt(BANDWIDTH_HZ)
        sample_g = math.hypot(noise_g, G_PER_LSB / math.sqrt(12))
        return math.degrees(sample_g) / math.sqrt(self.samples / 2)


def decode(raw: bytes) -> Axes:
    """Accelerations in g from the six data registers, OUT_X_L first.

    Raises:
        ValueError: There are not six bytes.
    """
    if len(raw) != 6:  # noqa: PLR2004 - three axes of two bytes
        raise ValueError(f"raw must be 6 bytes, got {len(raw)}")
    x, y, z = (
        # 12 bits, left-justified
        (int.from_bytes(raw[at : at + 2], "little", signed=True) >> 4) * G_PER_LSB
        for at in (0, 2, 4)
    )
    return x, y, z


class Lis3dh(BaseSensor):
    """Tilt about two axes, from a burst of samples."""

    def __init__(self, settings: Lis3dhSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._samples = settings.samples
        self._sleep = hardware.sleep
        bus = hardware.buses.i2c(settings.bus)
        self._chip = I2cChip(settings.name, settings.place, bus, settings.address)
        self._is_set_up = False
        self._set_up()

    def read(self, now_s: float) -> list[Reading]:
        """Mean tilt of a burst, in degrees.

        Raises:
            SensorBusError: The chip does not answer, or is another one; the next
                read sets it up again.
            SensorRangeError: It does not measure gravity.
        """
        try:
            if not self._is_set_up:
                self._set_up()
            samples = [self._sample() for _ in range(self._samples)]
        except SensorBusError:
            self._is_set_up = False
            raise
        x_g, y_g, z_g = (
            interquartile_mean(axis) for axis in zip(*samples, strict=True)
        )
        check_gravity(self.name, x_g, y_g, z_g)
        x_deg, y_deg = angles_deg(x_g, y_g, z_g)
        return [
            Reading(f"{self.name}/pitch", "deg", round(x_deg, 4)),
            Reading(f"{self.name}/roll", "deg", round(y_deg, 4)),
        ]

    def _set_up(self) -> None:
        found = self._chip.read_registers(_WHO_AM_I, 1)[0]
        if found != _LIS3DH:
            raise self._chip.make_error(
                f"must answer as a LIS3DH ({_LIS3DH:02X}), got {found:02X}",
                health_of_identity(found),
            )
        self._chip.write_registers(_CTRL_REG4, _WHOLE_HIGH_RESOLUTION)
        self._chip.write_registers(_CTRL_REG1, _100_HZ_XYZ)
        self._sleep(self.warm_up_s)
        self._is_set_up = True

    def _sample(self) -> Axes:
        for _ in range(_MAX_POLLS):
            self._sleep(SAMPLE_GAP_S)
            if self._chip.read_registers(_STATUS, 1)[0] & _FRESH:
                return decode(self._chip.read_registers(_OUT | _AUTO_INCREMENT, 6))
        raise self._chip.make_error("has no new sample: it lost power or stands by")
