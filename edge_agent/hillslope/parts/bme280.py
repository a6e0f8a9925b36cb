"""A BME280 in a housing that is open to the air over the slope."""

from edge_agent.hillslope.chips.bme280 import Bme280Chip
from edge_agent.hillslope.parts.base import Bench
from edge_agent.hillslope.parts.i2c import I2cPart
from edge_agent.hillslope.slope import SlopeState
from edge_agent.sensors.bme280 import Bme280Settings


class Bme280Part(I2cPart[Bme280Chip]):
    """The chip in a housing that is open to the air."""

    def __init__(self, settings: Bme280Settings, bench: Bench) -> None:
        super().__init__(settings, bench, lambda: Bme280Chip(bench.rng))

    def move(self, state: SlopeState) -> None:
        """Take the air's temperature, pressure and humidity."""
        if self.fault is None:
            air = state.air
            self._chip.air = (air.temp_c, air.pressure_hpa * 100, air.humidity_pct)
