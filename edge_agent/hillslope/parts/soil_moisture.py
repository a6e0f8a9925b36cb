"""A capacitive probe in the soil, on a channel of a converter."""

from edge_agent.hillslope.parts.adc import AdcPart
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.soil_moisture import SoilMoistureSettings


class SoilMoisturePart(AdcPart):
    """Gives the voltage of the soil's water content: the calibration, backwards."""

    def __init__(self, settings: SoilMoistureSettings, bench: Bench) -> None:
        super().__init__(settings, bench)
        self._settings = settings

    def volts(self, state: SlopeState) -> float:
        """What the probe gives."""
        s = self._settings
        return s.dry_v + (s.wet_v - s.dry_v) * state.vwc / s.porosity
