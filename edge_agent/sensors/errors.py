"""Errors of the sensors: each says which one, why, and what to do."""

import sys

from gpiozero.exc import GPIOZeroError


class SensorError(Exception):
    """A sensor gave no reading; the others go on.

    Attributes:
        sensor: Its name in the settings.
        reason: What happened.
        remedy: What a person at the slope can do.
    """

    def __init__(self, sensor: str, reason: str, remedy: str) -> None:
        self.sensor = sensor
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"sensor {sensor} {reason}; {remedy}")


class SensorOpenError(SensorError, OSError):
    """The sensor cannot be opened: its pin or bus is taken, missing or forbidden."""


class SensorBusError(SensorError, ConnectionError):
    """The sensor's chip does not answer, or answers as another chip would."""


class SensorRangeError(SensorError, ValueError):
    """The sensor reads what cannot be: it is broken or disconnected."""


def pin_errors() -> tuple[type[Exception], ...]:
    """What the pin libraries raise; lgpio's own error only where lgpio is loaded."""
    lgpio = sys.modules.get("lgpio")
    return (GPIOZeroError, OSError) + ((lgpio.error,) if lgpio else ())
