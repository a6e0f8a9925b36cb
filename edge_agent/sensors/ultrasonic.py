"""Stream level from an ultrasonic ranger above it, with trigger and echo pins.

For modules of the HC-SR04 kind; use a waterproof one (JSN-SR04T) outdoors. The echo
of a 5 V module needs a voltage divider. gpiozero's own `DistanceSensor` pings
continuously from a thread; this driver pings only when it is read, and uses the edge
times of the pin library, which under lgpio are those of the kernel.

Not run on hardware. Rangers with a serial line are steadier: prefer those on a Pi.

Source: HC-SR04 user guide (10 us trigger, echo as long as the flight); speed of
sound in dry air, 331.3 m/s sqrt(T / 273.15 K).
"""

import math
import statistics
import threading
from dataclasses import dataclass
from typing import ClassVar

from gpiozero import InputDevice, OutputDevice

from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    SensorBusError,
    SensorRangeError,
    SensorSettings,
    pin_error_types,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

MAX_DISTANCE_M = 4.5
MAX_SPREAD_M = 0.1

_TRIGGER_S, _PAUSE_S, _ECHO_TIMEOUT_S = 10e-6, 0.06, 0.1
_SHARE_NEEDED = 0.6
_BELOW_BED_M = 0.3
_ONE_AT_A_TIME = threading.Lock()  # a ranger receives the pings of its neighbour


@dataclass(frozen=True)
class UltrasonicSettings(SensorSettings):
    """Keys of kind ``ultrasonic``."""

    quantity: ClassVar[str] = "water level"
    senml_unit: ClassVar[str | None] = "m"
    range: ClassVar[tuple[float, float]] = (-_BELOW_BED_M, MAX_DISTANCE_M)
    largest_step: ClassVar[float | None] = 1.0
    is_noisy: ClassVar[bool] = True

    trigger_pin: int = key(KeyRule("BCM number of the trigger's pin.", low=0, high=27))
    echo_pin: int = key(KeyRule("BCM number of the echo's pin.", low=0, high=27))
    mount_m: float = key(
        KeyRule("Height over the bed, where the level is 0.", "m", low=0.3, high=4.0)
    )
    nearest_m: float = key(
        KeyRule("Distance under which it is blind.", unit="m", low=0.02, high=0.6), 0.25
    )
    air_c: float = key(
        KeyRule(
            "Temperature of the air, for the speed of sound: 5 degrees are 0.9 %.",
            unit="Cel", low=-30, high=50,
        ),
        15.0,
    )  # fmt: skip
    pings: int = key(
        KeyRule("Pings in one reading; the median counts.", low=3, high=15), 5
    )

    def __post_init__(self) -> None:
        if self.nearest_m >= self.mount_m:
            rule = f"less than mount_m ({self.mount_m:g})"
            raise FieldError("nearest_m", rule, self.nearest_m, "mount it higher")
        if self.trigger_pin == self.echo_pin:
            raise FieldError("echo_pin", "other than trigger_pin", self.echo_pin)

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"GPIO{self.trigger_pin}", f"GPIO{self.echo_pin}")


def speed_of_sound(air_c: float) -> float:
    """Speed of sound in air."""
    return 331.3 * math.sqrt(1 + air_c / 273.15)


def decode_distance(echo_s: float, air_c: float) -> float:
    """Distance in metres from the duration of an echo, there and back."""
    return echo_s * speed_of_sound(air_c) / 2


class Ultrasonic(BaseSensor):
    """Level over the bed, and the measured distance."""

    def __init__(self, settings: UltrasonicSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._sleep = hardware.sleep
        self._ticks_diff = hardware.pin_factory.ticks_diff
        self._rise: float | None = None
        self._echo_s: float | None = None
        self._echo_done = threading.Event()
        self._trigger = OutputDevice(
            settings.trigger_pin, pin_factory=hardware.pin_factory
        )
        try:
            self._echo = InputDevice(
                settings.echo_pin, pull_up=False, pin_factory=hardware.pin_factory
            )
        except pin_error_types():
            self._trigger.close()
            raise
        self._echo.pin.edges = "both"
        self._echo.pin.bounce = None
        self._echo.pin.when_changed = self._edge

    def read(self, now_s: float) -> list[Reading]:
        """Level now.

        Raises:
            SensorBusError: It does not answer.
            SensorRangeError: Its echoes disagree, or the level is impossible.
        """
        try:
            distance_m = self._distance_m()
        except pin_error_types() as error:
            if isinstance(error, SensorBusError):
                raise
            raise self._silent(f"cannot be read: {error}") from error
        s = self._settings
        level_m = s.mount_m - distance_m
        if distance_m < s.nearest_m:
            raise SensorRangeError(
                self.name,
                f"measures an obstacle at {distance_m:.2f} m, "
                f"nearer than {s.nearest_m:g} m",
                "remove the obstacle; the ranger cannot measure a flood this high",
            )
        if level_m < -_BELOW_BED_M:
            raise SensorRangeError(
                self.name,
                f"measures {-level_m:.2f} m below the bed",
                "measure mount_m again, and look for a scoured bed",
            )
        return [
            Reading(self.name, "m", round(level_m, 4)),
            Reading(f"{self.name}/distance", "m", round(distance_m, 4)),
        ]

    def close(self) -> None:
        self._echo.pin.when_changed = None
        self._trigger.close()
        self._echo.close()

    def _distance_m(self) -> float:
        s = self._settings
        needed = math.ceil(_SHARE_NEEDED * s.pings)
        distances_m: list[float] = []
        for number in range(s.pings):
            if number:
                self._sleep(_PAUSE_S)
            echo_s = self._ping()
            if echo_s is not None:
                distances_m.append(decode_distance(echo_s, s.air_c))
            if len(distances_m) + s.pings - number - 1 < needed:
                raise self._silent(
                    f"receives no echo: {len(distances_m)} of {number + 1} pings"
                )
        middle_m = statistics.median(distances_m)
        spread_m = statistics.median(abs(one - middle_m) for one in distances_m)
        if spread_m > MAX_SPREAD_M:
            raise SensorRangeError(
                self.name,
                f"receives echoes that differ by {spread_m:.2f} m",
                "look for spray, branches and a loose mount",
            )
        return middle_m

    def _ping(self) -> float | None:
        """Duration of one echo; None without an echo in range."""
        if self._echo.value:
            raise self._silent("has an echo that never ends")
        with _ONE_AT_A_TIME:
            self._reset()
            self._trigger.on()
            self._sleep(_TRIGGER_S)
            self._trigger.off()
            self._echo_done.wait(_ECHO_TIMEOUT_S)
        echo_s = self._echo_s
        if (
            echo_s is None
            or decode_distance(echo_s, self._settings.air_c) > MAX_DISTANCE_M
        ):
            return None
        return echo_s

    def _reset(self) -> None:
        self._rise = self._echo_s = None
        self._echo_done.clear()

    def _edge(self, ticks: float, level: int) -> None:
        """Called in the pin thread; must not raise."""
        if level:
            self._rise = ticks
        elif self._rise is not None:
            self._echo_s = self._ticks_diff(ticks, self._rise)
            self._echo_done.set()

    def _silent(self, reason: str) -> SensorBusError:
        return SensorBusError(
            self.name, reason, "check its supply, both pins and the echo's divider"
        )
