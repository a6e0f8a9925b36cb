"""A pressure transmitter in the ground, and the shunt its current runs through."""

from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.adc import AdcPart
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.current_loop import FULL_MA, MOST_MA, ZERO_MA
from edge_agent.sensors.piezometer import PiezometerSettings

_UPSCALE_MA = 21.6


class PiezometerPart(AdcPart):
    """Drives the current of the pore pressure; upscale when its element breaks."""

    faults: ClassVar[frozenset[Fault]] = AdcPart.faults | {Fault.UPSCALE}

    def __init__(self, settings: PiezometerSettings, bench: Bench) -> None:
        super().__init__(settings, bench)
        self._settings = settings

    def volts(self, state: SlopeState) -> float:
        """What stands over the shunt; suction below the range reads its end."""
        s = self._settings
        kpa = min(max(state.pore_kpa, s.at_4ma_kpa), s.at_20ma_kpa)
        share = (kpa - s.at_4ma_kpa) / (s.at_20ma_kpa - s.at_4ma_kpa)
        return self._over_shunt(ZERO_MA + (FULL_MA - ZERO_MA) * share)

    def fail(self, fault: Fault) -> None:
        """Break the transmitter, or what every channel may have."""
        super().fail(fault)
        if fault is Fault.UPSCALE:
            self._set(self._over_shunt(min(_UPSCALE_MA, MOST_MA)))

    def _over_shunt(self, loop_ma: float) -> float:
        return loop_ma / 1000 * self._settings.shunt_ohm
