"""A capacitive probe in the soil, on a channel of a converter."""

from edge_agent.hillslope.chips import Mcp3208
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.soil_moisture import SoilMoistureSettings

_NOISE_V = 0.002


class SoilMoisturePart(BreakablePart):
    """Gives the voltage of the soil's water content; death takes the chip along."""

    def __init__(self, settings: SoilMoistureSettings, bench: Bench) -> None:
        super().__init__()
        self._settings = settings
        self._rng = bench.rng
        key = ("SPI0", settings.device)
        if key not in bench.chips:
            bench.chips[key] = Mcp3208(
                settings.device, bench.rng, bench.pin_factory, settings.vref_v
            )
        self._chip: Mcp3208 = bench.chips[key]

    def move(self, state: SlopeState) -> None:
        """Follow the water content: the calibration, backwards."""
        if self.fault is not None:
            return
        s = self._settings
        exact_v = s.dry_v + (s.wet_v - s.dry_v) * state.vwc / s.porosity
        self._chip.volts[s.channel] = exact_v + self._rng.gauss(0, _NOISE_V)

    def fail(self, fault: Fault) -> None:
        """Break the probe, or the chip."""
        super().fail(fault)
        self._chip.is_dead = fault is Fault.DEAD

    def mend(self) -> None:
        """Make both whole."""
        super().mend()
        self._chip.is_dead = False
