"""Tipping-bucket rain gauge: a reed switch that closes once per tip."""

import math
from dataclasses import dataclass
from typing import ClassVar

from edge_agent.sensors.base import BaseSensor, Hardware, SensorSettings
from edge_agent.sensors.errors import Health, SensorRangeError
from edge_agent.sensors.pulse_counter import (
    PersistentCounter,
    PulseBatch,
    PulseInput,
    PulseRateLimit,
    drain_pulses,
    open_pulse_source,
)
from service_runtime.settings import KeyRule, key
from slope_science.quality import RAIN_MM
from spatial_mqtt.senml import Reading


@dataclass(frozen=True)
class RainGaugeSettings(SensorSettings):
    """Keys of kind ``rain-gauge``."""

    quantity: ClassVar[str] = "rain"
    senml_unit: ClassVar[str | None] = "mm"
    # a report may hold the rain of many hours; triage limits it by their number
    range: ClassVar[tuple[float, float]] = (RAIN_MM.fail.low, RAIN_MM.fail.high)
    largest_step: ClassVar[float | None] = None

    pin: int = key(
        KeyRule("BCM number of the pin; the switch closes to ground.", low=0, high=27)
    )
    mm_per_tip: float = key(
        KeyRule(
            "Rain in one tip, from the gauge's plate.", unit="mm", low=0.05, high=2
        ),
        0.5,
    )
    debounce_ms: float = key(
        KeyRule(
            "Shortest closure that counts; less than half of the switch's own.",
            unit="ms", low=1, high=99,
        ),
        20.0,
    )  # fmt: skip
    most_mm_per_min: float = key(
        KeyRule(
            "Heaviest rain there is; beyond it the switch flaps, and does not count.",
            unit="mm", low=2, high=50,
        ),
        10.0,
    )  # fmt: skip

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"GPIO{self.pin}",)

    @property
    def max_tips_per_min(self) -> int:
        """Tips per minute in the heaviest rain."""
        return math.ceil(self.most_mm_per_min / self.mm_per_tip)


class RainGauge(BaseSensor):
    """Counts every tip; readings carry the rain since the last one and the total.

    Closures faster than any rain are counted separately, and reported as the
    sensor's health.
    """

    def __init__(self, settings: RainGaugeSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._mm_per_tip = settings.mm_per_tip
        self._limit = PulseRateLimit(settings.max_tips_per_min)
        self._counter = PersistentCounter(self.name, "tips", hardware)
        self._health: str = Health.OK
        self._was_closed = False
        what = PulseInput(settings.pin, settings.debounce_ms / 1000)
        self._pulses = open_pulse_source(
            what, self.name, hardware, self._counter.resume_token
        )

    def read(self, now_s: float) -> list[Reading]:
        """Rain since the previous reading, and in total.

        Raises:
            SensorBusError: The pin cannot be read.
            SensorRangeError: The switch stays closed, so no tip is detected.
        """
        is_closed, batch = drain_pulses(self.name, self._pulses)
        tips, refused = self._classify(batch)
        self._counter.count += tips
        stays_closed = is_closed and self._was_closed and not batch.times_s
        self._was_closed = is_closed
        if stays_closed:
            raise SensorRangeError(
                self.name,
                "stays closed: no tip can be seen",
                "look for a bucket that hangs, and for a short in the cable",
                Health.STUCK,
            )
        mm, total_mm = (
            round(n * self._mm_per_tip, 6) for n in (tips, self._counter.count)
        )
        return [Reading(self.name, "mm", mm, total_mm), *self._flaps(refused)]

    def state(self) -> dict[str, str]:
        """Count of the tips in the last reading."""
        return self._counter.state(self._pulses.resume_token())

    def close(self) -> None:
        self._pulses.close()

    def _classify(self, batch: PulseBatch) -> tuple[int, int]:
        """Number of tips, and of refused closures."""
        tips = sum(self._limit.accept(time_s) for time_s in batch.times_s)
        refused = len(batch.times_s) - tips
        if refused:  # closures without a time are classified like those around them
            return tips, refused + batch.untimed_count
        return tips + batch.untimed_count, 0

    def _flaps(self, refused: int) -> list[Reading]:
        """Reading of the refused closures, and the health if it changed."""
        readings = [Reading(f"{self.name}/refused", "count", refused)] * bool(refused)
        max_per_min = self._limit.max_per_min
        flaps = f"{Health.FLAPS}: more than {max_per_min} closures a minute"
        health = flaps if refused else Health.OK.value
        if health != self._health:
            self._health = health
            readings.append(Reading(f"{self.name}/health", None, health))
        return readings
