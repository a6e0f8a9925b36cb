"""Base of the simulated parts: their protocol, their wiring, and scaled readings."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from edge_agent.sensors.generic_probe import ProbeSettings, ScaledSettings
from edge_agent.simulator.buses import SimulatedBuses
from edge_agent.simulator.faults import Fault
from edge_agent.simulator.pins import SlopeFactory, WiredPin
from edge_agent.simulator.slope import SlopeState


@dataclass(frozen=True)
class Bench:
    """What parts are wired to.

    Attributes:
        pin_factory: The pins and SPI.
        rng: Where noise comes from.
        buses: I2C, serial ports, files and gpsd.
        chips: Chips that several sensors share, by a key of the part's choice.
    """

    pin_factory: SlopeFactory
    rng: random.Random
    buses: SimulatedBuses
    chips: dict[object, Any] = field(default_factory=dict)

    def pin(self, number: int) -> WiredPin:
        """The pin of a BCM number."""
        pin: WiredPin = self.pin_factory.pin(number)
        return pin


class Part(Protocol):
    """The other end of one sensor's wires."""

    @property
    def faults(self) -> frozenset[Fault]:
        """The ways in which it can be broken."""

    def move(self, state: SlopeState) -> None:
        """Bring it to where the slope is.

        What counts, such as rain, counts from the first call on; a slope that
        went back in time adds nothing.
        """

    def fail(self, fault: Fault) -> None:
        """Break it, in one of its `faults`."""

    def mend(self) -> None:
        """Replace it; a chip comes up as after power-on."""


Connect = Callable[[Any, Bench], Part]
"""Makes the part of a sensor from its settings and wires it to a bench."""


class BreakablePart:
    """The part of a part that remembers what is wrong with it.

    Attributes:
        faults: The ways in which it can be broken.
        fault: What is wrong; None when it is well.
    """

    faults: ClassVar[frozenset[Fault]] = frozenset({Fault.DEAD, Fault.STUCK})

    def __init__(self) -> None:
        self.fault: Fault | None = None

    def fail(self, fault: Fault) -> None:
        """Break it."""
        self.fault = fault

    def mend(self) -> None:
        """Make it whole."""
        self.fault = None


_SEEN: Mapping[str, Callable[[SlopeState], float]] = {
    "/": lambda state: state.vwc,
    "/100": lambda state: state.vwc * 100,
    "%RH": lambda state: state.air.humidity_pct,
    "Cel": lambda state: state.temp_c,
    "Pa": lambda state: state.pore_kpa * 1000,
    "deg": lambda state: state.tilt_x_deg,
    "hPa": lambda state: state.pore_kpa * 10,
    "m": lambda state: state.groundwater_m,
    "mm": lambda state: state.displacement_mm,
    "mm/h": lambda state: state.velocity_mm_per_h,
}


def followed(settings: ProbeSettings, state: SlopeState) -> float:
    """The reading that the slope deserves, within the probe's range.

    Units that nothing on the slope has stay in the middle of the range.
    """
    low, high = settings.range
    see = _SEEN.get(settings.unit)
    if see is None:
        return (low + high) / 2
    return min(max(see(state), low), high)


def number_for(settings: ScaledSettings, value: float) -> float:
    """The probe's own number for a reading: the calibration, backwards."""
    return (value - settings.offset) / settings.scale
