"""Simulated I2C, serial lines, files and gpsd, implementing `Buses`.

Parts attach simulated chips and devices to them.
"""

import errno
from collections.abc import Callable
from threading import RLock
from typing import Protocol

from edge_agent.sensors.buses import SerialSettings, check_same_settings

AnswerRequest = Callable[[bytes], bytes]
"""Answer of a serial device to a request; empty for no answer."""


class SimulatedI2cChip(Protocol):
    """A chip on I2C."""

    def read(self, register: int, count: int) -> bytes:
        """Read registers.

        Raises:
            OSError: It does not answer.
        """

    def write(self, register: int, data: bytes) -> None:
        """Write registers.

        Raises:
            OSError: It does not answer.
        """


class RegisterChip:
    """Base of the chips: a register file.

    Attributes:
        registers: 256 bytes, all zero at first.
        is_dead: Whether it does not answer, as without power.
    """

    def __init__(self) -> None:
        self.registers = bytearray(256)
        self.is_dead = False

    def read(self, register: int, count: int) -> bytes:
        """Read consecutive registers."""
        self._answer()
        self.measure(register)
        return bytes(self.registers[register : register + count])

    def write(self, register: int, data: bytes) -> None:
        """Write consecutive registers."""
        self._answer()
        self.registers[register : register + len(data)] = data
        self.command(register, data)

    def measure(self, register: int) -> None:
        """Update the registers before a read that starts at one of them."""

    def command(self, register: int, data: bytes) -> None:
        """Execute the command in a write of registers."""

    def _answer(self) -> None:
        if self.is_dead:
            raise no_acknowledge_error()


def no_acknowledge_error() -> OSError:
    """The kernel's error for an address without an acknowledge."""
    return OSError(errno.EREMOTEIO, "Remote I/O error")


class SimulatedI2c:
    """One bus: chips by address."""

    def __init__(self) -> None:
        self.chips: dict[int, SimulatedI2cChip] = {}
        self._lock = RLock()

    def exclusive(self) -> RLock:
        return self._lock

    def read(self, address: int, register: int, count: int) -> bytes:
        """Read registers of the chip at an address."""
        with self._lock:
            return self._chip(address).read(register, count)

    def write(self, address: int, register: int, data: bytes) -> None:
        """Write registers of the chip at an address."""
        with self._lock:
            self._chip(address).write(register, data)

    def _chip(self, address: int) -> SimulatedI2cChip:
        if address not in self.chips:
            raise no_acknowledge_error()
        return self.chips[address]


class SimulatedSerial:
    """One line, whose devices all receive every request.

    Attributes:
        is_plugged: Whether the adapter is there.
    """

    def __init__(self) -> None:
        self.devices: list[AnswerRequest] = []
        self.is_plugged = True
        self.settings: SerialSettings | None = None
        self._lock = RLock()

    def exclusive(self) -> RLock:
        return self._lock

    def query(
        self, request: bytes, is_complete: Callable[[bytes], bool], timeout_s: float
    ) -> bytes:
        """The answers of the devices, at once.

        Raises:
            OSError: The adapter is not there.
        """
        with self._lock:
            if not self.is_plugged or not self.devices:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            return b"".join(answer(request) for answer in self.devices)


class SimulatedBuses:
    """All buses of one board.

    Attributes:
        files: Makers of the text of each file that is there, by path.
        disk_bytes: Available and total bytes of every disk.
        gpsd_report: Makes gpsd's report; None where no gpsd runs.
    """

    def __init__(self) -> None:
        self.files: dict[str, Callable[[], str]] = {}
        self.disk_bytes = (20_000_000_000, 32_000_000_000)
        self.gpsd_report: Callable[[], str] | None = None
        self._i2c: dict[int, SimulatedI2c] = {}
        self._serial: dict[str, SimulatedSerial] = {}

    def attach_i2c(self, bus: int, address: int, chip: SimulatedI2cChip) -> None:
        """Put a chip on a bus; several sensors may share it."""
        self.i2c(bus).chips[address] = chip

    def attach_serial(self, port: str, answer: AnswerRequest) -> None:
        """Put a device on a line; several may share it."""
        self.line(port).devices.append(answer)

    def line(self, port: str) -> SimulatedSerial:
        """The line of a port, for parts: with or without a device on it."""
        return self._serial.setdefault(port, SimulatedSerial())

    def i2c(self, number: int) -> SimulatedI2c:
        return self._i2c.setdefault(number, SimulatedI2c())

    def serial(self, port: str, settings: SerialSettings) -> SimulatedSerial:
        """One line.

        Raises:
            OSError: Another sensor uses it with other settings.
        """
        line = self.line(port)
        line.settings = line.settings or settings
        check_same_settings(port, line.settings, settings)
        return line

    def read_file(self, path: str) -> str:
        """Text of a file.

        Raises:
            OSError: It is not there.
        """
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.files[path]()

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self.disk_bytes

    def poll_gpsd(self) -> str:
        """The report of gpsd.

        Raises:
            OSError: No gpsd runs.
        """
        if self.gpsd_report is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return self.gpsd_report()
