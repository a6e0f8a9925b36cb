"""A 4-20 mA transmitter and its shunt, on an input of an ADS1115."""

from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.ads1115_input import Ads1115InputPart
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.following import followed
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.ads1115_current import Ads1115CurrentSettings
from edge_agent.sensors.current_loop import FULL_MA, ZERO_MA

_UPSCALE_MA = 21.6


class Ads1115CurrentPart(Ads1115InputPart):
    """Drives the current for what the slope is."""

    faults: ClassVar[frozenset[Fault]] = Ads1115InputPart.faults | {Fault.UPSCALE}

    def __init__(self, settings: Ads1115CurrentSettings, bench: Bench) -> None:
        super().__init__(settings, bench)
        self._settings = settings

    def volts(self, state: SlopeState) -> float:
        """What stands over the shunt."""
        s = self._settings
        full = (followed(s, state) - s.at_4ma) / (s.at_20ma - s.at_4ma)
        return self._over_shunt(ZERO_MA + (FULL_MA - ZERO_MA) * full)

    def fail(self, fault: Fault) -> None:
        """Break the transmitter, or what every input may have."""
        super().fail(fault)
        if fault is Fault.UPSCALE:
            self.give(self._over_shunt(_UPSCALE_MA))

    def _over_shunt(self, loop_ma: float) -> float:
        return loop_ma / 1000 * self._settings.shunt_ohm
