"""From the numbers of a BME280 to temperature, pressure and humidity.

Source: BME280 data sheet (Bosch BST-BME280-DS002), 4.2.2 trimming parameters and
appendix A (8.1), compensation in double precision.
"""

import struct
from dataclasses import dataclass

TRIM_TP = (0x88, 26)
TRIM_H = (0xE1, 7)
DATA = (0xF7, 8)
_SKIPPED_TP, _SKIPPED_H = 0x80000, 0x8000


class SkippedError(ValueError):
    """The chip measured nothing: it stands as after power-on."""


@dataclass(frozen=True)
class Trim:
    """A chip's own calibration: T1..T3, P1..P9, H1..H6 of the data sheet."""

    t: tuple[int, ...]
    p: tuple[int, ...]
    h: tuple[int, ...]


@dataclass(frozen=True)
class Air:
    """What the air is like.

    Attributes:
        temp_c: Temperature.
        pressure_pa: Pressure.
        humidity_percent: Relative humidity, 0 to 100.
    """

    temp_c: float
    pressure_pa: float
    humidity_percent: float


def trim_of(tp: bytes, h: bytes) -> Trim:
    """Trimming parameters from the registers 0x88..0xA1 and 0xE1..0xE7."""
    t1, t2, t3, *rest = struct.unpack("<HhhHhhhhhhhh", tp[:24])
    h2, h3 = struct.unpack("<hB", h[:3])
    # H4 and H5 have 12 bits each and share the byte 0xE5
    h4 = int.from_bytes(h[3:4], signed=True) << 4 | h[4] & 0x0F
    h5 = int.from_bytes(h[5:6], signed=True) << 4 | h[4] >> 4
    h6 = int.from_bytes(h[6:7], signed=True)
    return Trim((t1, t2, t3), tuple(rest), (tp[25], h2, h3, h4, h5, h6))


def decode(raw: bytes, trim: Trim) -> Air:
    """The air from the eight data registers, 0xF7 first.

    Raises:
        SkippedError: Nothing was measured.
    """
    pressure = int.from_bytes(raw[0:3]) >> 4
    temp = int.from_bytes(raw[3:6]) >> 4
    humidity = int.from_bytes(raw[6:8])
    if _SKIPPED_TP in {pressure, temp} or humidity == _SKIPPED_H:
        raise SkippedError("has measured nothing")
    fine = fine_of(temp, trim)
    return Air(
        fine / 5120, pascals(pressure, fine, trim), percent(humidity, fine, trim)
    )


def fine_of(adc: int, trim: Trim) -> float:
    """The fine temperature, 1/5120 degree, that the other formulas need."""
    t1, t2, t3 = trim.t
    first = (adc / 16384 - t1 / 1024) * t2
    return first + (adc / 131072 - t1 / 8192) ** 2 * t3


def pascals(adc: int, fine: float, trim: Trim) -> float:
    """Pressure; 0 when the calibration is none."""
    p1, p2, p3, p4, p5, p6, p7, p8, p9 = trim.p
    a = fine / 2 - 64000
    b = (a * a * p6 / 32768 + a * p5 * 2) / 4 + p4 * 65536
    c = (1 + (p3 * a * a / 524288 + p2 * a) / 524288 / 32768) * p1
    if c == 0:
        return 0.0
    p = (1048576 - adc - b / 4096) * 6250 / c
    return p + (p9 * p * p / 2147483648 + p * p8 / 32768 + p7) / 16


def percent(adc: int, fine: float, trim: Trim) -> float:
    """Relative humidity, 0 to 100."""
    h1, h2, h3, h4, h5, h6 = trim.h
    a = fine - 76800
    slope = h2 / 65536 * (1 + h6 / 67108864 * a * (1 + h3 / 67108864 * a))
    b = (adc - (h4 * 64 + h5 / 16384 * a)) * slope
    return min(max(b * (1 - h1 * b / 524288), 0.0), 100.0)
