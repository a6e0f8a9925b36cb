"""A tipping-bucket rain gauge: a reed switch that closes once for each tip."""

import logging
import threading
from dataclasses import dataclass
from typing import ClassVar

from gpiozero import DigitalInputDevice

from edge_agent.sensors.base import Described, Hardware, SensorSettings, tell
from spatial_mqtt.envelope import Reading
from spatial_mqtt.settings import Rule, key

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RainGaugeSettings(SensorSettings):
    """Keys of kind ``rain-gauge``."""

    quantity: ClassVar[str] = "rain"
    senml_unit: ClassVar[str | None] = "mm"
    # the wettest hour of Japan, 153 mm, is the most that one reading may hold
    range: ClassVar[tuple[float, float]] = (0.0, 200.0)
    largest_step: ClassVar[float | None] = None

    pin: int = key(
        Rule("BCM number of the pin; the switch closes to ground.", low=0, high=27)
    )
    mm_per_tip: float = key(
        Rule("Rain in one tip, from the gauge's plate.", unit="mm", low=0.05, high=2),
        0.5,
    )
    debounce_ms: float = key(
        Rule(
            "Shortest closure that counts; less than half of the switch's own.",
            unit="ms", low=1, high=99,
        ),
        20.0,
    )  # fmt: skip

    @property
    def claims(self) -> tuple[str, ...]:
        """The pin."""
        return (f"GPIO{self.pin}",)


class RainGauge(Described):
    """Counts every tip; readings carry the rain since the last one, and since ever."""

    def __init__(self, settings: RainGaugeSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._mm_per_tip = settings.mm_per_tip
        self._on_event = hardware.on_event
        self._lock = threading.Lock()
        self._key = f"sensor.{settings.name}.tips"
        self._tips = self._read_tips = self._restored(hardware)
        self._device = DigitalInputDevice(
            settings.pin,
            pull_up=True,
            bounce_time=settings.debounce_ms / 1000,
            pin_factory=hardware.pin_factory,
        )
        self._device.when_activated = self._tip

    def read(self, now_s: float) -> list[Reading]:
        """Rain since the previous reading, and since the gauge's first day."""
        with self._lock:
            tips = self._tips
        new, self._read_tips = tips - self._read_tips, tips
        mm, total_mm = (round(n * self._mm_per_tip, 6) for n in (new, tips))
        return [Reading(self.name, "mm", mm, total_mm)]

    def state(self) -> dict[str, str]:
        """Tips that the last reading told of."""
        return {self._key: str(self._read_tips)}

    def close(self) -> None:
        """Stop counting."""
        self._device.close()

    def _restored(self, hardware: Hardware) -> int:
        stored = hardware.recall(self._key)
        if stored is None:
            return 0
        if not (stored.isascii() and stored.isdigit()):
            _log.warning(
                "%s must be a count, got %r; counting from 0", self._key, stored
            )
            return 0
        return int(stored)

    def _tip(self) -> None:
        with self._lock:
            self._tips += 1
        tell(self._on_event, self.name)
