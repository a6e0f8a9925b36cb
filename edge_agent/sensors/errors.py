"""Exceptions of the sensors; each names the sensor, the reason and a remedy."""

import importlib
import sys
from collections.abc import Sequence
from enum import StrEnum
from types import ModuleType
from typing import ClassVar

from gpiozero.exc import GPIOZeroError

from spatial_mqtt.senml import Reading


class Health(StrEnum):
    """Health of a sensor; the values are the terms of the installer's guide."""

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
    """A sensor gave no reading; the other sensors continue.

    Attributes:
        sensor: Its name in the settings.
        reason: What happened.
        remedy: What a person on site can do.
        health: The category; by default that of the class.
        readings: What is sent nevertheless, such as that rain is missing.
        answer: What a probe answered, to be shown after the reason; it may differ at
            each reading of the same fault.
    """

    default_health: ClassVar[Health] = Health.NO_ANSWER

    def __init__(
        self,
        sensor: str,
        reason: str,
        remedy: str,
        health: Health | None = None,
        readings: Sequence[Reading] = (),
        *,
        answer: str = "",
    ) -> None:
        self.sensor = sensor
        self.reason = reason
        self.remedy = remedy
        self.health = health or self.default_health
        self.readings = readings
        super().__init__(f"sensor {sensor} {reason}{answer}; {remedy}")

    @property
    def fault(self) -> tuple[str, str, str]:
        """What is equal at each reading of the same fault."""
        return self.health, self.reason, self.remedy


class SensorOpenError(SensorError, OSError):
    """The sensor cannot be opened: its pin or bus is taken, missing or forbidden."""

    default_health = Health.NOT_OPENED


class SensorBusError(SensorError, ConnectionError):
    """The sensor's chip does not answer, or is another chip."""


MAX_ANSWER_CHARS = 60
"""Shown part of a wrong answer, with what is wrong with it. Noise may be long, and some
links are paid by the byte."""


class DamagedAnswerError(ValueError):
    """An answer on a serial line is not that of the probe.

    Args:
        problem: What is wrong with it, and the answer as text; it is cut.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem[:MAX_ANSWER_CHARS])


class SensorRangeError(SensorError, ValueError):
    """The value is impossible: the sensor is broken or disconnected."""

    default_health = Health.IMPLAUSIBLE


class SensorTimeoutError(SensorError, TimeoutError):
    """A read of the sensor does not return."""

    default_health = Health.HANGS


def health_of_identity(identity: int) -> Health:
    """Health for a wrong identity byte; an undriven bus reads 00 or FF."""
    return Health.NO_ANSWER if identity in {0x00, 0xFF} else Health.WRONG_CHIP


def pin_error_types() -> tuple[type[Exception], ...]:
    """Exceptions of the pin libraries; lgpio's only if lgpio is loaded."""
    lgpio = sys.modules.get("lgpio")
    return (GPIOZeroError, OSError) + ((lgpio.error,) if lgpio else ())


class MissingPackageError(OSError):
    """A bus needs a package that is not installed.

    Attributes:
        package: Its name on the package index.
    """

    def __init__(self, bus: str, package: str) -> None:
        self.package = package
        super().__init__(
            f"{bus} needs the package {package}; "
            "install it with pip install 'yamamori[edge]'"
        )


def import_library(bus: str, module: str, package: str) -> ModuleType:
    """Import the library of a bus, on first use.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(bus, package) from error
