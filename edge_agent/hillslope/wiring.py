"""Puts the simulated slope of ``[simulation]`` together, and moves it."""

import math
import random
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from edge_agent.clock import Clock, SimulatedClock
from edge_agent.config import SimulationSection, check_time
from edge_agent.hillslope.board import Board
from edge_agent.hillslope.rain import RainSeries, storm
from edge_agent.hillslope.rain_file import from_csv
from edge_agent.hillslope.slope import Site, Slope
from edge_agent.sensors.base import Claiming
from spatial_mqtt.pulse import Beat

TICK_S = 0.05


def make_clock(simulation: SimulationSection) -> SimulatedClock:
    """The clock of the simulated world."""
    epoch_s = simulation.epoch_unix_s
    return SimulatedClock(
        _start_s(simulation),
        time.time() if epoch_s is None else epoch_s,
        simulation.speedup,
    )


def make_board(
    simulation: SimulationSection, sensors: Iterable[Claiming], now_s: float
) -> Board:
    """Pins and chips of simulated sensors, as they are at a Unix time.

    Raises:
        RainFileError: The recorded rain cannot be used.
    """
    rng = random.Random(simulation.seed)  # noqa: S311 - noise of a chip
    start_s = _start_s(simulation)
    slope = Slope(_rain(simulation, start_s), _site(simulation, start_s))
    board = Board(slope, sensors, rng)
    board.advance(now_s)
    return board


def move(
    board: Board,
    simulation: SimulationSection,
    clock: Clock,
    stop: threading.Event,
    beat: Beat,
) -> bool:
    """Move the slope until told to stop; whether its own time ended before that."""
    lasts_h = math.inf if simulation.stop_after_h is None else simulation.stop_after_h
    end_s = _start_s(simulation) + lasts_h * 3600
    while not stop.wait(TICK_S):
        beat()
        now_s = clock.wall_s()
        if now_s >= end_s:
            return True
        board.advance(now_s)
    return False


def _start_s(simulation: SimulationSection) -> float:
    return check_time(simulation.start).timestamp()


def _rain(simulation: SimulationSection, start_s: float) -> RainSeries:
    if simulation.rain_csv is None:
        return storm(
            simulation.storm,
            start_s,
            simulation.duration_h,
            simulation.total_mm,
            simulation.seed,
        )
    dates = (simulation.first_date, simulation.last_date)
    return from_csv(Path(simulation.rain_csv), simulation.rain_column, dates=dates)


def _site(simulation: SimulationSection, start_s: float) -> Site:
    def after(hours: float | None) -> float | None:
        return None if hours is None else start_s + hours * 3600

    return Site(
        start_s,
        failure_time_s=after(simulation.failure_after_h),
        wire_break_s=after(simulation.wire_break_after_h),
        onset_s=simulation.onset_h * 3600,
    )
