"""Tilt from the Murata inclinometers SCL3300 and SCA3300 on SPI.

The chips check themselves and protect every answer with a CRC. A frame has 32 bits:
6 of command (write bit and five of the register), 2 of return status, 16 of data
and 8 of CRC. The answer to a frame is sent during the next one.

Source: SCL3300-D01 and SCA3300-D01 data sheets (Murata), sections "SPI frame
format", "Operations" and "CRC", start-up sequence and performance tables; the CRC is
checked against all their command words. Status bits: SCL3300-D01, table "STATUS
register". Sensitivities and the reset agree with Linux's `sca3300.c`. Modes 3 and 4 of
the SCL3300 are for about 10 degrees of inclination (section 2.11.1, as cited by NuttX's
`scl3300_uorb.c`; David Armstrong's Arduino library requires mode 1 or 2 beyond it). How
the chip behaves there, its noise in mode 1 and the step between two modes were not
measured on hardware.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from gpiozero import SPIDevice

from edge_agent.sensors.base import Hardware, Health, SensorBusError, health_of_identity
from edge_agent.sensors.tilt import Axes, TiltSensor, TiltSettings, make_chip_error
from service_runtime.settings import KeyRule, key

FRAME_BYTES = 4
_POLYNOMIAL = 0x1D
_STATUS_WORDS = {
    9: "digital block 1",
    8: "digital block 2",
    7: "clock",
    6: "saturated",
    5: "temperature out of range",
    4: "power",
    3: "memory",
    2: "powered down",
    1: "mode changed",
    0: "pin continuity",
}


class ReturnStatus(IntEnum):
    """Return status of an answer."""

    STARTING = 0
    NORMAL = 1
    RESERVED = 2
    ERROR = 3


class FrameError(ValueError):
    """A frame is not a valid answer of the chip."""


@dataclass(frozen=True)
class MurataAnswer:
    """Decoded answer of the chip.

    Attributes:
        command: The six bits of the frame that it answers.
        status: Return status.
        data: 16 bits.
    """

    command: int
    status: ReturnStatus
    data: int

    @property
    def signed(self) -> int:
        """The data as two's complement."""
        return self.data - 0x10000 if self.data & 0x8000 else self.data


def crc8(three: bytes) -> int:
    """Checksum of the first 24 bits: x^8 + x^4 + x^3 + x^2 + 1 from FF, inverted."""
    crc = 0xFF
    for byte in three:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ _POLYNOMIAL if crc & 0x80 else crc << 1) & 0xFF
    return crc ^ 0xFF


def encode(register: int, value: int | None = None) -> bytes:
    """The frame that reads a register, or writes a value to it."""
    is_write = value is not None
    head = bytes([is_write << 7 | register << 2]) + (value or 0).to_bytes(2)
    return head + bytes([crc8(head)])


def decode(frame: bytes) -> MurataAnswer:
    """Decode an answer.

    Raises:
        FrameError: Its checksum is wrong, or all bits are equal (no chip).
    """
    if frame in {b"\x00" * FRAME_BYTES, b"\xff" * FRAME_BYTES}:
        raise FrameError(f"answers only {frame[0]:02X}")
    found, expected = frame[3], crc8(frame[:3])
    if found != expected:
        raise FrameError(
            f"sends a wrong checksum: {found:02X} and not {expected:02X} "
            f"in {frame.hex().upper()}"
        )
    return MurataAnswer(
        frame[0] >> 2, ReturnStatus(frame[0] & 3), int.from_bytes(frame[1:3])
    )


def format_status_flags(data: int) -> str:
    """Names of the bits that are set in the status register."""
    words = [word for bit, word in _STATUS_WORDS.items() if data >> bit & 1]
    return ", ".join(words) or "no flag"


RESET_S, SETTLE_S = 0.002, 0.1
"""After a reset 1 ms; until mode 4 has settled 100 ms."""

_ACC_X, _ACC_Y, _ACC_Z, _TEMP, _STATUS = 0x01, 0x02, 0x03, 0x05, 0x06
_MODE, _WHOAMI = 0x0D, 0x10
_RESET, _MODE_1, _MODE_4 = 0x20, 0x00, 0x03
_SATURATED = 1 << 6
_WIDE_FROM_G, _FINE_TO_G = (math.sin(math.radians(deg)) for deg in (9.0, 7.0))
_LSB_PER_C, _ZERO_C = 18.9, -273.0


@dataclass(frozen=True)
class MurataSettings(TiltSettings):
    """Keys of both chips.

    Attributes:
        chip: Name of the chip.
        identity: Value of its WHOAMI register.
        lsb_per_g: In mode 4: 10 Hz, the least noise.
        wide_lsb_per_g: In mode 1, where mode 4 is for 10 degrees only; else None.
    """

    chip: ClassVar[str] = ""
    identity: ClassVar[int] = 0
    lsb_per_g: ClassVar[float] = 1.0
    wide_lsb_per_g: ClassVar[float | None] = None
    warm_up_s: ClassVar[float] = 0.5
    sample_gap_s: ClassVar[float] = 0.1

    samples: int = key(
        KeyRule(
            "Samples in one reading, 0.1 s apart; the mean of the middle half counts.",
            low=1, high=128,
        ),
        16,
    )  # fmt: skip


