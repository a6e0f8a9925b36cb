"""Base of all drivers: settings, protocol `Sensor`, errors, re-opening, chips on I2C.

Each error names the sensor, the reason and a remedy.
"""

import errno
import importlib
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import Any, ClassVar, Protocol

from gpiozero.exc import GPIOZeroError

from edge_agent.sensors.buses import Buses, EdgeLines, I2cBus, NoBuses
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")

_SILENT = {
    errno.EIO: "does not answer",
    errno.EREMOTEIO: "does not answer",
    errno.ENXIO: "does not answer",
    errno.ETIMEDOUT: "holds the bus too long",
    errno.EBUSY: "is held by a driver of the kernel",
    errno.EACCES: "may not be used by this user",
    errno.ENOENT: "is not there",
}


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
    DRIVER_FAULT = "driver fault"


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


_REPORT_DEFECT = "restart the agent; if that does not help, report it with the journal"


class SensorDriverError(SensorError, RuntimeError):
    """The driver has a defect.

    Args:
        sensor: Name of the sensor.
        done: What cannot be done: ``opened`` or ``read``.
        cause: The exception that no driver should raise.
    """

    default_health = Health.DRIVER_FAULT

    def __init__(self, sensor: str, done: str, cause: Exception) -> None:
        reason = f"cannot be {done}: {type(cause).__name__}"
        answer = f": {cause}"[:MAX_ANSWER_CHARS]
        super().__init__(sensor, reason, _REPORT_DEFECT, answer=answer)
        self.__cause__ = cause


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


def check_sensor_name(name: str) -> str:
    """Check that a sensor's name is one level of a SenML name.

    Raises:
        FieldError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise FieldError("name", "1 to 32 of A-Z a-z 0-9 _ -", name, "rename it")
    return name


@dataclass(frozen=True)
class SensorSettings:
    """Settings keys of every kind of sensor.

    Attributes:
        quantity: Name of the measured quantity.
        senml_unit: The driver's unit; None for a truth value.
        range: Minimum and maximum possible value, in the unit; 0 and 1 for a
            truth value. It applies to the readings in `senml_unit`, not to
            additional ones such as a chip's own temperature.
        largest_step: Largest plausible change between two readings, in the unit;
            None if any change is plausible.
        is_noisy: Whether the readings vary at rest, so that equal ones for an hour
            are suspect.
        warm_up_s: Time from opening to the first valid reading.
    """

    quantity: ClassVar[str] = ""
    senml_unit: ClassVar[str | None] = None
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    largest_step: ClassVar[float | None] = None
    is_noisy: ClassVar[bool] = False
    warm_up_s: ClassVar[float] = 0.0

    kind: str = key(KeyRule("The driver, such as rain-gauge."))
    name: str = key(
        KeyRule(
            "Name of the sensor, unique on the node; rain for the rain gauge.",
            check=check_sensor_name,
        )
    )
    interval_s: float = key(
        KeyRule("Time between readings.", unit="s", low=1, high=3600), 60.0
    )
    unit: str | None = key(
        KeyRule("Unit the installer expects; must be the driver's own."), None
    )

    @property
    def shared_places(self) -> Mapping[str, str]:
        """Shared places and their settings, which all users must give alike."""
        return {}

    @property
    def line(self) -> str | None:
        """Serial line, on which one sensor at a time is read; None without one."""
        return None


class SensorInfo(Protocol):
    """Properties of a sensor, known before it is opened."""

    @property
    def name(self) -> str:
        """Name of the sensor, and first level of its readings' names."""

    @property
    def quantity(self) -> str:
        """Name of the measured quantity."""

    @property
    def range(self) -> tuple[float, float]:
        """Minimum and maximum possible value, in the unit."""

    @property
    def largest_step(self) -> float | None:
        """Largest plausible change between two readings; None for any."""

    @property
    def is_noisy(self) -> bool:
        """Whether equal readings for an hour are suspect."""

    @property
    def interval_s(self) -> float:
        """Time between readings in quiet weather."""

    @property
    def warm_up_s(self) -> float:
        """Time from opening to the first valid reading."""

    @property
    def claims(self) -> tuple[str, ...]:
        """Exclusive resources: ``GPIO17``, ``SPI0.0 channel 2``, ``SPI0.1``."""

    @property
    def line(self) -> str | None:
        """Serial line, on which one sensor at a time is read; None without one."""


class SensorConfig(SensorInfo, Protocol):
    """Settings of one sensor, whatever its kind."""

    @property
    def kind(self) -> str:
        """Name of the driver."""

    @property
    def senml_unit(self) -> str | None:
        """SenML unit of the readings; None for a truth value."""

    @property
    def shared_places(self) -> Mapping[str, str]:
        """Shared places and their settings, which all users must give alike."""


@dataclass(frozen=True)
class Hardware:
    """Dependencies of the drivers, real or simulated.

    Attributes:
        pin_factory: The gpiozero pin factory.
        sleep: Sleeps between the samples of one reading; takes seconds.
        get_state: Stored value of a key of `Sensor.state`, or None.
        on_event: Called with a sensor's name when a reading is needed before its
            interval ends. Runs in the pin thread, so it must return quickly.
        buses: I2C, serial ports, files of the kernel and gpsd.
        edge_lines: Edge events of the kernel; None uses those of `pin_factory`.
    """

    pin_factory: Any
    sleep: Callable[[float], object]
    get_state: Callable[[str], str | None] = lambda _: None
    on_event: Callable[[str], object] = lambda _: None
    buses: Buses = field(default_factory=NoBuses)
    edge_lines: EdgeLines | None = None


