"""The accelerometer ADXL345 as it answers on its pins.

Source: ADXL345 data sheet (Analog Devices), register map, "SPI" and table 1.
"""

import random

from edge_agent.hillslope.chips.base import SpiChip
from edge_agent.hillslope.pins import SlopeFactory

_BYTE = 8
_DEVID, _POWER_CTL, _DATA_FORMAT, _DATAX0 = 0x00, 0x2D, 0x31, 0x32
_ADXL345, _ADXL343_LIKE = 0xE5, 0xE6
_READ, _MULTIPLE, _ADDRESS = 0x80, 0x40, 0x3F
_MEASURE, _FULL_RESOLUTION = 0x08, 0x08
_LSB_PER_G, _NOISE_LSB = 256.0, 0.75
_MOST = 511  # +-2 g
_DRIFT_G_PER_C = 0.4e-3
_CALIBRATED_C = 25.0


class Adxl345(SpiChip):
    """Three accelerations of 4 milli-g, with noise and a drift of the zero.

    Attributes:
        accel_g: Accelerations along x, y and z.
        temp_c: Temperature, which shifts the zero of x and y.
        is_stuck: Whether the data registers never change again.
        is_impostor: Whether it is another chip.
    """

    def __init__(
        self, device: int, rng: random.Random, pin_factory: SlopeFactory
    ) -> None:
        self.accel_g = (0.0, 0.0, 1.0)
        self.temp_c = _CALIBRATED_C
        self.is_stuck = self.is_impostor = False
        self._registers = bytearray(0x40)
        super().__init__(device, rng, pin_factory, clock_mode=3)

    def power_on(self) -> None:
        """Lose all settings: the chip stands by."""
        self._registers[:] = bytes(0x40)

    def _listen(self) -> None:
        if self.rx_bit % _BYTE:
            return
        word = self.rx_word()
        command = word >> (self.rx_bit - _BYTE)
        passed = self.rx_bit // _BYTE - 1
        step = passed if command & _MULTIPLE else 0
        address = ((command & _ADDRESS) + step) & _ADDRESS
        if command & _READ:
            if passed == 0:
                self._measure()
            self.tx_word(self._registers[address])
        elif passed:
            self._registers[(command & _ADDRESS) + passed - 1] = word & 0xFF

    def _measure(self) -> None:
        self._registers[_DEVID] = _ADXL343_LIKE if self.is_impostor else _ADXL345
        data = slice(_DATAX0, _DATAX0 + 6)
        if not self._registers[_POWER_CTL] & _MEASURE:
            self._registers[data] = bytes(6)
        elif not (self.is_stuck and any(self._registers[data])):
            x, y, z = self.accel_g
            drift_g = _DRIFT_G_PER_C * (self.temp_c - _CALIBRATED_C)
            axes = (x + drift_g, y + drift_g, z)
            self._registers[data] = b"".join(map(self._axis, axes))

    def _axis(self, accel_g: float) -> bytes:
        lsb = round(accel_g * _LSB_PER_G + self._rng.gauss(0, _NOISE_LSB))
        lsb = min(max(lsb, -_MOST - 1), _MOST)
        return lsb.to_bytes(2, "little", signed=True)
