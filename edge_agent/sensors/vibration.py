"""Vibration counter: a piezo or reed element whose comparator gives pulses.

It counts how often the ground was shaken, for comparison with its own background;
it does not measure strength. One shock makes a train of pulses, which counts once.
"""

from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import BaseSensor, Hardware, SensorSettings
from edge_agent.sensors.errors import Health, SensorRangeError
from edge_agent.sensors.pulse_counter import (
    DeadTime,
    PersistentCounter,
    PulseInput,
    drain_pulses,
    open_pulse_source,
)
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading


@dataclass(frozen=True)
class VibrationSettings(SensorSettings):
    """Keys of kind ``vibration``."""

    quantity: ClassVar[str] = "shocks"
    senml_unit: ClassVar[str | None] = "count"
    range: ClassVar[tuple[float, float]] = (0.0, 72_000.0)  # an hour of 50 ms each
    largest_step: ClassVar[float | None] = None  # a debris flow begins at once

    pin: int = key(KeyRule("BCM number of the pin.", low=0, high=27))
    active_high: bool = key(
        KeyRule("Whether a pulse lifts the pin; else it pulls it to ground."), False
    )
    hold_ms: float = key(
        KeyRule(
            "Pulses within this time of a shock belong to it.",
            unit="ms", low=50, high=10_000,
        ),
        500.0,
    )  # fmt: skip

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"GPIO{self.pin}",)


class Vibration(BaseSensor):
    """Shocks since the last reading, and in total."""

    def __init__(self, settings: VibrationSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._hold = DeadTime(settings.hold_ms / 1000)
        self._counter = PersistentCounter(self.name, "shocks", hardware)
        self._was_active = False
        # no debounce: the pulses are shorter than a contact's bounce
        what = PulseInput(settings.pin, active_high=settings.active_high)
        self._pulses = open_pulse_source(
            what, self.name, hardware, self._counter.resume_token
        )

    def read(self, now_s: float) -> list[Reading]:
        """Shocks since the previous reading.

        Raises:
            SensorBusError: The pin cannot be read.
            SensorRangeError: The output stays active.
        """
        is_active, batch = drain_pulses(self.name, self._pulses)
        shocks = sum(self._hold.accept(time_s) for time_s in batch.times_s)
        self._counter.count += shocks
        stays_active = is_active and self._was_active and not batch.times_s
        self._was_active = is_active
        if stays_active:
            raise SensorRangeError(
                self.name,
                "stays active: no shock can be seen",
                "turn the threshold back, or look for a short in the cable",
                Health.STUCK,
            )
        return [Reading(self.name, "count", shocks, float(self._counter.count))]

    def state(self) -> dict[str, str]:
        """Count of the shocks in the last reading."""
        return self._counter.state(self._pulses.resume_token())

    def close(self) -> None:
        self._pulses.close()
