"""Edges on a pin as the kernel tells of them: timed, numbered and queued."""

import struct
from dataclasses import dataclass
from typing import Protocol

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
