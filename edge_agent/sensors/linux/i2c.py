"""I2C through the kernel's ``/dev/i2c-N``: the one file that imports smbus2."""

import threading
from typing import Any

from edge_agent.sensors.linux.missing import load


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
