"""From what a bus raises to an error that names the sensor and a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from edge_agent.sensors.errors import SensorBusError, SensorError

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
def naming(sensor: str, place: str, remedy: str) -> Iterator[None]:
    """Turn an `OSError` of a bus into a `SensorBusError` that says where.

    Args:
        sensor: Name of the sensor.
        place: What is spoken to, such as ``I2C1 0x48``.
        remedy: What a person at the slope can do.
    """
    try:
        yield
    except SensorError:
        raise
    except OSError as error:
        what = _SILENT.get(error.errno or 0, "failed")
        raise SensorBusError(sensor, f"{place} {what}: {error}", remedy) from error
