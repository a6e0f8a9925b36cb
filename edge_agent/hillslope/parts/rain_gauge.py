"""A tipping bucket: its switch closes to ground once for each tip."""

from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.contact import ContactPart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.rain_gauge import RainGaugeSettings


class RainGaugePart(ContactPart):
    """Tips as the rain fills it."""

    def __init__(self, settings: RainGaugeSettings, bench: Bench) -> None:
        super().__init__(settings.pin, bench)
        self._mm_per_tip = settings.mm_per_tip
        self._tips: int | None = None

    def move(self, state: SlopeState) -> None:
        """Tip for the rain since the last call."""
        tips = int(state.rain_mm / self._mm_per_tip + 1e-9)
        before = tips if self._tips is None else self._tips
        self._tips = max(tips, before)
        self.close_times(self._tips - before, state.time_s)
