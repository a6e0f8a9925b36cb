"""Simulated I2C chips: ADS1115, BME280 and LIS3DH, on a bus that can fail.

Source: ADS111x data sheet (TI SBAS444D), "Config Register" and "Data Format";
BME280 data sheet (Bosch BST-BME280-DS002), 4.2.2 and 5.4, with the trimming
parameters of one real chip; LIS3DH data sheet (ST DocID17530 rev 2), section 8, with
noise and drift of table 4, quoted from memory.
"""

import math
import os
import random
from collections.abc import Callable

from edge_agent.sensors.bme280 import (
    compensate_humidity,
    compensate_pressure,
    compensate_temperature,
    decode_trim,
)
from edge_agent.simulator.buses import RegisterChip


class FailingChip(RegisterChip):
    """Registers behind a bus that can fail.

    Attributes:
        errno: Error number of the bus failure; 0 for none.
        is_impostor: Whether another chip is soldered in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errno = 0
        self.is_impostor = False
        self.power_on()

    def power_on(self) -> None:
        """Reset to the power-on state."""
        self.registers[:] = bytes(256)

    def _answer(self) -> None:
        super()._answer()
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))


POWER_ON_CONFIG = 0x8583
_CONFIG = 0x01
_READY = 0x8000
_RANGES_V = (6.144, 4.096, 2.048, 1.024, 0.512, 0.256, 0.256, 0.256)
_NOISE_LSB = 0.5
_WIRE_NOISE_V = 0.0005


class Ads1115Chip(FailingChip):
    """Registers of two bytes, and one conversion at a time.

    Attributes:
        volts: Voltage on each input.
        noise_v: Noise of the wiring of each input.
        slow_polls: Number of reads of the config register before a conversion is
            done.
    """

    def __init__(self, rng: random.Random) -> None:
        self.volts = [0.0] * 4
        self.noise_v = [_WIRE_NOISE_V] * 4
        self.slow_polls = 0
        self._rng = rng
        super().__init__()

    def power_on(self) -> None:
        self._config, self._code, self._left = POWER_ON_CONFIG, 0, 0

    def read(self, register: int, count: int) -> bytes:
        """Two bytes of a register."""
        self._answer()
        if register != _CONFIG:
            return self._code.to_bytes(2, signed=True)[:count]
        is_ready, self._left = self._left <= 0, self._left - 1
        return (self._config & ~_READY | _READY * is_ready).to_bytes(2)[:count]

    def write(self, register: int, data: bytes) -> None:
        """Set the config register; its highest bit starts a conversion."""
        self._answer()
        if register != _CONFIG or self.is_impostor:
            return
        self._config = int.from_bytes(data)
        if self._config & _READY:
            self._convert()

    def _convert(self) -> None:
        self._left = self.slow_polls
        mux, gain = self._config >> 12 & 0b111, self._config >> 9 & 0b111
        at = mux & 0b11
        noisy_v = self.volts[at] + self._rng.gauss(0, self.noise_v[at])
        plus = noisy_v if mux & 0b100 else 0.0  # the other settings are not wired
        exact = plus / _RANGES_V[gain] * 0x8000
        noisy = round(exact + self._rng.gauss(0, _NOISE_LSB))
        self._code = min(max(noisy, -0x8000), 0x7FFF)


TRIM_TP = bytes.fromhex("686ee8643200538fabd5d00ba3223500f9ffac260ad8bd10004b")
TRIM_H = bytes.fromhex("6c0100132a031e")
_ID, _CTRL_HUM, _BME280_STATUS, _CTRL_MEAS, _DATA = 0xD0, 0xF2, 0xF3, 0xF4, 0xF7
_BME280, _BMP280 = 0x60, 0x58
_NOTHING = bytes.fromhex("8000008000008000")
_MEASURING = 0x08
_FORCED = (0b01, 0b10)
_NOISE = (0.005, 1.3, 0.02)  # C, Pa and %: about what one sample has


class Bme280Chip(FailingChip):
    """Registers, and a measurement when one is forced.

    Attributes:
        air: Temperature in C, pressure in Pa, relative humidity in percent.
        slow_polls: Number of reads of the status before a measurement is done.
    """

    def __init__(self, rng: random.Random) -> None:
        self.air = (15.0, 101_325.0, 60.0)
        self.slow_polls = 0
        self._rng = rng
        self._trim = decode_trim(TRIM_TP, TRIM_H)
        self._left = 0
        super().__init__()

    def power_on(self) -> None:
        super().power_on()
        self.registers[0x88:0xA2] = TRIM_TP
        self.registers[0xE1:0xE8] = TRIM_H
        self.registers[_DATA : _DATA + 8] = _NOTHING

    def measure(self, register: int) -> None:
        """Set the identity and the status."""
        self.registers[_ID] = _BMP280 if self.is_impostor else _BME280
        if register == _BME280_STATUS:
            self.registers[_BME280_STATUS] = _MEASURING * (self._left > 0)
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
        adc_t = _inverse(
            lambda adc: compensate_temperature(adc, self._trim) / 5120, temp, 20
        )
        fine = compensate_temperature(adc_t, self._trim)
        adc_p = _inverse(
            lambda adc: -compensate_pressure(adc, fine, self._trim), -pressure, 20
        )
        adc_h = _inverse(
            lambda adc: compensate_humidity(adc, fine, self._trim), humidity, 16
        )
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


_WHO_AM_I, _CTRL_REG1, _CTRL_REG4, _LIS3DH_STATUS, _OUT = 0x0F, 0x20, 0x23, 0x27, 0x28
_LIS3DH, _LIS331 = 0x33, 0x32
_AUTO_INCREMENT = 0x80
_LOW_POWER, _HIGH_RESOLUTION, _FRESH = 0x08, 0x08, 0x08
_AXES = 0b111
_RATES_HZ = (0, 1, 10, 25, 50, 100, 200, 400, 1620, 1344)
_NOISE_G_PER_ROOT_HZ = 220e-6
_G_PER_DIGIT = 0.001
_DRIFT_G_PER_C = 0.5e-3
_CALIBRATED_C = 25.0


class Lis3dhChip(FailingChip):
    """Registers, and a new sample whenever the status or the data are read.

    Attributes:
        accel_g: Accelerations along x, y and z.
        temp_c: Temperature, which shifts the zero of x and y.
    """

    def __init__(self, rng: random.Random) -> None:
        self.accel_g = (0.0, 0.0, 1.0)
        self.temp_c = _CALIBRATED_C
        self._rng = rng
        super().__init__()

    def power_on(self) -> None:
        super().power_on()
        self.registers[_CTRL_REG1] = _AXES

    def read(self, register: int, count: int) -> bytes:
        """One register over and over, or several with the highest address bit."""
        first = register & ~_AUTO_INCREMENT
        data = super().read(first, count)
        return data if register & _AUTO_INCREMENT else data[:1] * count

    def measure(self, register: int) -> None:
        """Set the identity; sample, unless in standby."""
        self.registers[_WHO_AM_I] = _LIS331 if self.is_impostor else _LIS3DH
        if register not in {_LIS3DH_STATUS, _OUT}:
            return
        rate_hz = _RATES_HZ[min(self.registers[_CTRL_REG1] >> 4, len(_RATES_HZ) - 1)]
        self.registers[_LIS3DH_STATUS] = _FRESH if rate_hz else 0
        shift_g = _DRIFT_G_PER_C * (self.temp_c - _CALIBRATED_C)
        x, y, z = self.accel_g
        axes = (x + shift_g, y + shift_g, z)
        data = b"".join(self._axis(g, rate_hz) for g in axes)
        self.registers[_OUT : _OUT + 6] = data if rate_hz else bytes(6)

    def _axis(self, accel_g: float, rate_hz: float) -> bytes:
        bits = 12 if self.registers[_CTRL_REG4] & _HIGH_RESOLUTION else 10
        if self.registers[_CTRL_REG1] & _LOW_POWER:
            bits = 8
        sigma_g = _NOISE_G_PER_ROOT_HZ * math.sqrt(rate_hz / 9)
        step = 1 << 12 - bits
        digits = (accel_g + self._rng.gauss(0, sigma_g)) / _G_PER_DIGIT
        rounded = min(max(round(digits / step) * step, -2048), 2047)
        return (rounded << 4).to_bytes(2, "little", signed=True)
