"""Tilt from the SPI accelerometers ADXL345 (13 bits) and ADXL355 (20 bits).

The ADXL355 resolves creep. The ADXL345 only detects movement or a fall: one digit is
0.22 deg, and its zero drifts by about 0.02 deg per degree Celsius, which averaging
does not remove. Its angles are therefore named pitch and roll: triage fits rates to
x and y, and would take a warm morning for a failing slope.

Source: ADXL345 data sheet (Analog Devices, rev. D and later), register map, "SPI"
and "Noise performance" (290 micro-g per root hertz; 0.75 digits at 100 Hz);
ADXL354/ADXL355 data sheet (Analog Devices), register map and table 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from gpiozero import SPIDevice

from edge_agent.sensors.base import Hardware
from edge_agent.sensors.errors import health_of_identity
from edge_agent.sensors.tilt import Axes, TiltSensor, TiltSettings, make_chip_error
from service_runtime.settings import KeyRule, key

ADXL345_LSB_PER_G = 256.0
ADXL345_NOISE_LSB = 0.75

_DEVID, _BW_RATE, _ADXL345_POWER_CTL = 0x00, 0x2C, 0x2D
_DATA_FORMAT, _DATAX0 = 0x31, 0x32
_ADXL345 = 0xE5
_100_HZ, _ADXL345_MEASURE, _FULL_RESOLUTION_2_G = 0x0A, 0x08, 0x08
_READ, _MULTIPLE = 0x80, 0x40
_CLOCK_MODE = 3


class _AdxlChip(SPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """Base of both chips."""

    def __init__(self, settings: TiltSettings, hardware: Hardware) -> None:
        self._name = settings.name
        super().__init__(
            port=0, device=settings.device, pin_factory=hardware.pin_factory
        )

    def read_registers(self, address: int, count: int) -> bytes:
        """Read registers in one transfer, so that the axes belong together."""
        raise NotImplementedError

    def _load_sample(self, address: int, count: int) -> bytes:
        raw = self.read_registers(address, count)
        if raw in {b"\x00" * count, b"\xff" * count}:
            raise make_chip_error(self._name, f"answers only {raw[0]:02X}")
        return raw


@dataclass(frozen=True)
class Adxl345Settings(TiltSettings):
    """Keys of kind ``adxl345``."""

    warm_up_s: ClassVar[float] = 0.1
    sample_noise_g: ClassVar[float] = ADXL345_NOISE_LSB / ADXL345_LSB_PER_G
    sample_gap_s: ClassVar[float] = 0.01
    angles: ClassVar[tuple[str, str]] = ("pitch", "roll")

    samples: int = key(
        KeyRule(
            "Samples in one reading, 0.01 s apart; the mean of the middle half counts.",
            low=4, high=256,
        ),
        64,
    )  # fmt: skip


def decode_adxl345(raw: bytes) -> Axes:
    """Accelerations in g from the six data registers, DATAX0 first.

    Raises:
        ValueError: There are not six bytes.
    """
    if len(raw) != 6:  # noqa: PLR2004 - three axes of two bytes
        raise ValueError(f"raw must be 6 bytes, got {len(raw)}")
    x, y, z = (
        int.from_bytes(raw[at : at + 2], "little", signed=True) / ADXL345_LSB_PER_G
        for at in (0, 2, 4)
    )
    return x, y, z


class Adxl345(_AdxlChip):
    """ADXL345 as a `TiltChip`."""

    def __init__(self, settings: Adxl345Settings, hardware: Hardware) -> None:
        super().__init__(settings, hardware)
        self._spi.clock_mode = _CLOCK_MODE

    def set_up(self) -> None:
        """Check the id; measure within 2 g, 100 times a second."""
        found = self.read_registers(_DEVID, 1)[0]
        if found != _ADXL345:
            raise make_chip_error(
                self._name,
                f"must answer as an ADXL345 ({_ADXL345:02X}), got {found:02X}",
                health_of_identity(found),
            )
        self.write_register(_DATA_FORMAT, _FULL_RESOLUTION_2_G)
        self.write_register(_BW_RATE, _100_HZ)
        self.write_register(_ADXL345_POWER_CTL, _ADXL345_MEASURE)

    def sample(self) -> Axes:
        return decode_adxl345(self._load_sample(_DATAX0, 6))

    def temp_c(self) -> None:
        """Nothing: it has no thermometer."""

    def read_registers(self, address: int, count: int) -> bytes:
        command = address | _READ | (_MULTIPLE if count > 1 else 0)
        return bytes(self._spi.transfer([command] + [0] * count)[1:])

    def write_register(self, address: int, value: int) -> None:
        """Write one register."""
        self._spi.transfer([address, value])


def open_adxl345(settings: Adxl345Settings, hardware: Hardware) -> TiltSensor:
    """Open the sensor."""
    return TiltSensor(settings, Adxl345(settings, hardware), hardware.sleep)


ADXL355_LSB_PER_G = 256_000.0
ADXL355_SAMPLE_GAP_S = 0.256  # one period of the slowest filter, 3.906 Hz

_DEVID_AD, _TEMP2, _XDATA3 = 0x00, 0x06, 0x08
_FILTER, _RANGE, _ADXL355_POWER_CTL = 0x28, 0x2C, 0x2D
_LOW_PASS_1_HZ, _RANGE_2_G, _ADXL355_MEASURE = 0x0A, 0x81, 0x00
_TEMP_BIAS_LSB, _TEMP_BIAS_C, _TEMP_LSB_PER_C = 1885, 25.0, -9.05


@dataclass(frozen=True)
class Adxl355Settings(TiltSettings):
    """Keys of kind ``tilt``."""

    sample_noise_g: ClassVar[float] = 25e-6  # 25 micro-g per root hertz, at 1 Hz
    sample_gap_s: ClassVar[float] = ADXL355_SAMPLE_GAP_S

    samples: int = key(
        KeyRule(
            "Samples in one reading, 0.256 s apart; the mean of the middle half "
            "counts.",
            low=1, high=64,
        ),
        8,
    )  # fmt: skip


def decode_adxl355(raw: bytes) -> Axes:
    """Accelerations in g from the nine data registers, XDATA3 first.

    Raises:
        ValueError: There are not nine bytes.
    """
    if len(raw) != 9:  # noqa: PLR2004 - three axes of three bytes
        raise ValueError(f"raw must be 9 bytes, got {len(raw)}")
    x, y, z = (
        # 20 bits, left-justified; the lowest 4 are reserved
        (int.from_bytes(raw[at : at + 3], signed=True) >> 4) / ADXL355_LSB_PER_G
        for at in (0, 3, 6)
    )
    return x, y, z


def decode_temp_c(raw: bytes) -> float:
    """Temperature of the die in Celsius from TEMP2 and TEMP1."""
    lsb = int.from_bytes(raw) & 0xFFF
    return _TEMP_BIAS_C + (lsb - _TEMP_BIAS_LSB) / _TEMP_LSB_PER_C


class Adxl355(_AdxlChip):
    """ADXL355 as a `TiltChip`."""

    def set_up(self) -> None:
        """Check the ids; measure within 2 g, through the slowest filter."""
        ids = self.read_registers(_DEVID_AD, 3)
        if (ids[0], ids[2]) != (0xAD, 0xED):
            raise make_chip_error(
                self._name,
                f"must answer as an ADXL355 (AD, ED), got {ids[0]:02X}, {ids[2]:02X}",
                health_of_identity(ids[0]),
            )
        self.write_register(_RANGE, _RANGE_2_G)
        self.write_register(_FILTER, _LOW_PASS_1_HZ)
        self.write_register(_ADXL355_POWER_CTL, _ADXL355_MEASURE)

    def sample(self) -> Axes:
        return decode_adxl355(self._load_sample(_XDATA3, 9))

    def temp_c(self) -> float:
        return decode_temp_c(self.read_registers(_TEMP2, 2))

    def read_registers(self, address: int, count: int) -> bytes:
        return bytes(self._spi.transfer([address << 1 | 1] + [0] * count)[1:])

    def write_register(self, address: int, value: int) -> None:
        """Write one register."""
        self._spi.transfer([address << 1, value])


def open_adxl355(settings: Adxl355Settings, hardware: Hardware) -> TiltSensor:
    """Open the sensor."""
    return TiltSensor(settings, Adxl355(settings, hardware), hardware.sleep)
