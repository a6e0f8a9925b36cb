"""Simulated SPI chips: MCP3x08, ADXL345, ADXL355, SCL3300 and SCA3300, bit by bit.

Source: MCP3004/3008 data sheet (Microchip DS21295) and MCP3204/3208 data sheet
(DS21298), section 5: one clock to sample and a null bit, then the number; ADXL345
data sheet (Analog Devices), register map, "SPI" and table 1; ADXL354/ADXL355 data
sheet (Analog Devices), register map and table 1; SCL3300-D01 and SCA3300-D01 data
sheets (Murata): off-frame protocol, return status, STATUS register, sensitivities of
the four modes.
"""

import math
import random

from gpiozero.pins.mock import MockSPIDevice

from edge_agent.sensors.murata import MurataSettings, crc8
from edge_agent.simulator.buses import SlopePinFactory

CLOCK_PIN, MOSI_PIN, MISO_PIN = 11, 10, 9
SELECT_PINS = (8, 7)


class SpiChip(MockSPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """A chip behind one select pin.

    It models the part, not the driver's calls: an accelerometer that was not
    switched on measures nothing, and a dead chip leaves the line low.

    Attributes:
        is_dead: Whether it is without power.
    """

    def __init__(
        self,
        device: int,
        rng: random.Random,
        pin_factory: SlopePinFactory,
        clock_mode: int = 0,
    ) -> None:
        self.is_dead = False
        self._rng = rng
        self._factory = pin_factory
        super().__init__(
            CLOCK_PIN,
            MOSI_PIN,
            MISO_PIN,
            SELECT_PINS[device],
            clock_polarity=bool(clock_mode & 2),
            clock_phase=bool(clock_mode & 1),
            pin_factory=pin_factory,
        )
        if self.select_pin.function == "input":
            self.select_pin.pull = "up"  # as on the Pi: no chip is selected

    def fail_bus(self, *, is_failing: bool) -> None:
        """Make every transfer to this select an I/O error, or stop doing so."""
        selects = self._factory.failing_selects
        if is_failing:
            selects.add(self.select_pin.info.name)
        else:
            selects.discard(self.select_pin.info.name)

    def power_on(self) -> None:
        """Come up as after power-on."""

    def on_bit(self) -> None:
        """Process a received bit; a dead chip sends nothing."""
        if not self.is_dead:
            self._listen()

    def _listen(self) -> None:
        """Process the bits received so far."""


class AccelerometerChip(SpiChip):
    """Base of the accelerometers.

    Attributes:
        accel_g: Accelerations along x, y and z.
        temp_c: Temperature of the die.
        is_stuck: Whether the data registers never change again.
        is_impostor: Whether another chip is soldered in.
    """

    accel_g = (0.0, 0.0, 1.0)
    temp_c = 25.0
    is_stuck = False
    is_impostor = False


_COMMAND_BITS = 5  # start, single-ended, three of the channel
_MCP3X08_NOISE_LSB = 0.5


class Mcp3x08Chip(SpiChip):
    """Eight voltages, 10 or 12 bits.

    Attributes:
        volts: Voltage on each channel.
        noise_v: Noise of each channel, added to the converter's own.
    """

    def __init__(
        self,
        device: int,
        rng: random.Random,
        pin_factory: SlopePinFactory,
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
        noisy = round(exact + self._rng.gauss(0, _MCP3X08_NOISE_LSB))
        self.tx_word(min(max(noisy, 0), full_scale), self._bits + 2)


_BYTE = 8
_DEVID, _ADXL345_POWER_CTL, _DATA_FORMAT, _DATAX0 = 0x00, 0x2D, 0x31, 0x32
_ADXL345, _ADXL343_LIKE = 0xE5, 0xE6
_READ, _MULTIPLE, _ADDRESS = 0x80, 0x40, 0x3F
_MEASURE, _FULL_RESOLUTION = 0x08, 0x08
_ADXL345_LSB_PER_G, _ADXL345_NOISE_LSB = 256.0, 0.75
_MAX_LSB = 511  # +-2 g
_DRIFT_G_PER_C = 0.4e-3
_CALIBRATED_C = 25.0


class Adxl345Chip(AccelerometerChip):
    """Steps of 4 milli-g, with noise; temperature shifts the zero of x and y."""

    def __init__(
        self, device: int, rng: random.Random, pin_factory: SlopePinFactory
    ) -> None:
        self._registers = bytearray(0x40)
        super().__init__(device, rng, pin_factory, clock_mode=3)

    def power_on(self) -> None:
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
        if not self._registers[_ADXL345_POWER_CTL] & _MEASURE:
            self._registers[data] = bytes(6)
        elif not (self.is_stuck and any(self._registers[data])):
            x, y, z = self.accel_g
            drift_g = _DRIFT_G_PER_C * (self.temp_c - _CALIBRATED_C)
            axes = (x + drift_g, y + drift_g, z)
            self._registers[data] = b"".join(map(self._axis, axes))

    def _axis(self, accel_g: float) -> bytes:
        lsb = round(
            accel_g * _ADXL345_LSB_PER_G + self._rng.gauss(0, _ADXL345_NOISE_LSB)
        )
        lsb = min(max(lsb, -_MAX_LSB - 1), _MAX_LSB)
        return lsb.to_bytes(2, "little", signed=True)


_ADXL355_LSB_PER_G = 256_000.0
_NOISE_G_PER_ROOT_HZ = 25e-6
_FASTEST_HZ = 4000.0
_SLOWEST_FILTER = 10
_TEMP_BIAS_LSB, _TEMP_BIAS_C, _TEMP_LSB_PER_C = 1885.0, 25.0, -9.05
_TEMP2, _XDATA3, _DATA_END = 0x06, 0x08, 0x11
_FILTER, _RANGE, _ADXL355_POWER_CTL, _ADXL355_RESET = 0x28, 0x2C, 0x2D, 0x2F
_RESET_CODE = 0x52
_ADXL355, _OTHER_PART = 0xED, 0xCB


class Adxl355Chip(AccelerometerChip):
    """20 bits, with the noise of the chosen filter."""

    def __init__(
        self, device: int, rng: random.Random, pin_factory: SlopePinFactory
    ) -> None:
        self._registers = bytearray(0x30)
        self.power_on()
        super().__init__(device, rng, pin_factory)

    def power_on(self) -> None:
        self._registers[:] = bytes(0x30)
        part = _OTHER_PART if self.is_impostor else _ADXL355
        self._registers[0x00:0x04] = bytes([0xAD, 0x1D, part, 0x01])
        self._registers[_RANGE] = 0x81
        self._registers[_ADXL355_POWER_CTL] = 0x01

    def _listen(self) -> None:
        if self.rx_bit % _BYTE:
            return
        word = self.rx_word()
        command = word >> (self.rx_bit - _BYTE)
        address = (command >> 1) + self.rx_bit // _BYTE - 1
        if command & 1:
            if self.rx_bit == _BYTE:  # the command has just been received
                self._measure()
            is_register = address < len(self._registers)
            self.tx_word(self._registers[address] if is_register else 0)
        elif self.rx_bit > _BYTE:
            self._write(address - 1, word & 0xFF)

    def _write(self, address: int, value: int) -> None:
        if address == _ADXL355_RESET and value == _RESET_CODE:
            self.power_on()
        elif _FILTER <= address < _ADXL355_RESET:
            self._registers[address] = value

    def _measure(self) -> None:
        if self._registers[_ADXL355_POWER_CTL] & 1:  # standing by
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
        lsb = round((accel_g + self._rng.gauss(0, sigma_g)) * _ADXL355_LSB_PER_G)
        lsb = min(max(lsb, -(2**19)), 2**19 - 1)
        return ((lsb & 0xFFFFF) << 4).to_bytes(3)


_FRAME_BITS = 32
_TEMP, _STATUS, _MODE, _WHOAMI = 0x05, 0x06, 0x0D, 0x10
_MURATA_RESET, _MODE_4 = 0x20, 0x03
_SATURATED, _POWER, _MODE_CHANGED = 1 << 6, 1 << 4, 1 << 1
_NORMAL, _ERROR = 1, 3
_OTHER = 0x77
_INCLINATION_MODES = {2, 3}  # modes 3 and 4, of the SCL3300 only
_INCLINATION_G = math.sin(math.radians(10.0))
_COARSER = {0: 2, 1: 4, 2: 1, 3: 1}  # than mode 4, of both chips


class MurataChip(AccelerometerChip):
    """SCL3300 or SCA3300: 16 bits, in frames with a checksum.

    Attributes:
        is_garbled: Whether a bit of each answer is wrong.
        is_saturated: Whether it is shaken beyond its range.
    """

    temp_c = 20.0

    def __init__(
        self,
        settings: MurataSettings,
        rng: random.Random,
        pin_factory: SlopePinFactory,
    ) -> None:
        self.is_garbled = self.is_saturated = False
        self._settings = settings
        self._held: dict[int, int] = {}
        self.power_on()
        super().__init__(settings.device, rng, pin_factory)

    def power_on(self) -> None:
        self._mode, self._flags, self._answer = 0, _POWER, 0

    def on_start(self) -> None:
        """Begin a frame: send the answer to the last one meanwhile."""
        super().on_start()
        if not self.is_dead:
            self.tx_word(self._answer ^ (1 << 12 if self.is_garbled else 0), 32)

    def _listen(self) -> None:
        if self.rx_bit != _FRAME_BITS:
            return
        frame = int(self.rx_word()).to_bytes(4)
        if crc8(frame[:3]) != frame[3]:
            return
        register, value = frame[0] >> 2 & 0x1F, int.from_bytes(frame[1:3])
        if self.is_saturated or self._is_beyond_range():
            self._flags |= _SATURATED
        status = _ERROR if self._flags else _NORMAL
        if frame[0] & 0x80:
            self._write(register, value)
            data = value
        else:
            data = self._read(register)
        head = bytes([frame[0] & 0xFC | status]) + data.to_bytes(2)
        self._answer = int.from_bytes(head + bytes([crc8(head)]))

    def _write(self, register: int, value: int) -> None:
        if register == _MODE and value == _MURATA_RESET:
            self.power_on()
        elif register == _MODE:
            self._mode = value & _MODE_4
            self._flags |= _MODE_CHANGED

    def _read(self, register: int) -> int:
        if register == _STATUS:
            flags, self._flags = self._flags, 0
            return flags
        if register == _WHOAMI:
            return _OTHER if self.is_impostor else self._settings.identity
        if register == _TEMP:
            return round((self.temp_c + 273) * 18.9)
        if register in {1, 2, 3}:
            return self._axis(register)
        return 0

    def _is_beyond_range(self) -> bool:
        """Whether x or y is beyond the 10 degrees of an inclination mode."""
        is_level = max(map(abs, self.accel_g[:2])) <= _INCLINATION_G
        is_inclination = self._settings.wide_lsb_per_g is not None
        return is_inclination and self._mode in _INCLINATION_MODES and not is_level

    def _axis(self, register: int) -> int:
        if self.is_stuck and register in self._held:
            return self._held[register]
        noise_g = self._rng.gauss(0, self._settings.sample_noise_g)
        lsb_per_g = self._settings.lsb_per_g / _COARSER[self._mode]
        lsb = round((self.accel_g[register - 1] + noise_g) * lsb_per_g)
        self._held[register] = min(max(lsb, -0x8000), 0x7FFF) & 0xFFFF
        return self._held[register]
