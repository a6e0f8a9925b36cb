"""Interfaces of the buses that drivers use: I2C, serial lines, files, gpsd, pin edges.

A real node and the simulated board each implement them. Every bus has one object
per node, shared by all its sensors; a driver that needs several transfers in a row
holds the bus meanwhile. All methods raise `OSError`; the drivers add the sensor's
name.
"""

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


class Held(Protocol):
    """A bus that sensors share. Calls of different threads do not mix."""

    def held(self) -> AbstractContextManager[object]:
        """Keep the other sensors of the bus waiting; may be nested."""


class I2c(Held, Protocol):
    """One I2C bus: chips with registers."""

    def read(self, address: int, register: int, count: int) -> bytes:
        """Read 1 to 32 registers of the chip at an address, from one register on.

        Raises:
            OSError: Nobody answers, or the bus is stuck.
        """

    def write(self, address: int, register: int, data: bytes) -> None:
        """Write 1 to 32 registers of the chip at an address, from one on.

        Raises:
            OSError: Nobody answers, or the bus is stuck.
        """


@dataclass(frozen=True)
class LineSettings:
    """How a serial line is spoken on; all who share it must agree.

    Attributes:
        speaks: The protocol, in a word: two do not mix on one line.
        baud: Bits in a second.
        parity: ``none``, ``even`` or ``odd``.
        stop_bits: 1 or 2.
        data_bits: 7 or 8.
    """

    speaks: str
    baud: int = 9600
    parity: str = "none"
    stop_bits: int = 1
    data_bits: int = 8

    def __str__(self) -> str:
        """``Modbus at 9600 8N1``."""
        frame = f"{self.data_bits}{self.parity[0].upper()}{self.stop_bits}"
        return f"{self.speaks} at {self.baud} {frame}"


class Serial(Held, Protocol):
    """One serial line, whose devices speak when they are asked."""

    def ask(
        self, request: bytes, is_whole: Callable[[bytes], bool], timeout_s: float
    ) -> bytes:
        """Send a request and collect the answer.

        What came before the request is thrown away.

        Args:
            request: The bytes to send; may be empty to only listen.
            is_whole: Whether an answer is complete.
            timeout_s: How long to wait for its first byte.

        Returns:
            What came in time; shorter than whole, or empty, when no more did.

        Raises:
            OSError: The line is gone.
        """


class Buses(Protocol):
    """Every bus of a node; each is one object, whoever asks for it."""

    def i2c(self, number: int) -> I2c:
        """The I2C bus ``/dev/i2c-<number>``.

        Raises:
            OSError: It is switched off, or its library is missing.
        """

    def serial(self, port: str, settings: LineSettings) -> Serial:
        """The serial line at a path. That nobody is there is found when asking.

        Raises:
            OSError: Another sensor speaks otherwise on it, or the library is
                missing.
        """

    def file(self, path: str) -> str:
        """Text of a file of the kernel, such as a 1-Wire sensor's in sysfs.

        Raises:
            OSError: It is not there, or cannot be read.
        """

    def disk(self, path: str) -> tuple[int, int]:
        """Bytes free for us, and in all, on the disk that holds a path.

        Raises:
            OSError: There is no such path.
        """

    def gpsd(self) -> str:
        """What gpsd answers to ``?POLL;``: the last fixes, one JSON object.

        Raises:
            OSError: It does not run or does not answer.
        """


def agree(port: str, first: LineSettings, later: LineSettings) -> None:
    """Let two sensors share a line only when they speak alike on it.

    Raises:
        OSError: They do not.
    """
    if first != later:
        raise OSError(
            f"{port} is already used for {first}, and not for {later}; "
            "give all its sensors the same settings, or another line"
        )


class NoBuses:
    """A node without any of these buses, which it says clearly."""

    def i2c(self, number: int) -> I2c:
        """Never returns."""
        raise _absent(f"I2C bus {number}")

    def serial(self, port: str, settings: LineSettings) -> Serial:
        """Never returns."""
        raise _absent(f"serial port {port}")

    def file(self, path: str) -> str:
        """Never returns."""
        raise _absent(f"file {path}")

    def disk(self, path: str) -> tuple[int, int]:
        """Never returns."""
        raise _absent(f"disk {path}")

    def gpsd(self) -> str:
        """Never returns."""
        raise _absent("gpsd")


def _absent(thing: str) -> OSError:
    return FileNotFoundError(f"no {thing}: the sensors were opened without buses")


EVENT = struct.Struct("=QIIII24x")
"""One event: time in ns, kind of edge, line, number in the request, in the line.

Source: ``struct gpio_v2_line_event`` in ``linux/gpio.h``, 48 bytes.
"""


@dataclass(frozen=True)
class LineEvent:
    """One edge.

    Attributes:
        time_ns: On CLOCK_MONOTONIC.
        line_number: Counts the edges of the line from 1; a jump is a loss.
    """

    time_ns: int
    line_number: int


class Line(Protocol):
    """One pin that the kernel watches for us.

    Attributes:
        token: Names this watch; another watch of the same pin has another.
    """

    token: str

    def read(self) -> list[LineEvent]:
        """The edges that wait, without waiting for more.

        Raises:
            OSError: The chip is gone.
        """

    def is_active(self) -> bool:
        """Whether the pin is active right now.

        Raises:
            OSError: The chip is gone.
        """

    def close(self) -> None:
        """Stop reading; a copy that systemd keeps goes on counting."""


class Lines(Protocol):
    """The pins of a machine with such a kernel."""

    def open(self, pin: int, debounce_s: float, active_high: bool) -> Line:
        """Watch a pin for edges to active.

        Raises:
            OSError: It is in use, or may not be used.
        """


def decode(raw: bytes) -> list[LineEvent]:
    """Events as they are read from a line.

    Raises:
        ValueError: It is not a whole number of events.
    """
    if len(raw) % EVENT.size:
        raise ValueError(f"raw must be whole events of 48 bytes, got {len(raw)} bytes")
    return [
        LineEvent(time_ns, line_number)
        for time_ns, _edge, _line, _number, line_number in EVENT.iter_unpack(raw)
    ]
