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


class SharedBus(Protocol):
    """A bus that sensors share; calls from different threads are serialized."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Block the other sensors of the bus; reentrant."""


class I2cBus(SharedBus, Protocol):
    """One I2C bus: chips with registers."""

    def read(self, address: int, register: int, count: int) -> bytes:
        """Read 1 to 32 consecutive registers of the chip at an address.

        Raises:
            OSError: No chip answers, or the bus is stuck.
        """

    def write(self, address: int, register: int, data: bytes) -> None:
        """Write 1 to 32 consecutive registers of the chip at an address.

        Raises:
            OSError: No chip answers, or the bus is stuck.
        """


@dataclass(frozen=True)
class SerialSettings:
    """Settings of a serial line; all sensors on it must have the same.

    Attributes:
        protocol: Name of the protocol; a line has only one.
        baud: Bits in a second.
        parity: ``none``, ``even`` or ``odd``.
        stop_bits: 1 or 2.
        data_bits: 7 or 8.
    """

    protocol: str
    baud: int = 9600
    parity: str = "none"
    stop_bits: int = 1
    data_bits: int = 8

    def __str__(self) -> str:
        """``Modbus at 9600 8N1``."""
        frame = f"{self.data_bits}{self.parity[0].upper()}{self.stop_bits}"
        return f"{self.protocol} at {self.baud} {frame}"


class SerialLine(SharedBus, Protocol):
    """One serial line, whose devices only answer requests."""

    def query(
        self, request: bytes, is_complete: Callable[[bytes], bool], timeout_s: float
    ) -> bytes:
        """Send a request and collect the answer.

        Bytes received before the request are discarded. After a request without a
        complete answer, the next one first waits for a late answer and discards it.

        Args:
            request: The bytes to send; empty to only receive.
            is_complete: Whether an answer is complete.
            timeout_s: How long to wait for its first byte.

        Returns:
            The bytes received in time; incomplete or empty after a time-out.

        Raises:
            OSError: The line is gone.
        """


class Buses(Protocol):
    """All buses of a node; each call returns the same object for a bus."""

    def i2c(self, number: int) -> I2cBus:
        """The I2C bus ``/dev/i2c-<number>``.

        Raises:
            OSError: It is switched off, or its library is missing.
        """

    def serial(self, port: str, settings: SerialSettings) -> SerialLine:
        """The serial line at a path; a missing device only fails on `query`.

        Raises:
            OSError: Another sensor uses it with other settings, or the library
                is missing.
        """

    def read_file(self, path: str) -> str:
        """Text of a file of the kernel, such as a 1-Wire sensor's in sysfs.

        Raises:
            OSError: It is not there, or cannot be read.
        """

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Available and total bytes of the disk that holds a path.

        Raises:
            OSError: There is no such path.
        """

    def poll_gpsd(self) -> str:
        """Answer of gpsd to ``?POLL;``: the last fixes, one JSON object.

        Raises:
            OSError: It does not run or does not answer.
        """


def check_same_settings(
    port: str, first: SerialSettings, later: SerialSettings
) -> None:
    """Check that two sensors on one line have the same settings.

    Raises:
        OSError: They do not.
    """
    if first != later:
        raise OSError(
            f"{port} is already used for {first}, and not for {later}; "
            "give all its sensors the same settings, or another line"
        )


class NoBuses:
    """A node without buses; every method raises."""

    def i2c(self, number: int) -> I2cBus:
        """Never returns."""
        raise _absent(f"I2C bus {number}")

    def serial(self, port: str, settings: SerialSettings) -> SerialLine:
        """Never returns."""
        raise _absent(f"serial port {port}")

    def read_file(self, path: str) -> str:
        """Never returns."""
        raise _absent(f"file {path}")

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Never returns."""
        raise _absent(f"disk {path}")

    def poll_gpsd(self) -> str:
        """Never returns."""
        raise _absent("gpsd")


def _absent(thing: str) -> OSError:
    return FileNotFoundError(f"no {thing}: the sensors were opened without buses")


EDGE_EVENT = struct.Struct("=QIIII24x")
"""One event: time in ns, kind of edge, line, number in the request, in the line.

Source: ``struct gpio_v2_line_event`` in ``linux/gpio.h``, 48 bytes.
"""


@dataclass(frozen=True)
class EdgeEvent:
    """One edge.

    Attributes:
        time_ns: On CLOCK_MONOTONIC.
        line_number: Counts the edges of the line from 1; a gap means lost events.
    """

    time_ns: int
    line_number: int


class EdgeLine(Protocol):
    """Edge events of one pin, queued by the kernel.

    Attributes:
        token: Unique name of this request, also among requests of the same pin.
        is_kept: Whether an earlier process requested it, and may have read edges.
    """

    token: str
    is_kept: bool

    def read(self) -> list[EdgeEvent]:
        """Read the queued edges without blocking.

        Raises:
            OSError: The chip is gone.
        """

    def is_active(self) -> bool:
        """Whether the pin is active right now.

        Raises:
            OSError: The chip is gone.
        """

    def close(self) -> None:
        """Stop reading; a descriptor that systemd keeps continues to queue edges."""


class EdgeLines(Protocol):
    """Edge events of the pins of a machine."""

    def open(self, pin: int, debounce_s: float, active_high: bool) -> EdgeLine:
        """Request the edges of a pin to its active level.

        Raises:
            OSError: It is in use, or may not be used.
        """


def decode_edge_events(raw: bytes) -> list[EdgeEvent]:
    """Decode the bytes read from a line.

    Raises:
        ValueError: It is not a whole number of events.
    """
    if len(raw) % EDGE_EVENT.size:
        raise ValueError(f"raw must be whole events of 48 bytes, got {len(raw)} bytes")
    return [
        EdgeEvent(time_ns, line_number)
        for time_ns, _edge, _line, _number, line_number in EDGE_EVENT.iter_unpack(raw)
    ]