@dataclass(frozen=True)
class Scl3300Settings(MurataSettings):
    """Keys of kind ``scl3300``."""

    chip: ClassVar[str] = "SCL3300"
    identity: ClassVar[int] = 0xC1
    lsb_per_g: ClassVar[float] = 12_000.0
    wide_lsb_per_g: ClassVar[float | None] = 6_000.0
    sample_noise_g: ClassVar[float] = 69e-6  # 0.001 deg per root hertz, over 15.7 Hz


@dataclass(frozen=True)
class Sca3300Settings(MurataSettings):
    """Keys of kind ``sca3300``."""

    chip: ClassVar[str] = "SCA3300"
    identity: ClassVar[int] = 0x51
    lsb_per_g: ClassVar[float] = 5_400.0
    sample_noise_g: ClassVar[float] = 150e-6  # 37 micro-g per root hertz, 15.7 Hz


def decode_temp_c(data: int) -> float:
    """Temperature of the die from its register."""
    return _ZERO_C + data / _LSB_PER_C


class Murata(SPIDevice):  # type: ignore[misc]  # gpiozero ships no types
    """SCL3300 or SCA3300 as a `TiltChip`."""

    def __init__(self, settings: MurataSettings, hardware: Hardware) -> None:
        self._settings = settings
        self._sleep = hardware.sleep
        self._temp_c = 0.0
        self._is_wide = False
        super().__init__(
            port=0, device=settings.device, pin_factory=hardware.pin_factory
        )

    def set_up(self) -> None:
        """Reset it, choose a mode, and read the status until it is clear."""
        try:
            self._start()
        except SensorBusError as error:
            if not self._widen(error):
                raise
            self._start()

    def sample(self) -> Axes:
        """Accelerations along x, y and z in g, in the range that fits the tilt."""
        try:
            axes = self._axes()
        except SensorBusError as error:
            if not self._widen(error):
                raise
            self._start()
            return self._axes()
        tilt_g = max(map(abs, axes[:2]))
        if tilt_g > _WIDE_FROM_G and self._widen():
            self._start()
            return self._axes()
        if self._is_wide and tilt_g < _FINE_TO_G:
            self._is_wide = False
            self.set_up()
        return axes

    def _widen(self, error: SensorBusError | None = None) -> bool:
        """Choose the wide range; False where there is none, or no need of it."""
        if error is not None and error.health is not Health.SATURATED:
            return False
        was_wide = self._is_wide
        self._is_wide = self._settings.wide_lsb_per_g is not None
        return self._is_wide and not was_wide

    def _start(self) -> None:
        s = self._settings
        self._exchange(encode(_MODE, _RESET))
        self._sleep(RESET_S)
        self._exchange(encode(_MODE, _MODE_1 if self._is_wide else _MODE_4))
        self._sleep(SETTLE_S)
        for _ in range(2):  # the first reading clears the flags of the start
            self._exchange(encode(_STATUS))
        self._query([_STATUS])
        (identity,) = self._query([_WHOAMI])
        if identity.data & 0xFF != s.identity:
            raise make_chip_error(
                s.name,
                f"must answer as an {s.chip} ({s.identity:02X}), "
                f"got {identity.data & 0xFF:02X}",
                health_of_identity(identity.data & 0xFF),
            )

    def _axes(self) -> Axes:
        x, y, z, temp = self._query([_ACC_X, _ACC_Y, _ACC_Z, _TEMP])
        self._temp_c = decode_temp_c(temp.data)
        s = self._settings
        lsb_per_g = (self._is_wide and s.wide_lsb_per_g) or s.lsb_per_g
        return x.signed / lsb_per_g, y.signed / lsb_per_g, z.signed / lsb_per_g

    def temp_c(self) -> float:
        return self._temp_c

    def _query(self, registers: Sequence[int]) -> list[MurataAnswer]:
        """Answers for registers; each comes with the next request."""
        self._exchange(encode(registers[0]))
        following = [*registers[1:], _STATUS]
        answers = [self._answer(encode(register)) for register in following]
        for register, answer in zip(registers, answers, strict=True):
            if answer.command != register:
                raise make_chip_error(
                    self._settings.name,
                    f"answers for register {answer.command} and not {register}",
                )
            if answer.status is not ReturnStatus.NORMAL:
                raise self._read_error(answer.status)
        return answers

    def _read_error(self, status: ReturnStatus) -> SensorBusError:
        """Read the status register, which clears it, and make its error."""
        name = self._settings.name
        if status is ReturnStatus.STARTING:
            return make_chip_error(name, "is still starting")
        flags = self._answer(encode(_STATUS)).data
        reason = f"reports an error: {format_status_flags(flags)}"
        if not flags & _SATURATED:
            return make_chip_error(name, reason)
        remedy = "look for a pile that is shaken, or replace the chip"
        return SensorBusError(name, reason, remedy, Health.SATURATED)

    def _answer(self, request: bytes) -> MurataAnswer:
        try:
            return decode(self._exchange(request))
        except FrameError as error:
            raise make_chip_error(self._settings.name, str(error)) from error

    def _exchange(self, request: bytes) -> bytes:
        return bytes(self._spi.transfer(list(request)))


def open_murata(settings: MurataSettings, hardware: Hardware) -> TiltSensor:
    """Open either sensor."""
    return TiltSensor(settings, Murata(settings, hardware), hardware.sleep)
