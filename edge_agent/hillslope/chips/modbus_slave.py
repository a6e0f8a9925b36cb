"""A probe as it answers on RS-485.

Source: MODBUS application protocol V1.1b3, 6.3, 6.4 and 7.
"""

import math
import struct

from edge_agent.sensors.modbus_rtu import ORDERS, TYPES, crc_of

_ILLEGAL_FUNCTION, _ILLEGAL_ADDRESS = 1, 2
_REQUEST_BYTES = 8
_LIMITS = {
    "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1),
}  # fmt: skip


class ModbusSlave:
    """A device with 16-bit registers, holding ones and inputs alike.

    Attributes:
        registers: Value of each register that exists.
        mute: How many of the next requests it does not hear.
        noisy: How many of its next answers lose a bit on the way.
        functions: Functions that it knows.
    """

    def __init__(self, address: int) -> None:
        self.registers: dict[int, int] = {}
        self.mute = 0
        self.noisy = 0
        self.functions = frozenset({3, 4})
        self._address = address

    def hold(self, register: int, number: float, kind: str, order: str) -> None:
        """Put a number into one or two registers; at most what they can hold."""
        low, high = _LIMITS.get(kind, (-math.inf, math.inf))
        held = min(max(number, low), high)
        data = struct.pack(TYPES[kind], held if kind == "float32" else round(held))
        if len(data) == 2:  # noqa: PLR2004 - one register
            swapped = order in {"BADC", "DCBA"}
            words = {register: data[::-1] if swapped else data}
        else:
            wire = bytes(data[at] for at in ORDERS[order])
            words = {register: wire[:2], register + 1: wire[2:]}
        self.registers |= {at: int.from_bytes(word) for at, word in words.items()}

    def answer(self, request: bytes) -> bytes:
        """What it sends; nothing to a request that is not for it."""
        if len(request) != _REQUEST_BYTES or request[0] != self._address:
            return b""
        if self.mute:
            self.mute -= 1
            return b""
        if crc_of(request[:-2]) != request[-2:]:
            return b""
        body = self._body(request)
        frame = body + crc_of(body)
        if self.noisy:
            self.noisy -= 1
            frame = frame[:3] + bytes([frame[3] ^ 0x10]) + frame[4:]
        return frame

    def _body(self, request: bytes) -> bytes:
        address, function, first, count = struct.unpack(">BBHH", request[:-2])
        if function not in self.functions:
            return bytes([address, function | 0x80, _ILLEGAL_FUNCTION])
        wanted = range(first, first + count)
        if not wanted or any(at not in self.registers for at in wanted):
            return bytes([address, function | 0x80, _ILLEGAL_ADDRESS])
        words = b"".join(self.registers[at].to_bytes(2) for at in wanted)
        return bytes([address, function, len(words)]) + words
