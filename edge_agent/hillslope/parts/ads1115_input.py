"""An input of an ADS1115, whatever gives its voltage."""

from typing import ClassVar

from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.ads1115_chip import Ads1115Chip
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.i2c import I2cPart
from edge_agent.sensors.ads1115 import Ads1115Settings

_NOISE_V = 0.0005
_SUPPLY_V = 7.0


class Ads1115InputPart(I2cPart[Ads1115Chip]):
    """Holds a voltage on its input."""

    faults: ClassVar[frozenset[Fault]] = I2cPart.faults | {
        Fault.SATURATED,
        Fault.DISCONNECTED,
    }

    def __init__(self, settings: Ads1115Settings, bench: Bench) -> None:
        super().__init__(settings, bench, lambda: Ads1115Chip(bench.rng))
        self._channel = settings.channel
        self._rng = bench.rng

    def give(self, volts: float) -> None:
        """Hold a voltage, with the noise of the wires."""
        self._chip.volts[self._channel] = volts + self._rng.gauss(0, _NOISE_V)

    def fail(self, fault: Fault) -> None:
        """Break the chip, or what hangs on the input."""
        super().fail(fault)
        if fault in {Fault.SATURATED, Fault.DISCONNECTED}:
            self.give(_SUPPLY_V if fault is Fault.SATURATED else 0.0)
