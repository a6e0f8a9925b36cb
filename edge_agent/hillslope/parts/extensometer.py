"""A string across a crack, and the potentiometer it turns."""

from edge_agent.hillslope.parts.adc import AdcPart
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.extensometer import ExtensometerSettings

_MOUNTED = 0.1  # how far the string was out at the start, of its travel


class ExtensometerPart(AdcPart):
    """Runs out as the slope moves, and no farther than it can."""

    def __init__(self, settings: ExtensometerSettings, bench: Bench) -> None:
        super().__init__(settings, bench)
        self._settings = settings

    def volts(self, state: SlopeState) -> float:
        """What the potentiometer gives."""
        s = self._settings
        out = min(_MOUNTED + state.displacement_mm / s.travel_mm, 1.0)
        return s.home_v + (s.full_v - s.home_v) * out
