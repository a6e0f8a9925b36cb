"""The inclinometers SCL3300 and SCA3300 as they answer on their pins.

Source: SCL3300-D01 and SCA3300-D01 data sheets (Murata): off-frame protocol,
return status, STATUS register, sensitivities of the four modes.
"""

import random

from edge_agent.hillslope.chips.base import SpiChip
from edge_agent.hillslope.pins import SlopeFactory
from edge_agent.sensors.murata import MurataSettings
from edge_agent.sensors.murata_frame import crc8

_FRAME_BITS = 32
_TEMP, _STATUS, _MODE, _WHOAMI = 0x05, 0x06, 0x0D, 0x10
_RESET, _MODE_4 = 0x20, 0x03
_SATURATED, _POWER, _MODE_CHANGED = 1 << 6, 1 << 4, 1 << 1
_NORMAL, _ERROR = 1, 3
_OTHER = 0x77
_COARSER = {0: 2, 1: 4, 2: 1, 3: 1}  # than mode 4, of both chips


class MurataChip(SpiChip):
    """Sixteen bits of three accelerations, in frames with a checksum.

    Attributes:
        accel_g: Accelerations along x, y and z.
        temp_c: Temperature of the die.
        is_stuck: Whether the accelerations never change again.
        is_impostor: Whether it is another chip.
        is_garbled: Whether a bit of each answer is wrong.
        is_saturated: Whether it is shaken beyond its range.
    """

    def __init__(
        self,
        settings: MurataSettings,
        rng: random.Random,
        pin_factory: SlopeFactory,
    ) -> None:
        self.accel_g = (0.0, 0.0, 1.0)
        self.temp_c = 20.0
        self.is_stuck = self.is_impostor = False
        self.is_garbled = self.is_saturated = False
        self._settings = settings
        self._held: dict[int, int] = {}
        self.power_on()
        super().__init__(settings.device, rng, pin_factory)

    def power_on(self) -> None:
        """Start in mode 1, with the flags of a start."""
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
        if self.is_saturated:
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
        if register == _MODE and value == _RESET:
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

    def _axis(self, register: int) -> int:
        if self.is_stuck and register in self._held:
            return self._held[register]
        noise_g = self._rng.gauss(0, self._settings.sample_noise_g)
        lsb_per_g = self._settings.lsb_per_g / _COARSER[self._mode]
        lsb = round((self.accel_g[register - 1] + noise_g) * lsb_per_g)
        self._held[register] = min(max(lsb, -0x8000), 0x7FFF) & 0xFFFF
        return self._held[register]
