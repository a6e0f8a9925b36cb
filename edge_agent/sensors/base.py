"""Base types of all drivers: settings, the protocol `Sensor`, and lazy re-opening."""

import errno
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from edge_agent.sensors.buses import Buses, Lines, NoBuses
from edge_agent.sensors.errors import SensorError, SensorOpenError, pin_errors
from service_runtime.errors import FieldError
from service_runtime.settings import Rule, key
from spatial_mqtt.senml import Reading

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


def check_name(name: str) -> str:
    """Let a sensor's name through when it is one level of a SenML name.

    Raises:
        FieldError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise FieldError("name", "1 to 32 of A-Z a-z 0-9 _ -", name, "rename it")
    return name


@dataclass(frozen=True)
class SensorSettings:
    """Keys that every kind of sensor has.

    Attributes:
        quantity: What is measured, in words.
        senml_unit: The driver's unit; None for a truth value.
        range: Least and greatest value that can be, in the unit; 0 and 1 for a
            truth value. It belongs to the readings in `senml_unit`, not to such
            companions as a chip's own temperature.
        largest_step: Largest plausible change between two readings, in the unit;
            None where any change may be true.
        warm_up_s: How long after opening the first reading means something.
    """

    quantity: ClassVar[str] = ""
    senml_unit: ClassVar[str | None] = None
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    largest_step: ClassVar[float | None] = None
    warm_up_s: ClassVar[float] = 0.0

    kind: str = key(Rule("The driver, such as rain-gauge."))
    name: str = key(Rule("Name of the sensor, unique on the node.", check=check_name))
    interval_s: float = key(
        Rule("Time between readings.", unit="s", low=1, high=3600), 60.0
    )
    unit: str | None = key(
        Rule("Unit the installer expects; must be the driver's own."), None
    )

    @property
    def shares(self) -> Mapping[str, str]:
        """What it has in common with others by place, who must describe it alike."""
        return {}


class Known(Protocol):
    """What is known of a sensor before and after it is opened."""

    @property
    def name(self) -> str:
        """Name of the sensor, and first level of its readings' names."""

    @property
    def quantity(self) -> str:
        """What is measured, in words."""

    @property
    def range(self) -> tuple[float, float]:
        """Least and greatest value that can be, in the unit."""

    @property
    def largest_step(self) -> float | None:
        """Largest plausible change between two readings; None for any."""

    @property
    def interval_s(self) -> float:
        """Time between readings in quiet weather."""

    @property
    def warm_up_s(self) -> float:
        """How long after opening the first reading means something."""

    @property
    def claims(self) -> tuple[str, ...]:
        """What it needs for itself: ``GPIO17``, ``SPI0.0 channel 2``, ``SPI0.1``."""


class Claiming(Known, Protocol):
    """Settings of one sensor, whatever its kind."""

    @property
    def kind(self) -> str:
        """Name of the driver."""

    @property
    def senml_unit(self) -> str | None:
        """SenML unit of the readings; None for a truth value."""

    @property
    def shares(self) -> Mapping[str, str]:
        """What it has in common with others by place, who must describe it alike."""


@dataclass(frozen=True)
class Hardware:
    """What drivers are opened with; the wiring chooses each part.

    Attributes:
        pin_factory: gpiozero's way to the pins.
        sleep: Waits some seconds between samples of one reading.
        recall: A value that `Sensor.state` gave in an earlier life, or None.
        on_event: Called with a sensor's name at once when something happened that
            should not wait for its interval. Runs in the thread of the pins: it
            must be quick.
        buses: I2C, serial ports, files of the kernel and gpsd.
        lines: The kernel's own events of pins; None uses those of `pin_factory`.
    """

    pin_factory: Any
    sleep: Callable[[float], object]
    recall: Callable[[str], str | None] = lambda _: None
    on_event: Callable[[str], object] = lambda _: None
    buses: Buses = field(default_factory=NoBuses)
    lines: Lines | None = None


