"""A tripwire that ties a pin to ground until the slope cuts it."""

from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.wire import WireSettings


class WirePart(BreakablePart):
    """Holds the pin low while it is whole; a broken part stays as it is."""

    def __init__(self, settings: WireSettings, bench: Bench) -> None:
        super().__init__()
        self._pin = bench.pin(settings.pin)
        self._pin.hold(level=False)

    def move(self, state: SlopeState) -> None:
        """Break with the slope, or be strung anew."""
        if self.fault is not None:
            return
        if state.wire_cut:
            self._pin.let_go()
        else:
            self._pin.hold(level=False)
