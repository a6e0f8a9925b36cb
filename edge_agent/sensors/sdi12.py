"""SDI-12: the words between a recorder and a probe.

Source: SDI-12 specification 1.4 (2019), 4.4 commands and responses, and its CRC.
"""

import re
from dataclasses import dataclass

_ACKNOWLEDGED = re.compile(r"(?P<seconds>\d{3})(?P<count>\d)")
_VALUE = re.compile(r"[+-](?:\d+\.?\d*|\.\d+)")
_VALUES = re.compile(rf"(?:{_VALUE.pattern})*")
_END = b"\r\n"
_CRC_CHARACTERS = 3


class DamagedError(ValueError):
    """An answer is cut short, from someone else, or has a wrong CRC."""


@dataclass(frozen=True)
class Announced:
    """What a probe says when it begins to measure.

    Attributes:
        wait_s: Longest time until its values are ready.
        count: How many there will be.
    """

    wait_s: float
    count: int


def measure_command(address: str, number: int, *, with_crc: bool) -> bytes:
    """``aM!``, ``aMC!``, ``aM1!`` .. ``aMC9!``."""
    which = str(number) if number else ""
    return f"{address}M{'C' if with_crc else ''}{which}!".encode("ascii")


def data_command(address: str, page: int) -> bytes:
    """``aD0!`` .. ``aD9!``."""
    return f"{address}D{page}!".encode("ascii")


def is_whole(answer: bytes) -> bool:
    """Whether a line has come in full."""
    return answer.endswith(_END)


def crc_of(text: str) -> str:
    """The three characters that end an answer to ``aMC!``."""
    crc = 0
    for byte in text.encode("ascii"):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return "".join(chr(0x40 | six) for six in (crc >> 12, crc >> 6 & 0x3F, crc & 0x3F))


def body_of(answer: bytes, command: bytes) -> str:
    """What follows the probe's address in its answer.

    Adapters that echo are understood.

    Raises:
        DamagedError: It is no whole line of that probe.
    """
    line = answer.removeprefix(command)
    text = line.decode("latin-1")
    if not is_whole(line) or not text.isascii():
        raise DamagedError(f"answers no whole line: {answer!r}")
    if text[0] != chr(command[0]):
        raise DamagedError(f"answers for another: {answer!r}")
    return text[1 : -len(_END)]


def announced(answer: bytes, command: bytes) -> Announced:
    """How long to wait, and for how many values, from ``atttn``.

    Raises:
        DamagedError: The answer has another form.
    """
    found = _ACKNOWLEDGED.fullmatch(body_of(answer, command))
    if found is None:
        raise DamagedError(f"must announce seconds and a count, got {answer!r}")
    return Announced(float(found["seconds"]), int(found["count"]))


def decode(answer: bytes, command: bytes, *, with_crc: bool) -> list[float]:
    """The values of one ``aD0!``, such as ``0+3.14-2``.

    Raises:
        DamagedError: The CRC is wrong, or something else than numbers came.
    """
    body = body_of(answer, command)
    if with_crc:
        body, crc = body[:-_CRC_CHARACTERS], body[-_CRC_CHARACTERS:]
        if crc != crc_of(chr(command[0]) + body):
            raise DamagedError(f"answers with a wrong CRC: {answer!r}")
    if not _VALUES.fullmatch(body):
        raise DamagedError(f"must answer signed numbers, got {answer!r}")
    return [float(value) for value in _VALUE.findall(body)]
