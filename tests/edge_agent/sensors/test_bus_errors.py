import errno
import os

import pytest

from edge_agent.sensors.base import (
    SensorBusError,
    SensorRangeError,
    bus_errors_as_sensor_errors,
)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EIO, "does not answer"),
        (errno.EREMOTEIO, "does not answer"),
        (errno.ENXIO, "does not answer"),
        (errno.ETIMEDOUT, "holds the bus too long"),
        (errno.EBUSY, "is held by a driver of the kernel"),
        (errno.EACCES, "may not be used by this user"),
        (errno.ENOENT, "is not there"),
        (errno.EPIPE, "failed"),
    ],
)
def test_error_number_becomes_a_message(number: int, expected: str) -> None:
    """Sensor, address, what happened, the kernel's message, and the remedy."""
    with (
        pytest.raises(
            SensorBusError, match=rf"^sensor air I2C1 0x76 {expected}: .*; look at it$"
        ),
        bus_errors_as_sensor_errors("air", "I2C1 0x76", "look at it"),
    ):
        raise OSError(number, os.strerror(number))


def test_sensor_error_is_not_changed() -> None:
    """An error with a sensor's name is not wrapped again."""
    with (
        pytest.raises(SensorRangeError, match=r"^sensor air is odd; look$"),
        bus_errors_as_sensor_errors("air", "I2C1 0x76", "look at it"),
    ):
        raise SensorRangeError("air", "is odd", "look")
