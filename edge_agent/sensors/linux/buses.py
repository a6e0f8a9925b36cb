"""All buses of this machine; each is opened once, when a sensor first asks.

The kernel's files: 1-Wire thermometers, temperatures, counters of the machine.

I2C through the kernel's ``/dev/i2c-N``: the one file that imports smbus2.
"""

import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from edge_agent.sensors.buses import LineSettings, agree
from edge_agent.sensors.linux.gpsd import LinuxGpsd
from edge_agent.sensors.linux.optional import load
from edge_agent.sensors.linux.serial_line import LinuxSerialLine

_ONE_WIRE = "/sys/bus/w1/"


class LinuxFiles:
    """Files; 1-Wire ones one at a time, for each takes 0.75 s of its bus.

    Args:
        root: Directory that stands for ``/``.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._one_wire = threading.Lock()

    def read(self, path: str) -> str:
        """Text of a file."""
        with self._one_wire if path.startswith(_ONE_WIRE) else nullcontext():
            return self._under(path).read_text(encoding="utf-8", errors="replace")

    def disk(self, path: str) -> tuple[int, int]:
        """Bytes free for us, and in all."""
        seen = os.statvfs(self._under(path))
        return seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize

    def _under(self, path: str) -> Path:
        return self._root / path.lstrip("/")


class LinuxI2c:
    """One bus, one transfer at a time.

    Raises:
        MissingPackageError: smbus2 is not installed.
        OSError: The bus is switched off, or may not be used by this user.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.RLock()
        self._bus: Any = load("I2C", "smbus2", "smbus2").SMBus(number)

    def held(self) -> threading.RLock:
        """Keep the other sensors of the bus waiting."""
        return self._lock

    def read(self, address: int, register: int, count: int) -> bytes:
        """Read up to 32 bytes in one transfer."""
        with self._lock:
            return bytes(self._bus.read_i2c_block_data(address, register, count))

    def write(self, address: int, register: int, data: bytes) -> None:
        """Write up to 32 bytes in one transfer."""
        with self._lock:
            self._bus.write_i2c_block_data(address, register, list(data))

    def close(self) -> None:
        """Give the bus back."""
        self._bus.close()


class LinuxBuses:
    """The owner of the buses: two sensors on one bus get one and the same object."""

    def __init__(
        self, files: LinuxFiles | None = None, gpsd: LinuxGpsd | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._i2c: dict[int, LinuxI2c] = {}
        self._lines: dict[str, LinuxSerialLine] = {}
        self._files = files or LinuxFiles()
        self._gpsd = gpsd or LinuxGpsd()

    def i2c(self, number: int) -> LinuxI2c:
        """The bus ``/dev/i2c-<number>``."""
        with self._lock:
            if number not in self._i2c:
                self._i2c[number] = LinuxI2c(number)
            return self._i2c[number]

    def serial(self, port: str, settings: LineSettings) -> LinuxSerialLine:
        """The line at a device path."""
        with self._lock:
            line = self._lines.get(port)
            if line is None:
                line = self._lines[port] = LinuxSerialLine(port, settings)
        agree(port, line.settings, settings)
        return line

    def file(self, path: str) -> str:
        """Text of a file of the kernel."""
        return self._files.read(path)

    def disk(self, path: str) -> tuple[int, int]:
        """Bytes free for us, and in all."""
        return self._files.disk(path)

    def gpsd(self) -> str:
        """What the daemon answers to a poll."""
        return self._gpsd.poll()

    def close(self) -> None:
        """Give every bus back."""
        for bus in self._i2c.values():
            bus.close()
        for line in self._lines.values():
            line.close()
        self._gpsd.close()
