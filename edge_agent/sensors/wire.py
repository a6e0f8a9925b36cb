"""A tripwire across a gully: a flow or a slide cuts it, and the pin rises."""

from dataclasses import dataclass
from typing import ClassVar

from gpiozero import DigitalInputDevice

from edge_agent.sensors.base import Described, Hardware, SensorSettings, tell
from spatial_mqtt.envelope import Reading
from spatial_mqtt.settings import Rule, key

_DEBOUNCE_S = 0.05


@dataclass(frozen=True)
class WireSettings(SensorSettings):
    """Keys of kind ``wire``."""

    quantity: ClassVar[str] = "wire is cut"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    pin: int = key(
        Rule("BCM number of the pin; the wire ties it to ground.", low=0, high=27)
    )

    @property
    def claims(self) -> tuple[str, ...]:
        """The pin."""
        return (f"GPIO{self.pin}",)


class Wire(Described):
    """True when cut. A pulled connector looks the same, which is the safe side."""

    def __init__(self, settings: WireSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._on_event = hardware.on_event
        self._device = DigitalInputDevice(
            settings.pin,
            pull_up=True,
            bounce_time=_DEBOUNCE_S,
            pin_factory=hardware.pin_factory,
        )
        self._device.when_activated = self._changed
        self._device.when_deactivated = self._changed

    def read(self, now_s: float) -> list[Reading]:
        """Whether the wire is cut now."""
        return [Reading(self.name, None, not self._device.is_active)]

    def close(self) -> None:
        """Give the pin back."""
        self._device.close()

    def _changed(self) -> None:
        tell(self._on_event, self.name)
