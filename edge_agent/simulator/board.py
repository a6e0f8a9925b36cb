"""Simulated board of a node: connects the parts of its sensors to one slope.

A package that adds a kind of sensor may add its part with an entry point in the
group ``yamamori.parts``: its name is the kind, and it loads to a `ConnectPart`.
"""

import math
import random
import threading
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from edge_agent.clock import Clock, SimulatedClock
from edge_agent.config import SimulationSection, parse_time
from edge_agent.sensors.base import SensorConfig
from edge_agent.simulator import analog_parts, digital_parts, pin_and_file_parts
from edge_agent.simulator.buses import (
    ConnectPart,
    Fault,
    SimulatedBench,
    SimulatedBuses,
    SimulatedPart,
    SlopePinFactory,
)
from edge_agent.simulator.slope import (
    SimulatedRain,
    Slope,
    SlopeSite,
    SlopeState,
    make_storm,
    read_rain_csv,
)
from service_runtime.watchdog import Heartbeat

PART_ENTRY_POINTS = "yamamori.parts"

PARTS: Mapping[str, ConnectPart] = {
    **analog_parts.PARTS,
    **digital_parts.PARTS,
    **pin_and_file_parts.PARTS,
}


def find_part_connector(kind: str) -> ConnectPart | None:
    """What makes the part of a kind; None for a kind that has none."""
    if kind in PARTS:
        return PARTS[kind]
    for point in entry_points(group=PART_ENTRY_POINTS, name=kind):
        connect: ConnectPart = point.load()
        return connect
    return None


class Board:
    """Parts for the sensors of one node, moved by one slope.

    Sensors of a kind without a part stay unconnected.

    Attributes:
        pin_factory: The pins; open the sensors with it.
        buses: I2C, serial ports and the rest; open the sensors with them.
    """

    def __init__(
        self, slope: Slope, sensors: Iterable[SensorConfig], rng: random.Random
    ) -> None:
        self.pin_factory = SlopePinFactory()
        self.buses = SimulatedBuses()
        self._slope = slope
        bench = SimulatedBench(self.pin_factory, rng, self.buses)
        self._parts: dict[str, SimulatedPart] = {}
        for sensor in sensors:
            connect = find_part_connector(sensor.kind)
            if connect is not None:
                self._parts[sensor.name] = connect(sensor, bench)

    def advance(self, t_s: float) -> SlopeState:
        """Update every pin and chip to the slope at a Unix time.

        Rain between two calls tips the gauges. Rain before the first call does
        not, nor does going back in time.
        """
        state = self._slope.state_at(t_s)
        for part in self._parts.values():
            part.follow(state)
        return state

    def faults(self, name: str) -> frozenset[Fault]:
        """The faults that the part of a sensor supports.

        Raises:
            LookupError: There is no such part.
        """
        return self._part(name).faults

    def inject_fault(self, name: str, fault: Fault) -> None:
        """Inject a fault into the part of a sensor.

        Raises:
            LookupError: There is no such part, or it does not support the fault.
        """
        part = self._part(name)
        if fault not in part.faults:
            known = ", ".join(sorted(one.value for one in part.faults))
            raise LookupError(
                f"no fault {fault.value!r} for sensor {name!r}; its part has {known}"
            )
        part.inject_fault(fault)

    def clear_fault(self, name: str) -> None:
        """Clear the fault; a chip restarts as after power-on.

        Raises:
            LookupError: There is no such part.
        """
        self._part(name).clear_fault()

    def _part(self, name: str) -> SimulatedPart:
        if name not in self._parts:
            known = ", ".join(self._parts)
            raise LookupError(f"no sensor with name {name!r}; the board has {known}")
        return self._parts[name]


TICK_S = 0.05


def make_clock(simulation: SimulationSection) -> SimulatedClock:
    """Make the clock of the simulation."""
    epoch_s = simulation.epoch_unix_s
    return SimulatedClock(
        _start_s(simulation),
        time.time() if epoch_s is None else epoch_s,
        simulation.speedup,
    )


def make_board(
    simulation: SimulationSection, sensors: Iterable[SensorConfig], now_s: float
) -> Board:
    """Make the board of the simulated sensors, at a Unix time.

    Raises:
        RainFileError: The recorded rain cannot be used.
    """
    rng = random.Random(simulation.seed)  # noqa: S311 - noise of a chip
    start_s = _start_s(simulation)
    slope = Slope(_rain(simulation, start_s), _site(simulation, start_s))
    board = Board(slope, sensors, rng)
    board.advance(now_s)
    return board


def run_slope(
    board: Board,
    simulation: SimulationSection,
    clock: Clock,
    stop: threading.Event,
    heartbeat: Heartbeat,
) -> bool:
    """Advance the slope until `stop`; return whether the simulation ended first."""
    lasts_h = math.inf if simulation.stop_after_h is None else simulation.stop_after_h
    end_s = _start_s(simulation) + lasts_h * 3600
    while not stop.wait(TICK_S):
        heartbeat()
        now_s = clock.wall_s()
        if now_s >= end_s:
            return True
        board.advance(now_s)
    return False


def _start_s(simulation: SimulationSection) -> float:
    return parse_time(simulation.start).timestamp()


def _rain(simulation: SimulationSection, start_s: float) -> SimulatedRain:
    if simulation.rain_csv is None:
        return make_storm(
            simulation.storm,
            start_s,
            simulation.duration_h,
            simulation.total_mm,
            simulation.seed,
        )
    dates = (simulation.first_date, simulation.last_date)
    return read_rain_csv(Path(simulation.rain_csv), simulation.rain_column, dates=dates)


def _site(simulation: SimulationSection, start_s: float) -> SlopeSite:
    def after(hours: float | None) -> float | None:
        return None if hours is None else start_s + hours * 3600

    return SlopeSite(
        start_s,
        failure_time_s=after(simulation.failure_after_h),
        wire_break_s=after(simulation.wire_break_after_h),
        onset_s=simulation.onset_h * 3600,
    )
