"""An input of an ADS1115, whatever gives its voltage."""

from typing import ClassVar

from edge_agent.hillslope.chips.ads1115 import Ads1115Chip
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.i2c import I2cPart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.ads1115 import Ads1115Settings

_SUPPLY_V = 7.0
_NOISE_V, _LOOSE_CONTACT_V = 0.0005, 0.6
_AT_FAULT_V = {Fault.SATURATED: _SUPPLY_V, Fault.DISCONNECTED: 0.0, Fault.SHORTED: 0.0}


class Ads1115InputPart(I2cPart[Ads1115Chip]):
    """Holds a voltage on its input."""

    faults: ClassVar[frozenset[Fault]] = I2cPart.faults | {*_AT_FAULT_V, Fault.NOISY}

    def __init__(self, settings: Ads1115Settings, bench: Bench) -> None:
        super().__init__(settings, bench, lambda: Ads1115Chip(bench.rng))
        self._channel = settings.channel

    def volts(self, state: SlopeState) -> float:
        """What hangs on the input gives where the slope is."""
        raise NotImplementedError

    def move(self, state: SlopeState) -> None:
        """Follow the slope."""
        if self.fault in {None, Fault.NOISY}:
            self.give(self.volts(state))

    def give(self, volts: float) -> None:
        """Hold a voltage."""
        self._chip.volts[self._channel] = volts

    def fail(self, fault: Fault) -> None:
        """Break the chip, or what hangs on the input."""
        super().fail(fault)
        if fault in _AT_FAULT_V:
            self.give(_AT_FAULT_V[fault])
        noise_v = _LOOSE_CONTACT_V if fault is Fault.NOISY else _NOISE_V
        self._chip.noise_v[self._channel] = noise_v

    def mend(self) -> None:
        """Replace the chip, and fasten the wires."""
        super().mend()
        self._chip.noise_v[self._channel] = _NOISE_V
