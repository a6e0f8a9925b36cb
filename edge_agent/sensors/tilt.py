"""Tilt against gravity, from an ADXL355 accelerometer on SPI.

Source: ADXL354/ADXL355 data sheet (Analog Devices), register map.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from gpiozero import SPIDevice

from edge_agent.sensors.base import Described, Hardware, SensorSettings
from edge_agent.sensors.errors import SensorBusError, SensorRangeError, pin_errors
from spatial_mqtt.envelope import Reading
from spatial_mqtt.settings import Rule, key

LSB_PER_G = 256_000.0
SAMPLE_GAP_S = 0.256  # one period of the slowest filter, 3.906 Hz

_DEVID_AD, _TEMP2, _XDATA3 = 0x00, 0x06, 0x08
_FILTER, _RANGE, _POWER_CTL = 0x28, 0x2C, 0x2D
_LOW_PASS_1_HZ, _RANGE_2_G, _MEASURE = 0x0A, 0x81, 0x00
_TEMP_BIAS_LSB, _TEMP_BIAS_C, _TEMP_LSB_PER_C = 1885, 25.0, -9.05
_GRAVITY_BAND_G = (0.5, 1.5)


@dataclass(frozen=True)
class TiltSettings(SensorSettings):
    """Keys of kind ``tilt``."""

    quantity: ClassVar[str] = "tilt"
    senml_unit: ClassVar[str | None] = "deg"
    range: ClassVar[tuple[float, float]] = (-90.0, 90.0)
    largest_step: ClassVar[float | None] = 1.0
    warm_up_s: ClassVar[float] = 2.0

    device: int = key(Rule("Chip select of SPI0: 0 for CE0, 1 for CE1.", low=0, high=1))
    samples: int = key(
        Rule("Samples in one reading, 0.256 s apart; the mean counts.", low=1, high=64),
        8,
    )

    @property
    def claims(self) -> tuple[str, ...]:
        """The chip."""
        return (f"SPI0.{self.device}",)


def decode(raw: bytes) -> tuple[float, float, float]:
    """Accelerations in g from the nine data registers, XDATA3 first.

    Raises:
        ValueError: There are not nine bytes.
    """
    if len(raw) != 9:  # noqa: PLR2004 - three axes of three bytes
        raise ValueError(f"raw must be 9 bytes, got {len(raw)}")
    x, y, z = (
        # 20 bits, left-justified; the lowest 4 say other things
        (int.from_bytes(raw[at : at + 3], signed=True) >> 4) / LSB_PER_G
        for at in (0, 3, 6)
    )
    return x, y, z


def decode_temperature(raw: bytes) -> float:
    """Temperature of the die in Celsius from TEMP2 and TEMP1."""
    lsb = int.from_bytes(raw) & 0xFFF
    return _TEMP_BIAS_C + (lsb - _TEMP_BIAS_LSB) / _TEMP_LSB_PER_C


def angles_deg(x_g: float, y_g: float, z_g: float) -> tuple[float, float]:
    """Angles of the x and the y axis above the horizontal, in degrees."""
    return (
        math.degrees(math.atan2(x_g, math.hypot(y_g, z_g))),
        math.degrees(math.atan2(y_g, math.hypot(x_g, z_g))),
    )


class Adxl355(SPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """The chip's registers."""

    def load(self, address: int, count: int) -> bytes:
        """Read registers in one transfer, so that the axes belong together."""
        return bytes(self._spi.transfer([address << 1 | 1] + [0] * count)[1:])

    def store(self, address: int, value: int) -> None:
        """Write one register."""
        self._spi.transfer([address << 1, value])


class Tilt(Described):
    """Tilt about two axes, and the temperature that explains false tilt."""

    def __init__(self, settings: TiltSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._samples = settings.samples
        self._sleep = hardware.sleep
        self._is_set_up = self._is_settled = False
        self._chip: Any = Adxl355(
            port=0, device=settings.device, pin_factory=hardware.pin_factory
        )
        try:
            self._set_up()
        except pin_errors():  # our own SensorBusError is an OSError, too
            self._chip.close()
            raise

    def read(self, now_s: float) -> list[Reading]:
        """Mean tilt of some samples, in degrees.

        Raises:
            SensorBusError: The chip does not answer; it is set up anew next time.
            SensorRangeError: It does not feel gravity.
        """
        try:
            if not self._is_set_up:
                self._set_up()
            if not self._is_settled:
                # the filter has to forget that the chip was off
                self._sleep(self.warm_up_s)
                self._is_settled = True
            return self._measure()
        except pin_errors() as error:
            # also our own SensorBusError: a chip that lost power needs its settings
            self._is_set_up = self._is_settled = False
            if isinstance(error, SensorBusError):
                raise
            raise self._silent(f"cannot be read: {error}") from error

    def state(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Give the bus back."""
        self._chip.close()

    def _set_up(self) -> None:
        ids = self._chip.load(_DEVID_AD, 3)
        if (ids[0], ids[2]) != (0xAD, 0xED):
            raise self._silent(
                f"must answer as an ADXL355 (AD, ED), got {ids[0]:02X}, {ids[2]:02X}"
            )
        self._chip.store(_RANGE, _RANGE_2_G)
        self._chip.store(_FILTER, _LOW_PASS_1_HZ)
        self._chip.store(_POWER_CTL, _MEASURE)
        self._is_set_up = True

    def _measure(self) -> list[Reading]:
        sums = [0.0, 0.0, 0.0]
        for number in range(self._samples):
            if number:
                self._sleep(SAMPLE_GAP_S)
            sums = [a + b for a, b in zip(sums, self._sample(), strict=True)]
        x_g, y_g, z_g = (total / self._samples for total in sums)
        low, high = _GRAVITY_BAND_G
        if not low <= math.hypot(x_g, y_g, z_g) <= high:
            raise SensorRangeError(
                self.name,
                f"must feel a gravity between {low} and {high} g, "
                f"got {math.hypot(x_g, y_g, z_g):.2f}",
                "check the mounting, or replace the chip",
            )
        x_deg, y_deg = angles_deg(x_g, y_g, z_g)
        temp_c = decode_temperature(self._chip.load(_TEMP2, 2))
        return [
            Reading(f"{self.name}/x", "deg", round(x_deg, 5)),
            Reading(f"{self.name}/y", "deg", round(y_deg, 5)),
            Reading(f"{self.name}/temp", "Cel", round(temp_c, 2)),
        ]

    def _sample(self) -> tuple[float, float, float]:
        raw = self._chip.load(_XDATA3, 9)
        if raw in {b"\x00" * 9, b"\xff" * 9}:
            raise self._silent(f"answers only {raw[0]:02X}")
        return decode(raw)

    def _silent(self, reason: str) -> SensorBusError:
        return SensorBusError(
            self.name, reason, "check power, wiring, and that SPI is switched on"
        )