class Sensor(SensorInfo, Protocol):
    """A configured sensor, which may fail to answer."""

    @property
    def unit(self) -> str | None:
        """SenML unit of the readings; None for a truth value."""

    def read(self, now_s: float) -> list[Reading]:
        """Take one reading of each of its quantities.

        Not called concurrently for one sensor; different sensors may be read in
        parallel.

        Args:
            now_s: Unix time of the reading.

        Raises:
            SensorError: There is no reading; the next call may succeed.
        """

    def state(self) -> dict[str, str]:
        """What to store in the same transaction as the last reading.

        Keys are unique on the node; `Hardware.get_state` returns the values.
        """

    def close(self) -> None:
        """Release pins and bus. A closed sensor is not read again."""


class BaseSensor:
    """Base class: copies the settings; no stored state, no bus to close.

    Attributes:
        name: Name of the sensor.
        quantity: What is measured.
        unit: SenML unit.
        range: Minimum and maximum possible value.
        largest_step: Largest plausible change.
        is_noisy: Whether equal readings for an hour are suspect.
        interval_s: Time between readings.
        warm_up_s: Time before the first good reading.
        claims: Pins and chips.
        line: Serial line that it shares.
    """

    def __init__(self, settings: SensorConfig) -> None:
        self.name = settings.name
        self.quantity = settings.quantity
        self.unit = settings.senml_unit
        self.range = settings.range
        self.largest_step = settings.largest_step
        self.is_noisy = settings.is_noisy
        self.interval_s = settings.interval_s
        self.warm_up_s = settings.warm_up_s
        self.claims = settings.claims
        self.line = settings.line

    def state(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing; the buses are shared."""


def notify_safely(on_event: Callable[[str], object], name: str) -> None:
    """Call `on_event` from the pin thread; log its exceptions and raise none.

    An exception would end lgpio's only notification thread, and with it the events
    of every pin, while the process looks healthy.
    """
    try:
        on_event(name)
    except Exception:  # noqa: BLE001 - see above; the event itself is counted
        _log.exception("event callback of sensor %s failed", name)


OpenSensor = Callable[[], Sensor]

_REMEDY = "check that the pin is free, the bus is switched on and the user may use it"
_BUSY = (
    "stop the process that uses it; pins kept for a stopped agent are released by "
    "'systemctl clean --what=fdstore edge-agent'"
)


class RetryingSensor(BaseSensor):
    """Placeholder for a sensor that did not open; each read tries again.

    Attributes:
        error: Why it is not open; None after it has opened.
    """

    def __init__(self, settings: SensorConfig, opener: OpenSensor) -> None:
        super().__init__(settings)
        self._opener = opener
        self._sensor: Sensor | None = None
        self.error: SensorError | None = None
        self.try_open()

    @property
    def open_sensor(self) -> Sensor | None:
        """The underlying sensor, if it is open."""
        return self._sensor

    def try_open(self) -> bool:
        """Try to open the sensor; return whether it is open."""
        try:
            self._sensor = self._opener()
        except SensorError as error:
            self.error = error
        except pin_error_types() as error:
            is_busy = isinstance(error, OSError) and error.errno == errno.EBUSY
            self.error = SensorOpenError(
                self.name, f"cannot be opened: {error}", _BUSY if is_busy else _REMEDY
            )
        except Exception as error:  # noqa: BLE001 - also of a driver of another package
            self.error = SensorDriverError(self.name, "opened", error)
        else:
            self.error = None
        return self._sensor is not None

    def read(self, now_s: float) -> list[Reading]:
        """Open the sensor if necessary, then read it.

        Raises:
            SensorError: It does not open, or gives no reading.
        """
        if self._sensor is None and not self.try_open():
            raise self.error or SensorOpenError(self.name, "is not open", _REMEDY)
        assert self._sensor is not None  # noqa: S101 - opened above
        return self._sensor.read(now_s)

    def state(self) -> dict[str, str]:
        """The sensor's state; nothing while it is not open."""
        return {} if self._sensor is None else self._sensor.state()

    def close(self) -> None:
        if self._sensor is not None:
            self._sensor.close()


@dataclass(frozen=True)
class SlowSensorSettings(SensorSettings):
    """Settings of a sensor whose default interval is five minutes.

    Must be the first of several bases, or its default is lost.
    """

    interval_s: float = key(
        KeyRule("Time between readings.", unit="s", low=1, high=3600), 300.0
    )


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


_I2C_REMEDY = "check power, the wiring of SDA and SCL, the address, and that I2C is on"


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
        with bus_errors_as_sensor_errors(self._sensor, self._place, _I2C_REMEDY):
            return self._bus.read(self._address, register, count)

    def write_registers(self, register: int, *values: int) -> None:
        """Write registers.

        Raises:
            SensorBusError: The chip does not answer.
        """
        with bus_errors_as_sensor_errors(self._sensor, self._place, _I2C_REMEDY):
            self._bus.write(self._address, register, bytes(values))

    def make_error(self, reason: str, health: Health | None = None) -> SensorBusError:
        """Make the error for an unexpected answer of the chip."""
        return SensorBusError(
            self._sensor, f"{self._place} {reason}", _I2C_REMEDY, health
        )
