"""An accelerometer on the ground that creeps."""

import math

from edge_agent.hillslope.chips import Adxl355
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, BreakablePart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.tilt import TiltSettings


class TiltPart(BreakablePart):
    """Feels gravity along the axes of the tilted ground."""

    def __init__(self, settings: TiltSettings, bench: Bench) -> None:
        super().__init__()
        self._chip = Adxl355(settings.device, bench.rng, bench.pin_factory)

    def move(self, state: SlopeState) -> None:
        """Tilt, and take the ground's temperature."""
        if self.fault is None:
            self._chip.accel_g = gravity_g(state.tilt_x_deg, state.tilt_y_deg)
            self._chip.temp_c = state.temp_c

    def fail(self, fault: Fault) -> None:
        """Break the chip."""
        super().fail(fault)
        self._chip.is_dead = fault is Fault.DEAD

    def mend(self) -> None:
        """Power a new chip on."""
        super().mend()
        self._chip.is_dead = False
        self._chip.power_on()


def gravity_g(x_deg: float, y_deg: float) -> tuple[float, float, float]:
    """Gravity along the three axes of a sensor whose x and y axes are so tilted."""
    x, y = math.sin(math.radians(x_deg)), math.sin(math.radians(y_deg))
    return x, y, math.sqrt(max(1 - x * x - y * y, 0.0))
