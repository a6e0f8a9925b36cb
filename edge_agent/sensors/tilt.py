"""Tilt against gravity, from bursts of samples of ADXL345, ADXL355 and LIS3DH.

`TiltSensor` serves every accelerometer on SPI; those of Murata are in
`edge_agent.sensors.murata`.

The ADXL355 (20 bits) resolves creep. The ADXL345 (13 bits) only detects movement or a
fall: one digit is 0.22 deg, and its zero drifts by about 0.02 deg per degree Celsius,
which averaging does not remove. So does the LIS3DH on I2C: one sample has a noise of
0.045 deg, and the zero drifts by 0.03 deg per degree. Their angles are therefore named
pitch and roll: triage fits rates to x and y, and would take a warm morning for a
failing slope.

Source: ADXL345 data sheet (Analog Devices, rev. D and later), register map, "SPI"
and "Noise performance" (290 micro-g per root hertz; 0.75 digits at 100 Hz);
ADXL354/ADXL355 data sheet (Analog Devices), register map and table 1; LIS3DH data sheet
(ST DocID17530 rev 2), sections 3.2.1 and 8; application note AN3308, 4.2.3. Noise and
drift of the LIS3DH are those of table 4, quoted from memory.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from gpiozero import SPIDevice

from edge_agent.sensors.analog import (
    MEAN_EFFICIENCY,
    interquartile_mean,
    standard_error,
)
from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    I2cChip,
    I2cSettings,
    SensorBusError,
    SensorRangeError,
    SensorSettings,
    health_of_identity,
    pin_error_types,
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


def _axes_of(
    raw: bytes, width: int, order: Literal["little", "big"]
) -> tuple[int, int, int]:
    """Three signed numbers of so many bytes each."""
    if len(raw) != 3 * width:
        raise ValueError(f"raw must be {3 * width} bytes, got {len(raw)}")
    x, y, z = (
        int.from_bytes(raw[at : at + width], order, signed=True)
        for at in (0, width, 2 * width)
    )
    return x, y, z


def _mean_angles_deg(name: str, axes: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Angles of the mean of a burst.

    Raises:
        SensorRangeError: It does not measure gravity.
    """
    x_g, y_g, z_g = (interquartile_mean(axis) for axis in axes)
    check_gravity(name, x_g, y_g, z_g)
    return angles_deg(x_g, y_g, z_g)


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
        x_deg, y_deg = _mean_angles_deg(self.name, axes)
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
    x, y, z = _axes_of(raw, 2, "little")
    return x / ADXL345_LSB_PER_G, y / ADXL345_LSB_PER_G, z / ADXL345_LSB_PER_G


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
    x, y, z = (axis >> 4 for axis in _axes_of(raw, 3, "big"))  # 20 bits, left-justified
    return x / ADXL355_LSB_PER_G, y / ADXL355_LSB_PER_G, z / ADXL355_LSB_PER_G


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


LIS3DH_G_PER_LSB = 0.001  # table 4: 1 mg a digit at +-2 g in high resolution
LIS3DH_SAMPLE_GAP_S = 0.01
_NOISE_G_PER_ROOT_HZ = 220e-6
_BANDWIDTH_HZ = 1 / LIS3DH_SAMPLE_GAP_S / 9
"""Of high resolution: the data rate over nine."""


_WHO_AM_I, _CTRL_REG1, _CTRL_REG4, _STATUS, _OUT = 0x0F, 0x20, 0x23, 0x27, 0x28
_LIS3DH = 0x33
_AUTO_INCREMENT = 0x80
_LIS3DH_100_HZ, _WHOLE_HIGH_RESOLUTION = 0x57, 0x88
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
        noise_g = _NOISE_G_PER_ROOT_HZ * math.sqrt(_BANDWIDTH_HZ)
        sample_g = math.hypot(noise_g, LIS3DH_G_PER_LSB / math.sqrt(12))
        return math.degrees(sample_g) / math.sqrt(self.samples / 2)


def decode_lis3dh(raw: bytes) -> Axes:
    """Accelerations in g from the six data registers, OUT_X_L first.

    Raises:
        ValueError: There are not six bytes.
    """
    # 12 bits, left-justified
    x, y, z = (axis >> 4 for axis in _axes_of(raw, 2, "little"))
    return x * LIS3DH_G_PER_LSB, y * LIS3DH_G_PER_LSB, z * LIS3DH_G_PER_LSB


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
        x_deg, y_deg = _mean_angles_deg(self.name, zip(*samples, strict=True))
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
        self._chip.write_registers(_CTRL_REG1, _LIS3DH_100_HZ)
        self._sleep(self.warm_up_s)
        self._is_set_up = True

    def _sample(self) -> Axes:
        for _ in range(_MAX_POLLS):
            self._sleep(LIS3DH_SAMPLE_GAP_S)
            if self._chip.read_registers(_STATUS, 1)[0] & _FRESH:
                return decode_lis3dh(
                    self._chip.read_registers(_OUT | _AUTO_INCREMENT, 6)
                )
        raise self._chip.make_error("has no new sample: it lost power or stands by")
