"""Simulated serial devices: a Modbus slave and an SDI-12 probe.

Source: MODBUS application protocol V1.1b3, 6.3, 6.4 and 7; SDI-12 specification 1.4
(2019), 4.4.
"""

import math
import re
import struct

from edge_agent.sensors.modbus import BYTE_ORDERS, NUMBER_TYPES, modbus_crc
from edge_agent.sensors.sdi12 import sdi12_crc

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
        ignored_requests: Number of next requests without an answer.
        corrupt_answers: Number of next answers with a wrong bit.
        functions: Supported functions.
    """

    def __init__(self, address: int) -> None:
        self.registers: dict[int, int] = {}
        self.ignored_requests = 0
        self.corrupt_answers = 0
        self.functions = frozenset({3, 4})
        self._address = address

    def set_number(self, register: int, number: float, kind: str, order: str) -> None:
        """Store a number in one or two registers, clamped to their type."""
        low, high = _LIMITS.get(kind, (-math.inf, math.inf))
        held = min(max(number, low), high)
        data = struct.pack(
            NUMBER_TYPES[kind], held if kind == "float32" else round(held)
        )
        if len(data) == 2:  # noqa: PLR2004 - one register
            swapped = order in {"BADC", "DCBA"}
            words = {register: data[::-1] if swapped else data}
        else:
            wire = bytes(data[at] for at in BYTE_ORDERS[order])
            words = {register: wire[:2], register + 1: wire[2:]}
        self.registers |= {at: int.from_bytes(word) for at, word in words.items()}

    def answer(self, request: bytes) -> bytes:
        """The answer; empty to a request for another device."""
        if len(request) != _REQUEST_BYTES or request[0] != self._address:
            return b""
        if self.ignored_requests:
            self.ignored_requests -= 1
            return b""
        if modbus_crc(request[:-2]) != request[-2:]:
            return b""
        body = self._body(request)
        frame = body + modbus_crc(body)
        if self.corrupt_answers:
            self.corrupt_answers -= 1
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


_MEASURE = re.compile(r"(?P<address>.)M(?P<crc>C?)(?P<which>[1-9]?)!")
_DATA = re.compile(r"(?P<address>.)D(?P<page>\d)!")
_LONGEST = 35  # characters of values in one answer to aD0!
_END = "\r\n"


class Sdi12Sensor:
    """A probe with some values for each measuring command.

    Attributes:
        values: Values by number of the command, 0 for ``aM!``.
        wait_s: Seconds that it announces.
        ignored_requests: Number of next commands without an answer.
        corrupt_answers: Number of next answers with a wrong bit.
        knows_crc: Whether it understands ``aMC!``; probes before 1.3 do not.
    """

    def __init__(self, address: str) -> None:
        self.values: dict[int, tuple[float, ...]] = {}
        self.wait_s = 0
        self.ignored_requests = 0
        self.corrupt_answers = 0
        self.knows_crc = True
        self._address = address
        self._pages: list[str] = []
        self._with_crc = False
        self._is_measuring = False

    def answer(self, request: bytes) -> bytes:
        """The answer; to an empty request, the service request."""
        text = request.decode("ascii", "replace")
        if text[:1] not in {"", self._address}:
            self._pages, self._is_measuring = (
                [],
                False,
            )  # a command to another device aborts it
            return b""
        if not text:
            body = self._address if self._is_measuring else None
            self._is_measuring = False
        else:
            body = self._answer_to(text)
        if body is None or self._ignores_request():
            return b""
        return self._encode(body + _END)

    def _ignores_request(self) -> bool:
        self.ignored_requests, was = (
            max(self.ignored_requests - 1, 0),
            self.ignored_requests,
        )
        return was > 0

    def _encode(self, line: str) -> bytes:
        data = line.encode("ascii")
        if self.corrupt_answers:
            self.corrupt_answers -= 1
            data = data[:1] + bytes([data[1] ^ 0x40]) + data[2:]
        return data

    def _answer_to(self, text: str) -> str | None:
        if text == f"{self._address}!":
            return self._address
        if found := _MEASURE.fullmatch(text):
            return self._measured(found)
        if found := _DATA.fullmatch(text):
            return self._data(int(found["page"]))
        return None

    def _measured(self, found: re.Match[str]) -> str | None:
        if found["crc"] and not self.knows_crc:
            return None
        values = self.values.get(int(found["which"] or 0), ())
        self._with_crc = bool(found["crc"])
        self._pages = [""]
        for value in values:
            text = f"{value:+.6g}"
            if "e" in text:
                text = f"{value:+.7f}"[:9]
            if len(self._pages[-1] + text) > _LONGEST:
                self._pages.append("")
            self._pages[-1] += text
        self._is_measuring = self.wait_s > 0
        return f"{self._address}{self.wait_s:03}{len(values)}"

    def _data(self, page: int) -> str:
        """No values while measuring, or beyond the last page."""
        is_there = page < len(self._pages) and not self._is_measuring
        body = self._address + (self._pages[page] if is_there else "")
        return body + (sdi12_crc(body) if self._with_crc else "")
