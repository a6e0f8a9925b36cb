"""A vibration element: each shock makes a train of pulses."""

from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.contact import ContactPart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.vibration import VibrationSettings

_PULSES, _GAP_S = 4, 0.01


class VibrationPart(ContactPart):
    """Shakes with the slope."""

    def __init__(self, settings: VibrationSettings, bench: Bench) -> None:
        super().__init__(settings.pin, bench, active_high=settings.active_high)
        self._shocks: int | None = None

    def move(self, state: SlopeState) -> None:
        """Shake for the shocks since the last call."""
        shocks = state.vibration_pulses
        before = shocks if self._shocks is None else self._shocks
        self._shocks = max(shocks, before)
        self.close_times(self._shocks - before, state.time_s)

    def pulse(self) -> None:
        """A train of pulses."""
        for _ in range(_PULSES):
            super().pulse()
            self._factory.now_s += _GAP_S
