"""What stands before a converter's channel, whatever it measures."""

from typing import ClassVar

from edge_agent.hillslope.chips.mcp3x08 import Mcp3x08
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.adc import AdcSettings

_NOISE_V = 0.001
_LOOSE_CONTACT_V = 0.6
_BITS = {"MCP3008": 10, "MCP3208": 12}


class AdcPart(BreakablePart):
    """A voltage on a channel; the death of the chip takes all its channels along."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.NOISY,
        Fault.SHORTED,
        Fault.DISCONNECTED,
        Fault.SATURATED,
        Fault.IO_ERROR,
    })

    def __init__(self, settings: AdcSettings, bench: Bench) -> None:
        super().__init__()
        self._channel = settings.channel
        self._vref_v = settings.vref_v
        key = ("SPI0", settings.device)
        if key not in bench.chips:
            bench.chips[key] = Mcp3x08(
                settings.device,
                bench.rng,
                bench.pin_factory,
                _BITS[settings.chip],
                settings.vref_v,
            )
        self._chip: Mcp3x08 = bench.chips[key]
        self._well_v = 0.0
        self._chip.noise_v[self._channel] = _NOISE_V

    def volts(self, state: SlopeState) -> float:
        """What the sensor gives where the slope is."""
        raise NotImplementedError

    @property
    def open_v(self) -> float:
        """What the channel reads with the cable off: a resistor pulls it down."""
        return 0.0

    def move(self, state: SlopeState) -> None:
        """Follow the slope."""
        if self.fault in {None, Fault.NOISY}:
            self._well_v = self.volts(state)
            self._set(self._well_v)

    def fail(self, fault: Fault) -> None:
        """Break the sensor, its cable, the chip or the bus."""
        self.mend()
        super().fail(fault)
        self._chip.is_dead = fault is Fault.DEAD
        self._chip.fail_bus(is_failing=fault is Fault.IO_ERROR)
        if fault is Fault.SHORTED:
            self._set(0.0)
        elif fault is Fault.DISCONNECTED:
            self._set(self.open_v)
        elif fault is Fault.SATURATED:
            self._set(self._vref_v + 0.3)
        elif fault is Fault.NOISY:
            self._chip.noise_v[self._channel] = _LOOSE_CONTACT_V

    def mend(self) -> None:
        """Make everything whole; the sensor gives what it last gave when well."""
        super().mend()
        self._chip.is_dead = False
        self._chip.fail_bus(is_failing=False)
        self._chip.noise_v[self._channel] = _NOISE_V
        self._set(self._well_v)

    def _set(self, volts: float) -> None:
        self._chip.volts[self._channel] = volts
