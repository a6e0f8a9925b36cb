"""An accelerometer on the ground that creeps."""

import math
from typing import ClassVar, Protocol

from edge_agent.hillslope.chips.adxl345 import Adxl345
from edge_agent.hillslope.chips.adxl355 import Adxl355
from edge_agent.hillslope.chips.murata import MurataChip
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.murata import MurataSettings
from edge_agent.sensors.tilt import TiltSettings


class Accelerometer(Protocol):
    """What the board does to such a chip."""

    accel_g: tuple[float, float, float]
    temp_c: float
    is_dead: bool
    is_stuck: bool
    is_impostor: bool

    def power_on(self) -> None:
        """Come up as after power-on."""

    def fail_bus(self, *, is_failing: bool) -> None:
        """Make every transfer an I/O error, or stop doing so."""


class TiltPart(BreakablePart):
    """Feels gravity along the axes of the tilted ground."""

    faults: ClassVar[frozenset[Fault]] = frozenset({
        Fault.DEAD,
        Fault.STUCK,
        Fault.IMPOSTOR,
        Fault.IO_ERROR,
    })

    def __init__(self, chip: Accelerometer) -> None:
        super().__init__()
        self._chip = chip

    def move(self, state: SlopeState) -> None:
        """Tilt, and take the ground's temperature."""
        if self.fault is None:
            self._chip.accel_g = gravity_g(state.tilt_x_deg, state.tilt_y_deg)
            self._chip.temp_c = state.temp_c

    def fail(self, fault: Fault) -> None:
        """Break the chip."""
        super().fail(fault)
        self._set(fault)

    def mend(self) -> None:
        """Power a new chip on."""
        super().mend()
        self._set(None)
        self._chip.power_on()

    def _set(self, fault: Fault | None) -> None:
        self._chip.is_dead = fault is Fault.DEAD
        self._chip.is_stuck = fault is Fault.STUCK
        self._chip.is_impostor = fault is Fault.IMPOSTOR
        self._chip.fail_bus(is_failing=fault is Fault.IO_ERROR)
        if fault is Fault.IMPOSTOR:
            self._chip.power_on()


class MurataPart(TiltPart):
    """One that checks itself."""

    faults: ClassVar[frozenset[Fault]] = TiltPart.faults | {
        Fault.GARBLED,
        Fault.SATURATED,
    }

    def __init__(self, settings: MurataSettings, bench: Bench) -> None:
        self._murata = MurataChip(settings, bench.rng, bench.pin_factory)
        super().__init__(self._murata)

    def _set(self, fault: Fault | None) -> None:
        super()._set(fault)
        self._murata.is_garbled = fault is Fault.GARBLED
        self._murata.is_saturated = fault is Fault.SATURATED


def adxl355_part(settings: TiltSettings, bench: Bench) -> TiltPart:
    """An ADXL355."""
    return TiltPart(Adxl355(settings.device, bench.rng, bench.pin_factory))


def adxl345_part(settings: TiltSettings, bench: Bench) -> TiltPart:
    """An ADXL345."""
    return TiltPart(Adxl345(settings.device, bench.rng, bench.pin_factory))


def gravity_g(x_deg: float, y_deg: float) -> tuple[float, float, float]:
    """Gravity along the three axes of a sensor whose x and y axes are so tilted."""
    x, y = math.sin(math.radians(x_deg)), math.sin(math.radians(y_deg))
    return x, y, math.sqrt(max(1 - x * x - y * y, 0.0))
