"""A LIS3DH as it answers on its bus: 12 bits, and noise that a slope drowns in.

Source: LIS3DH data sheet (ST DocID17530 rev 2), section 8; noise and drift are
table 4's, from memory.
"""

import math
import random

from edge_agent.hillslope.chips.i2c import FailingChip

_WHO_AM_I, _CTRL_REG1, _CTRL_REG4, _STATUS, _OUT = 0x0F, 0x20, 0x23, 0x27, 0x28
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
        """Stand by, in normal mode."""
        super().power_on()
        self.registers[_CTRL_REG1] = _AXES

    def read(self, register: int, count: int) -> bytes:
        """One register over and over, or several with the highest address bit."""
        first = register & ~_AUTO_INCREMENT
        data = super().read(first, count)
        return data if register & _AUTO_INCREMENT else data[:1] * count

    def measure(self, register: int) -> None:
        """Say who it is; sample, unless it stands by."""
        self.registers[_WHO_AM_I] = _LIS331 if self.is_impostor else _LIS3DH
        if register not in {_STATUS, _OUT}:
            return
        rate_hz = _RATES_HZ[min(self.registers[_CTRL_REG1] >> 4, len(_RATES_HZ) - 1)]
        self.registers[_STATUS] = _FRESH if rate_hz else 0
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
