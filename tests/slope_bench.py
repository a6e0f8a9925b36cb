"""Sensors opened on a simulated board, for tests of drivers."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from edge_agent.sensors.base import Hardware, Sensor
from edge_agent.sensors.registry import open_sensors, parse_sensors
from edge_agent.simulator.board import Board
from edge_agent.simulator.slope import SimulatedRain, Slope, SlopeSite, make_storm

START_S = 1_700_000_000.0


def quiet() -> SimulatedRain:
    """A day without rain."""
    return make_storm("quiet", START_S, 24, 0)


def downpour() -> SimulatedRain:
    """100 mm in 10 hours."""
    return make_storm("peaked", START_S, 10, 100)


def opened(
    *tables: Mapping[str, Any],
    rain: SimulatedRain | None = None,
    site: SlopeSite | None = None,
    **hardware: Callable[..., Any],
) -> tuple[Board, dict[str, Sensor]]:
    """A board at the start of the simulation, and its opened sensors by name."""
    settings = parse_sensors(tables)
    slope = Slope(rain or quiet(), site or SlopeSite(start_s=START_S))
    board = Board(slope, settings, random.Random(1))
    board.advance(START_S)
    parts = {"sleep": lambda _: None} | hardware
    sensors = open_sensors(
        settings, Hardware(board.pin_factory, **parts, buses=board.buses)
    )
    return board, {sensor.name: sensor for sensor in sensors}


def values(sensor: Sensor) -> dict[str, Any]:
    """Readings by name."""
    return {reading.name: reading.value for reading in sensor.read(0.0)}
