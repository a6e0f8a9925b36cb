"""The accelerometer ADXL355 as it answers on its pins."""

import math
import random

from edge_agent.hillslope.chips.base import SpiChip
from edge_agent.hillslope.pins import SlopeFactory

_LSB_PER_G = 256_000.0
_NOISE_G_PER_ROOT_HZ = 25e-6
_FASTEST_HZ = 4000.0
_SLOWEST_FILTER = 10
_TEMP_BIAS_LSB, _TEMP_BIAS_C, _TEMP_LSB_PER_C = 1885.0, 25.0, -9.05
_TEMP2, _XDATA3, _DATA_END = 0x06, 0x08, 0x11
_FILTER, _RANGE, _POWER_CTL, _RESET = 0x28, 0x2C, 0x2D, 0x2F
_RESET_CODE = 0x52
_ADXL355, _OTHER_PART = 0xED, 0xCB


class Adxl355(SpiChip):
    """Three accelerations, 20 bits, with the noise of the chosen filter.

    Attributes:
        accel_g: Accelerations along x, y and z.
        temp_c: Temperature of the die.
        is_stuck: Whether the data registers never change again.
        is_impostor: Whether it is another chip.

    Source:
        ADXL354/ADXL355 data sheet (Analog Devices), register map and table 1.
    """

    def __init__(
        self, device: int, rng: random.Random, pin_factory: SlopeFactory
    ) -> None:
        self.accel_g = (0.0, 0.0, 1.0)
        self.temp_c = 25.0
        self.is_stuck = self.is_impostor = False
        self._registers = bytearray(0x30)
        self.power_on()
        super().__init__(device, rng, pin_factory)

    def power_on(self) -> None:
        """Lose all settings, as after a brown-out: the chip stands by."""
        self._registers[:] = bytes(0x30)
        part = _OTHER_PART if self.is_impostor else _ADXL355
        self._registers[0x00:0x04] = bytes([0xAD, 0x1D, part, 0x01])
        self._registers[_RANGE] = 0x81
        self._registers[_POWER_CTL] = 0x01

    def _listen(self) -> None:
        if self.rx_bit % 8:
            return
        word = self.rx_word()
        command = word >> (self.rx_bit - 8)
        address = (command >> 1) + self.rx_bit // 8 - 1
        if command & 1:
            if self.rx_bit == 8:  # noqa: PLR2004 - the command has just come
                self._measure()
            self.tx_word(self._registers[address] if address < 0x30 else 0)  # noqa: PLR2004
        elif self.rx_bit > 8:  # noqa: PLR2004 - a byte after the command
            self._write(address - 1, word & 0xFF)

    def _write(self, address: int, value: int) -> None:
        if address == _RESET and value == _RESET_CODE:
            self.power_on()
        elif _FILTER <= address < _RESET:
            self._registers[address] = value

    def _measure(self) -> None:
        if self._registers[_POWER_CTL] & 1:  # standing by
            self._registers[_TEMP2:_DATA_END] = bytes(_DATA_END - _TEMP2)
            return
        if self.is_stuck and any(self._registers[_XDATA3:_DATA_END]):
            return
        temp = _TEMP_BIAS_LSB + (self.temp_c - _TEMP_BIAS_C) * _TEMP_LSB_PER_C
        self._registers[_TEMP2:_XDATA3] = (round(temp) & 0xFFF).to_bytes(2)
        data = b"".join(self._axis(g) for g in self.accel_g)
        self._registers[_XDATA3:_DATA_END] = data

    def _axis(self, accel_g: float) -> bytes:
        setting = min(self._registers[_FILTER] & 0x0F, _SLOWEST_FILTER)
        bandwidth_hz = _FASTEST_HZ / 2**setting / 4
        sigma_g = _NOISE_G_PER_ROOT_HZ * math.sqrt(bandwidth_hz)
        lsb = round((accel_g + self._rng.gauss(0, sigma_g)) * _LSB_PER_G)
        lsb = min(max(lsb, -(2**19)), 2**19 - 1)
        return ((lsb & 0xFFFFF) << 4).to_bytes(3)
