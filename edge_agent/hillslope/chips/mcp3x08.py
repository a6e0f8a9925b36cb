"""The converters MCP3008 and MCP3208 as they answer on their pins."""

import random

from edge_agent.hillslope.chips.base import SpiChip
from edge_agent.hillslope.pins import SlopeFactory

_COMMAND_BITS = 5  # start, single-ended, three of the channel
_NOISE_LSB = 0.5


class Mcp3x08(SpiChip):
    """Eight voltages, 10 or 12 bits.

    Attributes:
        volts: Voltage on each channel.
        noise_v: Noise of each channel beside the converter's own.

    Source:
        MCP3004/3008 data sheet (Microchip DS21295) and MCP3204/3208 data sheet
        (DS21298), section 5: one clock to sample and a null bit, then the number.
    """

    def __init__(
        self,
        device: int,
        rng: random.Random,
        pin_factory: SlopeFactory,
        bits: int = 12,
        vref_v: float = 3.3,
    ) -> None:
        self.volts = [0.0] * 8
        self.noise_v = [0.0] * 8
        self._bits = bits
        self._vref_v = vref_v
        super().__init__(device, rng, pin_factory)

    def _listen(self) -> None:
        if 1 not in self.rx_buf:
            return
        command = self.rx_buf[self.rx_buf.index(1) :]
        if len(command) != _COMMAND_BITS:
            return
        channel = command[2] << 2 | command[3] << 1 | command[4]
        full_scale = 2**self._bits - 1
        volts = self.volts[channel] + self._rng.gauss(0, self.noise_v[channel])
        exact = volts / self._vref_v * full_scale
        noisy = round(exact + self._rng.gauss(0, _NOISE_LSB))
        self.tx_word(min(max(noisy, 0), full_scale), self._bits + 2)
