"""An ADS1115 as it answers on its bus: one converter behind four inputs.

Source: ADS111x data sheet (TI SBAS444D), "Config Register" and "Data Format".
"""

import random

from edge_agent.hillslope.chips.i2c import FailingChip

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
        noise_v: Noise that each input's wires bring.
        slow_polls: How often the config register is read before a conversion is
            done.
    """

    def __init__(self, rng: random.Random) -> None:
        self.volts = [0.0] * 4
        self.noise_v = [_WIRE_NOISE_V] * 4
        self.slow_polls = 0
        self._rng = rng
        super().__init__()

    def power_on(self) -> None:
        """Lose all settings."""
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
