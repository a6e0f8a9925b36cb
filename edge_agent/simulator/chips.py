"""Simulated chips on I2C and SPI: converters, accelerometers and a BME280.

I2C: ADS1115, BME280 and LIS3DH, on a bus that can fail. SPI: MCP3x08, ADXL345, ADXL355,
SCL3300 and SCA3300, bit by bit.

Source: ADS111x data sheet (TI SBAS444D), "Config Register" and "Data Format";
BME280 data sheet (Bosch BST-BME280-DS002), 4.2.2 and 5.4, with the trimming
parameters of one real chip; LIS3DH data sheet (ST DocID17530 rev 2), section 8, with
noise and drift of table 4, quoted from memory.
MCP3004/3008 data sheet (Microchip DS21295) and MCP3204/3208 data sheet (DS21298),
section 5: one clock to sample and a null bit, then the number; ADXL345 data sheet
(Analog Devices), register map, "SPI" and table 1; ADXL354/ADXL355 data sheet (Analog
Devices), register map and table 1; SCL3300-D01 and SCA3300-D01 data sheets (Murata):
off-frame protocol, return status, STATUS register, sensitivities of the four modes.
"""

import math
import os
import random
from collections.abc import Callable

from gpiozero.pins.mock import MockSPIDevice

from edge_agent.sensors.bme280 import (
    compensate_humidity,
    compensate_pressure,
    compensate_temperature,
    decode_trim,
)
from edge_agent.sensors.murata import MurataSettings, crc8
from edge_agent.simulator.buses import RegisterChip, SlopePinFactory


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
_LIS3DH_NOISE_G_PER_ROOT_HZ = 220e-6
_G_PER_DIGIT = 0.001
_LIS3DH_DRIFT_G_PER_C = 0.5e-3
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
        shift_g = _LIS3DH_DRIFT_G_PER_C * (self.temp_c - _CALIBRATED_C)
        x, y, z = self.accel_g
        axes = (x + shift_g, y + shift_g, z)
        data = b"".join(self._axis(g, rate_hz) for g in axes)
        self.registers[_OUT : _OUT + 6] = data if rate_hz else bytes(6)

    def _axis(self, accel_g: float, rate_hz: float) -> bytes:
        bits = 12 if self.registers[_CTRL_REG4] & _HIGH_RESOLUTION else 10
        if self.registers[_CTRL_REG1] & _LOW_POWER:
            bits = 8
        sigma_g = _LIS3DH_NOISE_G_PER_ROOT_HZ * math.sqrt(rate_hz / 9)
        step = 1 << 12 - bits
        digits = (accel_g + self._rng.gauss(0, sigma_g)) / _G_PER_DIGIT
        rounded = min(max(round(digits / step) * step, -2048), 2047)
        return (rounded << 4).to_bytes(2, "little", signed=True)


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
_MEASURE = 0x08
_ADXL345_LSB_PER_G, _ADXL345_NOISE_LSB = 256.0, 0.75
_MAX_LSB = 511  # +-2 g
_ADXL345_DRIFT_G_PER_C = 0.4e-3


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
            drift_g = _ADXL345_DRIFT_G_PER_C * (self.temp_c - _CALIBRATED_C)
            axes = (x + drift_g, y + drift_g, z)
            self._registers[data] = b"".join(map(self._axis, axes))

    def _axis(self, accel_g: float) -> bytes:
        lsb = round(
            accel_g * _ADXL345_LSB_PER_G + self._rng.gauss(0, _ADXL345_NOISE_LSB)
        )
        lsb = min(max(lsb, -_MAX_LSB - 1), _MAX_LSB)
        return lsb.to_bytes(2, "little", signed=True)


_ADXL355_LSB_PER_G = 256_000.0
_ADXL355_NOISE_G_PER_ROOT_HZ = 25e-6
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
        sigma_g = _ADXL355_NOISE_G_PER_ROOT_HZ * math.sqrt(bandwidth_hz)
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
