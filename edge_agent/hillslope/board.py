"""The wired board of a simulated node: what the slope does to pins and chips."""

import random
from collections.abc import Iterable

from edge_agent.hillslope.buses import SimulatedBuses
from edge_agent.hillslope.faults import Fault
from edge_agent.hillslope.parts.base import Bench, Part
from edge_agent.hillslope.parts.table import find_part
from edge_agent.hillslope.pins import SlopeFactory
from edge_agent.hillslope.slope import Slope, SlopeState
from edge_agent.sensors.base import Claiming


class Board:
    """Parts for the sensors of one node, moved by one slope.

    Kinds of sensors that there is no part for stay unconnected.

    Attributes:
        pin_factory: The pins; open the sensors with it.
        buses: I2C, serial ports and the rest; open the sensors with them.
    """

    def __init__(
        self,
        slope: Slope,
        sensors: Iterable[Claiming],
        rng: random.Random,
        pin_factory: SlopeFactory | None = None,
    ) -> None:
        self.pin_factory = SlopeFactory() if pin_factory is None else pin_factory
        self.buses = SimulatedBuses()
        self._slope = slope
        bench = Bench(self.pin_factory, rng, self.buses)
        self._parts: dict[str, Part] = {}
        for sensor in sensors:
            connect = find_part(sensor.kind)
            if connect is not None:
                self._parts[sensor.name] = connect(sensor, bench)

    def advance(self, t_s: float) -> SlopeState:
        """Bring every pin and chip to where the slope is at a Unix time.

        Rain between two calls tips the gauges. Rain before the first call does
        not: nobody counted it. Going back in time tips nothing.
        """
        state = self._slope.state_at(t_s)
        for part in self._parts.values():
            part.move(state)
        return state

    def faults(self, name: str) -> frozenset[Fault]:
        """The ways in which the part of a sensor can be broken.

        Raises:
            LookupError: There is no such part.
        """
        return self._part(name).faults

    def fail(self, name: str, fault: Fault) -> None:
        """Break the part of a sensor.

        Raises:
            LookupError: There is no such part, or it cannot be broken so.
        """
        part = self._part(name)
        if fault not in part.faults:
            known = ", ".join(sorted(one.value for one in part.faults))
            raise LookupError(
                f"no fault {fault.value!r} for sensor {name!r}; its part has {known}"
            )
        part.fail(fault)

    def mend(self, name: str) -> None:
        """Replace the part; a chip comes up as after power-on.

        Raises:
            LookupError: There is no such part.
        """
        self._part(name).mend()

    def _part(self, name: str) -> Part:
        if name not in self._parts:
            known = ", ".join(self._parts)
            raise LookupError(f"no sensor with name {name!r}; the board has {known}")
        return self._parts[name]
