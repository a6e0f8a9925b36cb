"""Something that gives a voltage, on an input of an ADS1115."""

from edge_agent.hillslope.parts.ads1115_input import Ads1115InputPart
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.following import followed, number_for
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.ads1115_voltage import Ads1115VoltageSettings


class Ads1115VoltagePart(Ads1115InputPart):
    """Follows the slope in the installer's unit."""

    def __init__(self, settings: Ads1115VoltageSettings, bench: Bench) -> None:
        super().__init__(settings, bench)
        self._settings = settings

    def volts(self, state: SlopeState) -> float:
        """The voltage for what the slope is."""
        return number_for(self._settings, followed(self._settings, state))
