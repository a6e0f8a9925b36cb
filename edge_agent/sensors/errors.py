"""Exceptions of the sensors; each names the sensor, the reason and a remedy."""

import sys
from enum import StrEnum
from typing import ClassVar

from gpiozero.exc import GPIOZeroError


class Health(StrEnum):
    """How a sensor is, in the words that an installer finds in the guide."""

    OK = "ok"
    DOUBTFUL = "doubtful"
    NOT_OPENED = "not opened"
    NO_ANSWER = "no answer"
    HANGS = "hangs"
    WRONG_CHIP = "wrong chip"
    NOT_CONVERTED = "not converted"
    DISCONNECTED = "disconnected"
    SHORTED = "shorted"
    STUCK = "stuck"
    FLAPS = "flaps"
    LOOP_BROKEN = "loop broken"
    LOOP_FAULT = "loop fault"
    SATURATED = "saturated"
    NOISY = "noisy"
    IMPLAUSIBLE = "implausible"


class SensorError(Exception):
    """A sensor gave no reading; the others go on.

    Attributes:
        sensor: Its name in the settings.
        reason: What happened.
        remedy: What a person at the slope can do.
        health: The same in a word; without one, what the class usually means.
    """

    usual: ClassVar[Health] = Health.NO_ANSWER

    def __init__(
        self, sensor: str, reason: str, remedy: str, health: Health | None = None
    ) -> None:
        self.sensor = sensor
        self.reason = reason
        self.remedy = remedy
        self.health = health or self.usual
        super().__init__(f"sensor {sensor} {reason}; {remedy}")


class SensorOpenError(SensorError, OSError):
    """The sensor cannot be opened: its pin or bus is taken, missing or forbidden."""

    usual = Health.NOT_OPENED


class SensorBusError(SensorError, ConnectionError):
    """The sensor's chip does not answer, or answers as another chip would."""


class SensorRangeError(SensorError, ValueError):
    """The sensor reads what cannot be: it is broken or disconnected."""

    usual = Health.IMPLAUSIBLE


class SensorHangsError(SensorError, TimeoutError):
    """The sensor is asked and does not return."""

    usual = Health.HANGS


def stranger(identity: int) -> Health:
    """What a wrong identity byte means: a bus that nobody drives reads 00 or FF."""
    return Health.NO_ANSWER if identity in {0x00, 0xFF} else Health.WRONG_CHIP


def pin_errors() -> tuple[type[Exception], ...]:
    """What the pin libraries raise; lgpio's own error only where lgpio is loaded."""
    lgpio = sys.modules.get("lgpio")
    return (GPIOZeroError, OSError) + ((lgpio.error,) if lgpio else ())
