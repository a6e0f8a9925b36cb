"""A BME280 as it answers on its bus.

Source: BME280 data sheet (Bosch BST-BME280-DS002), 4.2.2 and 5.4. The trimming
parameters are those of one real chip.
"""

import random
from collections.abc import Callable

from edge_agent.hillslope.chips.i2c import FailingChip
from edge_agent.sensors.bme280_formulas import fine_of, pascals, percent, trim_of

TRIM_TP = bytes.fromhex("686ee8643200538fabd5d00ba3223500f9ffac260ad8bd10004b")
TRIM_H = bytes.fromhex("6c0100132a031e")
_ID, _CTRL_HUM, _STATUS, _CTRL_MEAS, _DATA = 0xD0, 0xF2, 0xF3, 0xF4, 0xF7
_BME280, _BMP280 = 0x60, 0x58
_NOTHING = bytes.fromhex("8000008000008000")
_MEASURING = 0x08
_FORCED = (0b01, 0b10)
_NOISE = (0.005, 1.3, 0.02)  # C, Pa and %: about what one sample has


class Bme280Chip(FailingChip):
    """Registers, and a measurement when one is forced.

    Attributes:
        air: Temperature in C, pressure in Pa, relative humidity in percent.
        slow_polls: How often the status is read before a measurement is done.
    """

    def __init__(self, rng: random.Random) -> None:
        self.air = (15.0, 101_325.0, 60.0)
        self.slow_polls = 0
        self._rng = rng
        self._trim = trim_of(TRIM_TP, TRIM_H)
        self._left = 0
        super().__init__()

    def power_on(self) -> None:
        """Sleep, with nothing measured and no oversampling chosen."""
        super().power_on()
        self.registers[0x88:0xA2] = TRIM_TP
        self.registers[0xE1:0xE8] = TRIM_H
        self.registers[_DATA : _DATA + 8] = _NOTHING

    def measure(self, register: int) -> None:
        """Say who it is, and whether it is still at work."""
        self.registers[_ID] = _BMP280 if self.is_impostor else _BME280
        if register == _STATUS:
            self.registers[_STATUS] = _MEASURING * (self._left > 0)
            self._left -= 1

    def command(self, register: int, data: bytes) -> None:
        """Measure once in forced mode."""
        if register == _CTRL_MEAS and data[0] & 0b11 in _FORCED:
            self._left = self.slow_polls
            self.registers[_DATA : _DATA + 8] = self._measured()

    def _measured(self) -> bytes:
        control, humid = self.registers[_CTRL_MEAS], self.registers[_CTRL_HUM]
        temp, pressure, humidity = (
            exact + self._rng.gauss(0, sigma)
            for exact, sigma in zip(self.air, _NOISE, strict=True)
        )
        adc_t = _inverse(lambda adc: fine_of(adc, self._trim) / 5120, temp, 20)
        fine = fine_of(adc_t, self._trim)
        adc_p = _inverse(lambda adc: -pascals(adc, fine, self._trim), -pressure, 20)
        adc_h = _inverse(lambda adc: percent(adc, fine, self._trim), humidity, 16)
        p = (adc_p << 4).to_bytes(3) if control >> 2 & 0b111 else _NOTHING[:3]
        t = (adc_t << 4).to_bytes(3) if control >> 5 else _NOTHING[3:6]
        return p + t + (adc_h.to_bytes(2) if humid & 0b111 else _NOTHING[6:])


def _inverse(rising: Callable[[int], float], value: float, bits: int) -> int:
    """The number whose rising function comes nearest below a value."""
    found = 0
    for bit in reversed(range(bits)):
        if rising(found | 1 << bit) <= value:
            found |= 1 << bit
    return found
