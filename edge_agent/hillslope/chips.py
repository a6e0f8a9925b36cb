"""The chips of the board as they answer on their pins.

They model the part, not the calls of a driver: an accelerometer that was never
switched on measures nothing, a dead chip leaves the line low.
"""

import math
import random

from gpiozero.pins.mock import MockSPIDevice

from edge_agent.hillslope.pins import SlopeFactory

CLOCK_PIN, MOSI_PIN, MISO_PIN = 11, 10, 9
SELECT_PINS = (8, 7)

_ADC_COMMAND_BITS = 5  # start, single-ended, three of the channel
_ADC_FULL_SCALE = 4095
_ADC_NOISE_LSB = 0.5

_LSB_PER_G = 256_000.0
_NOISE_G_PER_ROOT_HZ = 25e-6
_FASTEST_HZ = 4000.0
_SLOWEST_FILTER = 10
_TEMP_BIAS_LSB, _TEMP_BIAS_C, _TEMP_LSB_PER_C = 1885.0, 25.0, -9.05
_TEMP2, _XDATA3, _DATA_END = 0x06, 0x08, 0x11
_FILTER, _RANGE, _POWER_CTL, _RESET = 0x28, 0x2C, 0x2D, 0x2F
_RESET_CODE = 0x52


class _Chip(MockSPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """What both chips share: their place on SPI0, and death."""

    def __init__(
        self, device: int, rng: random.Random, pin_factory: SlopeFactory
    ) -> None:
        self.is_dead = False
        self._rng = rng
        super().__init__(
            CLOCK_PIN, MOSI_PIN, MISO_PIN, SELECT_PINS[device], pin_factory=pin_factory
        )
        if self.select_pin.function == "input":
            self.select_pin.pull = "up"  # as the Pi's own: nobody is selected

    def on_bit(self) -> None:
        """Listen to a bit, unless dead: then nothing is ever sent."""
        if not self.is_dead:
            self._listen()

    def _listen(self) -> None:
        raise NotImplementedError


class Mcp3208(_Chip):
    """Eight voltages, 12 bits.

    Attributes:
        volts: Voltage on each channel.

    Source:
        MCP3204/3208 data sheet (Microchip DS21298), section 5.
    """

    def __init__(
        self,
        device: int,
        rng: random.Random,
        pin_factory: SlopeFactory,
        vref_v: float = 3.3,
    ) -> None:
        self.volts = [0.0] * 8
        self._vref_v = vref_v
        super().__init__(device, rng, pin_factory)

    def _listen(self) -> None:
        if 1 not in self.rx_buf:
            return
        command = self.rx_buf[self.rx_buf.index(1) :]
        if len(command) != _ADC_COMMAND_BITS:
            return
        channel = command[2] << 2 | command[3] << 1 | command[4]
        exact = self.volts[channel] / self._vref_v * _ADC_FULL_SCALE
        noisy = round(exact + self._rng.gauss(0, _ADC_NOISE_LSB))
        # one clock to sample, a null bit, then the number
        self.tx_word(min(max(noisy, 0), _ADC_FULL_SCALE), 14)


class Adxl355(_Chip):
    """Three accelerations, 20 bits, with the noise of the chosen filter.

    Attributes:
        accel_g: Accelerations along x, y and z.
        temp_c: Temperature of the die.

    Source:
        ADXL354/ADXL355 data sheet (Analog Devices), register map and table 1.
    """

    def __init__(
        self, device: int, rng: random.Random, pin_factory: SlopeFactory
    ) -> None:
        self.accel_g = (0.0, 0.0, 1.0)
        self.temp_c = 25.0
        self._registers = bytearray(0x30)
        self.power_on()
        super().__init__(device, rng, pin_factory)

    def power_on(self) -> None:
        """Lose all settings, as after a brown-out: the chip stands by."""
        self._registers[:] = bytes(0x30)
        self._registers[0x00:0x04] = b"\xad\x1d\xed\x01"
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
