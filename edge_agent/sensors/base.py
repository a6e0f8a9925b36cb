"""Base types of all drivers: settings, the protocol `Sensor`, and lazy re-opening."""

import errno
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from edge_agent.sensors.buses import Buses, EdgeLines, NoBuses
from edge_agent.sensors.errors import SensorError, SensorOpenError, pin_error_types
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


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
