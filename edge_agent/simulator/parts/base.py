"""Base of the simulated parts: their protocol, their wiring, and scaled readings."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol

from edge_agent.sensors.generic_probe import ProbeSettings, ScaledSettings
from edge_agent.simulator.buses import SimulatedBuses, SlopePinFactory, WiredPin
from edge_agent.simulator.slope import SlopeState


class Fault(Enum):
    """Kind of fault; `SimulatedPart.faults` lists those that a part supports.

    A part with any of them but ``NOISY`` and ``FLAPPING`` does not follow the
    slope until the fault is cleared.
    """

    DEAD = "dead"
    """Without power: a chip answers nothing, for every sensor on it."""

    STUCK = "stuck"
    """Repeats its last value."""

    NOISY = "noisy"
    """Follows the slope with far too much noise."""

    FLAPPING = "flapping"
    """A contact that closes far more often than anything moves it."""

    SHORTED = "shorted"
    """Both conductors of the cable touch."""

    DISCONNECTED = "disconnected"
    """The cable hangs free."""

    SATURATED = "saturated"
    """The input is driven to the end of its range."""

    UPSCALE = "upscale"
    """A transmitter that signals its own failure with a current above its range."""

    IO_ERROR = "io error"
    """The bus itself fails: each transfer raises EIO."""

    GARBLED = "garbled"
    """Answers arrive with wrong bits."""

    UNCONVERTED = "unconverted"
    """Answers with its power-on value: it measured nothing."""

    IMPOSTOR = "impostor"
    """Another chip at the same address."""


@dataclass(frozen=True)
class SimulatedBench:
    """Pins and buses that parts are wired to.

    Attributes:
        pin_factory: The pins and SPI.
        rng: Source of noise.
        buses: I2C, serial ports, files and gpsd.
        chips: Chips that several sensors share, by a key of the part's choice.
    """

    pin_factory: SlopePinFactory
    rng: random.Random
    buses: SimulatedBuses
    chips: dict[object, Any] = field(default_factory=dict)

    def pin(self, number: int) -> WiredPin:
        """The pin of a BCM number."""
        pin: WiredPin = self.pin_factory.pin(number)
        return pin


class SimulatedPart(Protocol):
    """Simulated counterpart of one sensor."""

    @property
    def faults(self) -> frozenset[Fault]:
        """The supported faults."""

    def follow(self, state: SlopeState) -> None:
        """Update it to a state of the slope.

        Counters, such as rain, start with the first call; a slope that went back
        in time adds nothing.
        """

    def inject_fault(self, fault: Fault) -> None:
        """Inject one of its `faults`."""

    def clear_fault(self) -> None:
        """Clear the fault; a chip restarts as after power-on."""


ConnectPart = Callable[[Any, SimulatedBench], SimulatedPart]
"""Makes the part of a sensor from its settings and wires it to a bench."""


class BreakablePart:
    """Base class that stores the injected fault.

    Attributes:
        faults: The supported faults.
        fault: The injected fault; None for none.
    """

    faults: ClassVar[frozenset[Fault]] = frozenset({Fault.DEAD, Fault.STUCK})

    def __init__(self) -> None:
        self.fault: Fault | None = None

    def inject_fault(self, fault: Fault) -> None:
        """Inject a fault."""
        self.fault = fault

    def clear_fault(self) -> None:
        """Clear the fault."""
        self.fault = None


_BY_UNIT: Mapping[str, Callable[[SlopeState], float]] = {
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


def expected_reading(settings: ProbeSettings, state: SlopeState) -> float:
    """The expected reading of a probe, clamped to its range.

    A unit without a counterpart on the slope gives the middle of the range.
    """
    low, high = settings.range
    value = _BY_UNIT.get(settings.unit)
    if value is None:
        return (low + high) / 2
    return min(max(value(state), low), high)


def unscale(settings: ScaledSettings, value: float) -> float:
    """The probe's raw number for a reading (inverse calibration)."""
    return (value - settings.offset) / settings.scale
