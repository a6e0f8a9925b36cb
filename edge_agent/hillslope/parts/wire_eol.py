"""A tripwire between two resistors, on a channel of a converter."""

from edge_agent.hillslope.parts.adc import AdcPart
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.wire_eol import WireEolSettings


class WireEolPart(AdcPart):
    """Divides the reference as its resistors do, whole or cut."""

    def __init__(self, settings: WireEolSettings, bench: Bench) -> None:
        super().__init__(settings, bench)
        self._whole_v = settings.vref_v * settings.ratio_intact
        self._cut_v = settings.vref_v * settings.ratio_cut
        self._well_v = self._whole_v
        self._set(self._whole_v)

    @property
    def open_v(self) -> float:
        """The pull-up alone: the reference."""
        return self._vref_v

    def volts(self, state: SlopeState) -> float:
        """Whole until the slope cuts it."""
        return self._cut_v if state.wire_cut else self._whole_v
