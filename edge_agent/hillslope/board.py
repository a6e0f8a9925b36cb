"""The wired board of a simulated node: what the slope does to pins and chips."""

import math
import random
from collections.abc import Iterable
from enum import Enum

from edge_agent.hillslope.chips import Adxl355, Mcp3208
from edge_agent.hillslope.pins import SlopeFactory, WiredPin
from edge_agent.hillslope.slope import Slope, SlopeState
from edge_agent.sensors.base import Claiming
from edge_agent.sensors.rain_gauge import RainGaugeSettings
from edge_agent.sensors.soil_moisture import SoilMoistureSettings
from edge_agent.sensors.tilt import TiltSettings
from edge_agent.sensors.wire import WireSettings

_PROBE_NOISE_V = 0.002


class Fault(Enum):
    """What may be wrong with a part."""

    DEAD = "dead"
    STUCK = "stuck"


class Board:
    """Parts for the sensors of one node, moved by one slope.

    Kinds of sensors that it has no part for stay unconnected.

    Attributes:
        pin_factory: The pins; open the sensors with it.
    """

    def __init__(
        self,
        slope: Slope,
        sensors: Iterable[Claiming],
        rng: random.Random,
        pin_factory: SlopeFactory | None = None,
    ) -> None:
        self.pin_factory = SlopeFactory() if pin_factory is None else pin_factory
        self._slope = slope
        self._sensors = {sensor.name: sensor for sensor in sensors}
        self._rng = rng
        self._faults: dict[str, Fault] = {}
        self._tips: dict[str, int] = {}
        self._adcs: dict[int, Mcp3208] = {}
        self._tilts: dict[str, Adxl355] = {}
        for sensor in self._sensors.values():
            self._connect(sensor)

    def advance(self, t_s: float) -> SlopeState:
        """Bring every pin and chip to where the slope is at a Unix time.

        Rain between two calls tips the gauges. Rain before the first call does
        not: nobody counted it. Going back in time tips nothing.
        """
        state = self._slope.state_at(t_s)
        for sensor in self._sensors.values():
            self._move(sensor, state)
        return state

    def fail(self, name: str, fault: Fault) -> None:
        """Break the part of a sensor.

        A dead gauge or a stuck one tips no more; a dead chip answers nothing, for
        every sensor on it; a dead wire stays as it is; stuck values stay.

        Raises:
            LookupError: There is no such sensor.
        """
        self._faults[self._known(name)] = fault
        self._set_dead(name, is_dead=fault is Fault.DEAD)

    def mend(self, name: str) -> None:
        """Replace the part; a chip comes up as after power-on."""
        self._faults.pop(self._known(name), None)
        self._set_dead(name, is_dead=False)
        if name in self._tilts:
            self._tilts[name].power_on()

    def _known(self, name: str) -> str:
        if name not in self._sensors:
            known = ", ".join(self._sensors)
            raise LookupError(f"no sensor with name {name!r}; the board has {known}")
        return name

    def _set_dead(self, name: str, *, is_dead: bool) -> None:
        sensor = self._sensors[name]
        if isinstance(sensor, TiltSettings):
            self._tilts[name].is_dead = is_dead
        elif isinstance(sensor, SoilMoistureSettings):
            self._adcs[sensor.device].is_dead = is_dead

    def _connect(self, sensor: Claiming) -> None:
        if isinstance(sensor, SoilMoistureSettings):
            if sensor.device not in self._adcs:
                chip = Mcp3208(
                    sensor.device, self._rng, self.pin_factory, sensor.vref_v
                )
                self._adcs[sensor.device] = chip
        elif isinstance(sensor, TiltSettings):
            chip_at = Adxl355(sensor.device, self._rng, self.pin_factory)
            self._tilts[sensor.name] = chip_at
        elif isinstance(sensor, WireSettings):
            self._pin(sensor.pin).hold(level=False)

    def _move(self, sensor: Claiming, state: SlopeState) -> None:
        if isinstance(sensor, RainGaugeSettings):
            self._tip(sensor, state.rain_mm)
        elif sensor.name in self._faults:
            return
        elif isinstance(sensor, SoilMoistureSettings):
            volts = _probe_v(sensor, state.vwc) + self._rng.gauss(0, _PROBE_NOISE_V)
            self._adcs[sensor.device].volts[sensor.channel] = volts
        elif isinstance(sensor, TiltSettings):
            chip = self._tilts[sensor.name]
            chip.accel_g = gravity_g(state.tilt_x_deg, state.tilt_y_deg)
            chip.temp_c = state.temp_c
        elif isinstance(sensor, WireSettings):
            self._string(sensor, is_cut=state.wire_cut)

    def _string(self, sensor: WireSettings, *, is_cut: bool) -> None:
        pin = self._pin(sensor.pin)
        if is_cut:
            pin.let_go()
        else:
            pin.hold(level=False)

    def _tip(self, sensor: RainGaugeSettings, rain_mm: float) -> None:
        tips = int(rain_mm / sensor.mm_per_tip + 1e-9)
        before = self._tips.setdefault(sensor.name, tips)
        self._tips[sensor.name] = max(tips, before)
        if sensor.name in self._faults:
            return
        pin = self._pin(sensor.pin)
        for _ in range(tips - before):
            pin.hold(level=False)
            pin.let_go()

    def _pin(self, number: int) -> WiredPin:
        pin: WiredPin = self.pin_factory.pin(number)
        return pin


def gravity_g(x_deg: float, y_deg: float) -> tuple[float, float, float]:
    """Gravity along the three axes of a sensor whose x and y axes are so tilted."""
    x, y = math.sin(math.radians(x_deg)), math.sin(math.radians(y_deg))
    return x, y, math.sqrt(max(1 - x * x - y * y, 0.0))


def _probe_v(sensor: SoilMoistureSettings, vwc: float) -> float:
    """What the probe gives at a water content: the calibration, backwards."""
    return sensor.dry_v + (sensor.wet_v - sensor.dry_v) * vwc / sensor.porosity
