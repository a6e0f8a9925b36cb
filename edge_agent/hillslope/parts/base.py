"""What every simulated part is to the board, and what it is connected to."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from edge_agent.hillslope.buses import SimulatedBuses
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.pins import SlopeFactory, WiredPin
from edge_agent.hillslope.slope import SlopeState


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
