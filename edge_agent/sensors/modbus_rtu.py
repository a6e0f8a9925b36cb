"""Modbus RTU: the frames that read registers, and the numbers in registers.

Own framing instead of minimalmodbus or pymodbus: both open the port themselves
and own it, while here probes of several kinds share one line with one owner,
simulated or not. What is needed of the protocol is two functions.

Source: MODBUS application protocol V1.1b3, 6.3, 6.4 and 7; MODBUS over serial line
V1.02, 2.5.1 and 6.2.2 (CRC).
"""

import struct

READ_HOLDING, READ_INPUT = 3, 4
_EXCEPTION = 0x80
_SHORTEST, _EXCEPTION_BYTES = 5, 5

EXCEPTIONS = {
    1: "illegal function",
    2: "illegal data address",
    3: "illegal data value",
    4: "device failure",
    5: "acknowledge, still busy",
    6: "device busy",
    8: "memory parity error",
    10: "gateway path unavailable",
    11: "gateway target does not respond",
}

TYPES = {"int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "float32": ">f"}
ORDERS = {
    "ABCD": (0, 1, 2, 3), "CDAB": (2, 3, 0, 1),
    "BADC": (1, 0, 3, 2), "DCBA": (3, 2, 1, 0),
}  # fmt: skip
"""Where the bytes of the number A B C D, most significant first, stand."""


class DamagedError(ValueError):
    """An answer is cut short, from someone else, or has a wrong CRC."""


class RefusedError(ValueError):
    """The probe answers with an exception.

    Attributes:
        code: Its number.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        name = EXCEPTIONS.get(code, "unknown exception")
        super().__init__(f"refuses with exception {code}, {name}")


def crc_of(data: bytes) -> bytes:
    """The two CRC bytes that end a frame, low byte first."""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return crc.to_bytes(2, "little")


def request(address: int, function: int, register: int, count: int) -> bytes:
    """The frame that asks for registers."""
    body = struct.pack(">BBHH", address, function, register, count)
    return body + crc_of(body)


def is_whole(frame: bytes) -> bool:
    """Whether a frame has come in full, by what it says of its length."""
    if len(frame) < _SHORTEST:
        return False
    is_exception = bool(frame[1] & _EXCEPTION)
    return len(frame) >= (_EXCEPTION_BYTES if is_exception else frame[2] + 5)


def decode(frame: bytes, asked: bytes) -> bytes:
    """The register bytes of an answer.

    Args:
        frame: What came.
        asked: The request.

    Raises:
        DamagedError: It is no whole answer to that request.
        RefusedError: The probe refuses.
    """
    if not is_whole(frame):
        raise DamagedError(f"answers only {len(frame)} bytes: {frame.hex(' ')}")
    if crc_of(frame[:-2]) != frame[-2:]:
        raise DamagedError(f"answers with a wrong CRC: {frame.hex(' ')}")
    if frame[0] != asked[0] or frame[1] & ~_EXCEPTION != asked[1]:
        raise DamagedError(f"answers for another: {frame.hex(' ')}")
    if frame[1] & _EXCEPTION:
        raise RefusedError(frame[2])
    wanted = 2 * int.from_bytes(asked[4:6])
    if frame[2] != wanted:
        raise DamagedError(f"answers {frame[2]} bytes of registers, not {wanted}")
    return frame[3:-2]


def registers_of(kind: str) -> int:
    """How many registers a number of a type takes."""
    return struct.calcsize(TYPES[kind]) // 2


def number(data: bytes, kind: str, order: str = "ABCD") -> float:
    """The number in one or two registers.

    Args:
        data: Two or four bytes, as they came.
        kind: One of `TYPES`.
        order: One of `ORDERS`; one register heeds only whether A is before B.
    """
    places = [at for at in ORDERS[order] if at < len(data)]
    if len(data) == 2:  # noqa: PLR2004 - one register
        places = [0, 1] if order in {"ABCD", "CDAB"} else [1, 0]
    sorted_data = bytes(data[at] for at in places)
    return float(struct.unpack(TYPES[kind], sorted_data)[0])
