"""The two clocks of a Manager."""

from collections.abc import Callable
from dataclasses import dataclass

from spatial_mqtt.pulse import Pulse


@dataclass(frozen=True)
class Clocks:
    """Time.

    Attributes:
        pulse: Monotonic seconds, and who listens to our loop.
        wall_ms: Milliseconds since 1970.
    """

    pulse: Pulse
    wall_ms: Callable[[], int]

    def mono_s(self) -> float:
        """Monotonic seconds."""
        return self.pulse.clock()
