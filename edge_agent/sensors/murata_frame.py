"""The 32-bit frames in which Murata's SCL3300 and SCA3300 are spoken to.

A frame is 6 bits of command (write, and five of the register), 2 of return status,
16 of data and 8 of CRC. The answer to a frame comes with the next one.

Source: SCL3300-D01 and SCA3300-D01 data sheets (Murata), sections "SPI frame
format", "Operations" and "CRC"; the CRC is checked by all their command words.
Status bits: SCL3300-D01, table "STATUS register".
"""

from dataclasses import dataclass
from enum import IntEnum

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


class Status(IntEnum):
    """Return status of an answer."""

    STARTING = 0
    NORMAL = 1
    RESERVED = 2
    ERROR = 3


class FrameError(ValueError):
    """A frame cannot be an answer of the chip."""


@dataclass(frozen=True)
class Answer:
    """What the chip said.

    Attributes:
        command: The six bits of the frame that it answers.
        status: How the chip is.
        data: 16 bits.
    """

    command: int
    status: Status
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


def decode(frame: bytes) -> Answer:
    """What an answer says.

    Raises:
        FrameError: Its checksum is wrong; all bits alike is nobody.
    """
    if frame in {b"\x00" * FRAME_BYTES, b"\xff" * FRAME_BYTES}:
        raise FrameError(f"answers only {frame[0]:02X}")
    found, expected = frame[3], crc8(frame[:3])
    if found != expected:
        raise FrameError(
            f"sends a wrong checksum: {found:02X} and not {expected:02X} "
            f"in {frame.hex().upper()}"
        )
    return Answer(frame[0] >> 2, Status(frame[0] & 3), int.from_bytes(frame[1:3]))


def status_words(data: int) -> str:
    """Names of the bits that are set in the status register."""
    words = [word for bit, word in _STATUS_WORDS.items() if data >> bit & 1]
    return ", ".join(words) or "no flag"
