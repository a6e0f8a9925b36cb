"""Trip wire across a gully, which a flow or slide cuts: on a pin, or on a converter.

On a pin, the wire holds the pin at ground and the pin rises when the wire is cut. On
a converter, the wire ends in a resistor, and another resistor sits across its two
conductors in the plug; a pull-up feeds them from the reference. The ratio of the
channel then separates more states than a switch can::

    intact           plug and end resistors in parallel
    cut              the plug's resistor alone
    plug pulled      open: the channel reads the reference
    shorted          nearly 0 Ohm: the channel reads ground, or the chip is dead

Mount the plug where a slide pulls on the wire and not on the plug.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from gpiozero import DigitalInputDevice

from edge_agent.sensors.analog import AdcChannel, AdcSettings
from edge_agent.sensors.base import (
    BaseSensor,
    Hardware,
    Health,
    SensorError,
    SensorRangeError,
    SensorSettings,
    notify_safely,
)
from service_runtime.errors import FieldError
from service_runtime.settings import KeyRule, key
from spatial_mqtt.senml import Reading

_DEBOUNCE_S = 0.05


@dataclass(frozen=True)
class TripWireSettings(SensorSettings):
    """Keys of kind ``wire``."""

    quantity: ClassVar[str] = "wire is cut"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    pin: int = key(
        KeyRule("BCM number of the pin; the wire ties it to ground.", low=0, high=27)
    )

    @property
    def claims(self) -> tuple[str, ...]:
        return (f"GPIO{self.pin}",)


class TripWire(BaseSensor):
    """True when cut. A pulled connector reads the same, which is fail-safe."""

    def __init__(self, settings: TripWireSettings, hardware: Hardware) -> None:
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
        self._device.close()

    def _changed(self) -> None:
        notify_safely(self._on_event, self.name)


class ChangePoller:
    """Thread that polls a value and reports its changes.

    Args:
        name: Of the sensor, for the thread and the log.
        poll: Returns the current value; must not raise.
        on_change: Called in the thread after a change; must not raise.
        period_s: Polling interval.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[], object],
        on_change: Callable[[], object],
        period_s: float,
    ) -> None:
        self._poll = poll
        self._on_change = on_change
        self._period_s = period_s
        self._last: object = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"watch {name}", daemon=True
        )

    def start(self) -> None:
        """Poll once, then after each period."""
        self._last = self._poll()
        self._thread.start()

    def poll_once(self) -> None:
        """Poll once."""
        value = self._poll()
        if value != self._last:
            self._last = value
            self._on_change()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.poll_once()


MIN_STATE_GAP = 0.1
"""Minimum distance between two states, as a fraction of the reference."""

_MIN_OHM, _MAX_OHM = 100, 1_000_000


class TripWireState(Enum):
    """State of the wire."""

    INTACT = "intact"
    CUT = "cut"
    REMOVED = "removed"
    SHORTED = "shorted"


@dataclass(frozen=True)
class TripWireEolSettings(AdcSettings):
    """Keys of kind ``wire-eol``."""

    quantity: ClassVar[str] = "wire is cut"
    senml_unit: ClassVar[str | None] = None
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    warm_up_s: ClassVar[float] = 0.0

    pull_up_ohm: float = key(
        KeyRule("From the reference to the channel.", "Ohm", _MIN_OHM, _MAX_OHM), 4700.0
    )
    plug_ohm: float = key(
        KeyRule("Across the wire in its plug.", "Ohm", _MIN_OHM, _MAX_OHM), 10_000.0
    )
    end_ohm: float = key(
        KeyRule("Across the wire at its far end.", "Ohm", _MIN_OHM, _MAX_OHM), 4700.0
    )
    watch_s: float = key(
        KeyRule("Time between two checks for a cut.", unit="s", low=0.1, high=60), 0.5
    )

    def __post_init__(self) -> None:
        intact, cut = self.ratio_intact, self.ratio_cut
        if min(intact, cut - intact, 1 - cut) < MIN_STATE_GAP:
            raise FieldError(
                "end_ohm",
                f"such that the states lie {MIN_STATE_GAP:g} of the reference apart",
                f"intact {intact:.2f}, cut {cut:.2f}",
                "4700, 10000 and 4700 Ohm do",
            )

    @property
    def ratio_intact(self) -> float:
        """Fraction of the reference with an intact wire."""
        both_ohm = 1 / (1 / self.plug_ohm + 1 / self.end_ohm)
        return both_ohm / (both_ohm + self.pull_up_ohm)

    @property
    def ratio_cut(self) -> float:
        """Fraction of the reference with only the plug's resistor."""
        return self.plug_ohm / (self.plug_ohm + self.pull_up_ohm)


def classify_ratio(ratio: float, settings: TripWireEolSettings) -> TripWireState:
    """The state whose fraction of the reference is nearest."""
    levels = {
        TripWireState.SHORTED: 0.0,
        TripWireState.INTACT: settings.ratio_intact,
        TripWireState.CUT: settings.ratio_cut,
        TripWireState.REMOVED: 1.0,
    }
    return min(levels, key=lambda state: abs(levels[state] - ratio))


def decode_loop_ohm(ratio: float, settings: TripWireEolSettings) -> float:
    """Resistance between the conductors; infinite when nothing is plugged in."""
    if ratio >= 1:
        return math.inf
    return settings.pull_up_ohm * ratio / (1 - ratio)


class TripWireEol(BaseSensor):
    """True when cut; a pulled plug and a short raise errors."""

    def __init__(self, settings: TripWireEolSettings, hardware: Hardware) -> None:
        super().__init__(settings)
        self._settings = settings
        self._on_event = hardware.on_event
        self._converter = AdcChannel(settings, hardware)
        self._poller = ChangePoller(
            self.name, self._poll, self._changed, settings.watch_s
        )
        self._poller.start()

    def read(self, now_s: float) -> list[Reading]:
        """Whether the wire is cut now, and its loop resistance.

        Raises:
            SensorBusError: The bus failed.
            SensorRangeError: The wire is unplugged or shorted, or the noise too high.
        """
        ratio = self._converter.ratio()
        state = classify_ratio(ratio, self._settings)
        if state is TripWireState.REMOVED:
            raise SensorRangeError(
                self.name,
                "has no plug: nothing is connected to the channel",
                "plug the wire in; see whether something pulled on it",
                Health.DISCONNECTED,
            )
        if state is TripWireState.SHORTED:
            raise SensorRangeError(
                self.name,
                f"is shorted: {decode_loop_ohm(ratio, self._settings):.0f} Ohm",
                "look for a crushed cable, or for a converter without power",
                Health.SHORTED,
            )
        ohm = round(decode_loop_ohm(ratio, self._settings), 1)
        return [
            Reading(self.name, None, state is TripWireState.CUT),
            Reading(f"{self.name}/loop", "Ohm", ohm),
        ]

    def close(self) -> None:
        self._poller.close()
        self._converter.close()

    def _poll(self) -> object:
        try:
            return classify_ratio(self._converter.ratio(), self._settings)
        except SensorError as error:
            return type(error)

    def _changed(self) -> None:
        notify_safely(self._on_event, self.name)