class Sensor(Known, Protocol):
    """A sensor that is configured, though perhaps not answering."""

    @property
    def unit(self) -> str | None:
        """SenML unit of the readings; None for a truth value."""

    def read(self, now_s: float) -> list[Reading]:
        """Take one reading of each of its quantities.

        One thread reads a sensor at a time; sensors may be read side by side.

        Args:
            now_s: Unix time, for parts that need one.

        Raises:
            SensorError: There is no reading; try again later.
        """

    def state(self) -> dict[str, str]:
        """What to store in the same transaction as the last reading.

        Keys are unique on the node; `Hardware.recall` gives them back.
        """

    def close(self) -> None:
        """Give pins and bus back. A closed sensor is not read again."""


class Described:
    """The part of a sensor that repeats its settings, keeps no state and holds no bus.

    Attributes:
        name: Name of the sensor.
        quantity: What is measured.
        unit: SenML unit.
        range: What can be.
        largest_step: Largest plausible change.
        interval_s: Time between readings.
        warm_up_s: Time before the first good reading.
        claims: Pins and chips.
    """

    def __init__(self, settings: Claiming) -> None:
        self.name = settings.name
        self.quantity = settings.quantity
        self.unit = settings.senml_unit
        self.range = settings.range
        self.largest_step = settings.largest_step
        self.interval_s = settings.interval_s
        self.warm_up_s = settings.warm_up_s
        self.claims = settings.claims

    def state(self) -> dict[str, str]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing: buses belong to all."""


def tell(on_event: Callable[[str], object], name: str) -> None:
    """Tell of an event from the thread of the pins, and never raise there.

    An exception in that thread would end lgpio's only one, and with it the events
    of every pin, while the process looks healthy.
    """
    try:
        on_event(name)
    except Exception:  # noqa: BLE001 - see above; the event itself is counted
        _log.exception("telling of an event of sensor %s failed", name)


Opener = Callable[[], Sensor]

_REMEDY = "check that the pin is free, the bus is switched on and the user may use it"
_BUSY = (
    "stop who uses it; what systemd keeps of a stopped agent is free after "
    "'systemctl clean --what=fdstore edge-agent'"
)


class PendingSensor(Described):
    """Stands in for a sensor from the first failure to open it on.

    Attributes:
        error: Why it is not open; None once it is.
    """

    def __init__(self, settings: Claiming, opener: Opener) -> None:
        super().__init__(settings)
        self._opener = opener
        self._sensor: Sensor | None = None
        self.error: SensorError | None = None
        self.attempt()

    @property
    def opened(self) -> Sensor | None:
        """The sensor itself, when it is open."""
        return self._sensor

    def attempt(self) -> bool:
        """Try to open the sensor; whether it is open now."""
        try:
            self._sensor = self._opener()
        except SensorError as error:
            self.error = error
        except pin_errors() as error:
            is_busy = isinstance(error, OSError) and error.errno == errno.EBUSY
            self.error = SensorOpenError(
                self.name, f"cannot be opened: {error}", _BUSY if is_busy else _REMEDY
            )
        else:
            self.error = None
        return self._sensor is not None

    def read(self, now_s: float) -> list[Reading]:
        """Open the sensor if need be, then read it.

        Raises:
            SensorError: It does not open, or gives no reading.
        """
        if self._sensor is None and not self.attempt():
            raise self.error or SensorOpenError(self.name, "is not open", _REMEDY)
        assert self._sensor is not None  # noqa: S101 - attempt() said so
        return self._sensor.read(now_s)

    def state(self) -> dict[str, str]:
        """The sensor's state; nothing while it is not open."""
        return {} if self._sensor is None else self._sensor.state()

    def close(self) -> None:
        if self._sensor is not None:
            self._sensor.close()


@dataclass(frozen=True)
class SlowSettings(SensorSettings):
    """Keys of a sensor that is read every five minutes unless told otherwise.

    Must stand first among several bases, or its default is lost.
    """

    interval_s: float = key(
        Rule("Time between readings.", unit="s", low=1, high=3600), 300.0
    )
