"""A sensor that could not be opened yet: each reading tries again."""

import errno
from collections.abc import Callable

from edge_agent.sensors.base import Claiming, Described, Sensor
from edge_agent.sensors.errors import SensorError, SensorOpenError, pin_errors
from spatial_mqtt.envelope import Reading

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
        """Close the sensor if it is open."""
        if self._sensor is not None:
            self._sensor.close()
