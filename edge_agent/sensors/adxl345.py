"""Tilt from an ADXL345: 13 bits, which see that something moved or fell over.

It is too coarse for 0.01 deg/h: a digit is 0.22 deg, and its zero moves with the
temperature, by about 0.02 deg for a degree, which no number of samples takes away.
So its angles are called pitch and roll: a warm morning would pass for a slope that
fails.

Source: ADXL345 data sheet (Analog Devices, rev. D and later), register map, "SPI"
and "Noise performance" (290 micro-g per root hertz; 0.75 digits at 100 Hz).
"""

from dataclasses import dataclass
from typing import ClassVar

from gpiozero import SPIDevice

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.errors import stranger
from edge_agent.sensors.tilt import Axes, Tilt, TiltSettings, silent
from spatial_mqtt.settings import Rule, key

LSB_PER_G = 256.0
NOISE_LSB = 0.75

_DEVID, _BW_RATE, _POWER_CTL, _DATA_FORMAT, _DATAX0 = 0x00, 0x2C, 0x2D, 0x31, 0x32
_ADXL345 = 0xE5
_100_HZ, _MEASURE, _FULL_RESOLUTION_2_G = 0x0A, 0x08, 0x08
_READ, _MULTIPLE = 0x80, 0x40
_CLOCK_MODE = 3


@dataclass(frozen=True)
class Adxl345Settings(TiltSettings):
    """Keys of kind ``adxl345``."""

    warm_up_s: ClassVar[float] = 0.1
    sample_noise_g: ClassVar[float] = NOISE_LSB / LSB_PER_G
    sample_gap_s: ClassVar[float] = 0.01
    angles: ClassVar[tuple[str, str]] = ("pitch", "roll")

    samples: int = key(
        Rule(
            "Samples in one reading, 0.01 s apart; the mean of the middle half counts.",
            low=4, high=256,
        ),
        64,
    )  # fmt: skip


def decode(raw: bytes) -> Axes:
    """Accelerations in g from the six data registers, DATAX0 first.

    Raises:
        ValueError: There are not six bytes.
    """
    if len(raw) != 6:  # noqa: PLR2004 - three axes of two bytes
        raise ValueError(f"raw must be 6 bytes, got {len(raw)}")
    x, y, z = (
        int.from_bytes(raw[at : at + 2], "little", signed=True) / LSB_PER_G
        for at in (0, 2, 4)
    )
    return x, y, z


class Adxl345(SPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """The chip, as `TiltChip`."""

    def __init__(self, settings: Adxl345Settings, hardware: Hardware) -> None:
        self._name = settings.name
        super().__init__(
            port=0, device=settings.device, pin_factory=hardware.pin_factory
        )
        self._spi.clock_mode = _CLOCK_MODE

    def set_up(self) -> None:
        """Check the id; measure within 2 g, 100 times a second."""
        found = self.load(_DEVID, 1)[0]
        if found != _ADXL345:
            raise silent(
                self._name,
                f"must answer as an ADXL345 ({_ADXL345:02X}), got {found:02X}",
                stranger(found),
            )
        self.store(_DATA_FORMAT, _FULL_RESOLUTION_2_G)
        self.store(_BW_RATE, _100_HZ)
        self.store(_POWER_CTL, _MEASURE)

    def sample(self) -> Axes:
        """Accelerations now."""
        raw = self.load(_DATAX0, 6)
        if raw in {b"\x00" * 6, b"\xff" * 6}:
            raise silent(self._name, f"answers only {raw[0]:02X}")
        return decode(raw)

    def temp_c(self) -> None:
        """Nothing: it has no thermometer."""

    def load(self, address: int, count: int) -> bytes:
        """Read registers in one transfer, so that the axes belong together."""
        command = address | _READ | (_MULTIPLE if count > 1 else 0)
        return bytes(self._spi.transfer([command] + [0] * count)[1:])

    def store(self, address: int, value: int) -> None:
        """Write one register."""
        self._spi.transfer([address, value])


def open_adxl345(settings: Adxl345Settings, hardware: Hardware) -> Tilt:
    """Open the sensor."""
    return Tilt(settings, Adxl345(settings, hardware), hardware.sleep)
