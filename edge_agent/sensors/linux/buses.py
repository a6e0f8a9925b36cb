"""Linux implementation of `Buses`: I2C (smbus2), files, serial lines and gpsd."""

import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from edge_agent.sensors.buses import SerialSettings, check_same_settings
from edge_agent.sensors.linux.gpsd import LinuxGpsd
from edge_agent.sensors.linux.optional import import_library
from edge_agent.sensors.linux.serial_line import LinuxSerialLine

_ONE_WIRE = "/sys/bus/w1/"


class LinuxFiles:
    """Kernel files; 1-Wire ones one at a time, as each occupies its bus for 0.75 s.

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

    def disk_usage(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(self._under(path))
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize

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
        self._bus: Any = import_library("I2C", "smbus2", "smbus2").SMBus(number)

    def exclusive(self) -> threading.RLock:
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
        self._bus.close()


class LinuxBuses:
    """All buses of the machine; sensors on one bus get the same object."""

    def __init__(
        self, files: LinuxFiles | None = None, gpsd: LinuxGpsd | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._i2c: dict[int, LinuxI2c] = {}
        self._lines: dict[str, LinuxSerialLine] = {}
        self._files = files or LinuxFiles()
        self._gpsd = gpsd or LinuxGpsd()

    def i2c(self, number: int) -> LinuxI2c:
        with self._lock:
            if number not in self._i2c:
                self._i2c[number] = LinuxI2c(number)
            return self._i2c[number]

    def serial(self, port: str, settings: SerialSettings) -> LinuxSerialLine:
        with self._lock:
            line = self._lines.get(port)
            if line is None:
                line = self._lines[port] = LinuxSerialLine(port, settings)
        check_same_settings(port, line.settings, settings)
        return line

    def read_file(self, path: str) -> str:
        return self._files.read(path)

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self._files.disk_usage(path)

    def poll_gpsd(self) -> str:
        return self._gpsd.poll()

    def close(self) -> None:
        for bus in self._i2c.values():
            bus.close()
        for line in self._lines.values():
            line.close()
        self._gpsd.close()
