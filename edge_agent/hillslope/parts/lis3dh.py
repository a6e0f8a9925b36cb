"""A LIS3DH on the ground that creeps."""

from edge_agent.hillslope.chips.lis3dh import Lis3dhChip
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.i2c import I2cPart
from edge_agent.hillslope.parts.tilt import gravity_g
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.lis3dh import Lis3dhSettings


class Lis3dhPart(I2cPart[Lis3dhChip]):
    """Feels gravity along the axes of the tilted ground."""

    def __init__(self, settings: Lis3dhSettings, bench: Bench) -> None:
        super().__init__(settings, bench, lambda: Lis3dhChip(bench.rng))

    def move(self, state: SlopeState) -> None:
        """Tilt, and take the ground's temperature."""
        if self.fault is None:
            self._chip.accel_g = gravity_g(state.tilt_x_deg, state.tilt_y_deg)
            self._chip.temp_c = state.temp_c
