"""Base of the drivers of I2C chips: settings, register access, errors with a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edge_agent.sensors.base import SensorSettings
from edge_agent.sensors.buses import I2cBus
from edge_agent.sensors.errors import Health, SensorBusError, SensorError
from service_runtime.settings import KeyRule, key

_SILENT = {
    errno.EIO: "does not answer",
    errno.EREMOTEIO: "does not answer",
    errno.ENXIO: "does not answer",
    errno.ETIMEDOUT: "holds the bus too long",
    errno.EBUSY: "is held by a driver of the kernel",
    errno.EACCES: "may not be used by this user",
    errno.ENOENT: "is not there",
}


@contextmanager
def bus_errors_as_sensor_errors(sensor: str, place: str, remedy: str) -> Iterator[None]:
    """Convert an `OSError` of a bus to a `SensorBusError` with the place.

    Args:
        sensor: Name of the sensor.
        place: Bus and address, such as ``I2C1 0x48``.
        remedy: What a person on site can do.
    """
    try:
        yield
    except SensorError:
        raise
    except OSError as error:
        what = _SILENT.get(error.errno or 0, "failed")
        raise SensorBusError(sensor, f"{place} {what}: {error}", remedy) from error


_REMEDY = "check power, the wiring of SDA and SCL, the address, and that I2C is on"


@dataclass(frozen=True)
class I2cSettings(SensorSettings):
    """Keys of every chip on I2C; its kind bounds ``address``."""

    bus: int = key(KeyRule("Number of the I2C bus.", low=0, high=22), 1)

    @property
    def place(self) -> str:
        """``I2C1 0x48``, as in claims and messages."""
        return f"I2C{self.bus} 0x{self.address:02X}"  # type: ignore[attr-defined]


class I2cChip:
    """Registers of one chip, with errors that name its sensor.

    Args:
        sensor: Name of the sensor.
        place: ``I2C1 0x48``.
        bus: The bus.
        address: Its address there.
    """

    def __init__(self, sensor: str, place: str, bus: I2cBus, address: int) -> None:
        self._sensor = sensor
        self._place = place
        self._bus = bus
        self._address = address

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block the other sensors of the bus."""
        with self._bus.exclusive():
            yield

    def read_registers(self, register: int, count: int) -> bytes:
        """Read registers.

        Raises:
            SensorBusError: The chip does not answer.
        """
        with bus_errors_as_sensor_errors(self._sensor, self._place, _REMEDY):
            return self._bus.read(self._address, register, count)

    def write_registers(self, register: int, *values: int) -> None:
        """Write registers.

        Raises:
            SensorBusError: The chip does not answer.
        """
        with bus_errors_as_sensor_errors(self._sensor, self._place, _REMEDY):
            self._bus.write(self._address, register, bytes(values))

    def make_error(self, reason: str, health: Health | None = None) -> SensorBusError:
        """Make the error for an unexpected answer of the chip."""
        return SensorBusError(self._sensor, f"{self._place} {reason}", _REMEDY, health)
