import errno
import os

import pytest

from edge_agent.sensors.errors import SensorBusError, SensorRangeError
from edge_agent.sensors.i2c import bus_errors_as_sensor_errors


@pytest.mark.parametrize(
    ("number", "words"),
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
def test_number_of_the_kernel_becomes_a_sentence(number: int, words: str) -> None:
    """Sensor, place, what happened, the kernel's words, and the remedy."""
    with (
        pytest.raises(
            SensorBusError, match=rf"^sensor air I2C1 0x76 {words}: .*; look at it$"
        ),
        bus_errors_as_sensor_errors("air", "I2C1 0x76", "look at it"),
    ):
        raise OSError(number, os.strerror(number))


def test_own_error_keeps_its_words() -> None:
    """What is named already is not named again."""
    with (
        pytest.raises(SensorRangeError, match=r"^sensor air is odd; look$"),
        bus_errors_as_sensor_errors("air", "I2C1 0x76", "look at it"),
    ):
        raise SensorRangeError("air", "is odd", "look")
