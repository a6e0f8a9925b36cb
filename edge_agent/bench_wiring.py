"""Puts a node's pins and buses together: real ones, or the simulated slope's."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpiozero import Device

from edge_agent.clock import Clock, SystemClock
from edge_agent.config import NodeSettings
from edge_agent.hillslope.board import Board
from edge_agent.hillslope.wiring import make_board, make_clock
from edge_agent.sensors.base import Hardware, Sensor
from edge_agent.sensors.buses import Buses
from edge_agent.sensors.linux.buses import LinuxBuses
from edge_agent.sensors.linux.gpio_lines import KernelLines, header_chip
from edge_agent.sensors.registry import open_sensors


@dataclass(frozen=True)
class Bench:
    """A node's pins and buses: real ones, or a simulated slope.

    Attributes:
        pin_factory: gpiozero's way to the pins.
        buses: I2C, serial lines and the rest.
        clock: The node's clock.
        sleep: Waits between the samples of one reading.
        board: The simulated board, if it is one.
        lines: The kernel's events of pins, where it has the header's.
    """

    pin_factory: Any
    buses: Buses
    clock: Clock
    sleep: Callable[[float], object]
    board: Board | None = None
    lines: KernelLines | None = None


def bench(node: NodeSettings) -> Bench:
    """Real pins, or the slope of ``[simulation]``."""
    simulation = node.settings.simulation
    if simulation is None:
        factory = Device.pin_factory or Device._default_pin_factory()  # noqa: SLF001
        chip = header_chip()
        lines = chip and KernelLines(chip, os.environ, os.getpid(), time.monotonic_ns)
        return Bench(
            factory, LinuxBuses(), bench_clock(node), time.sleep, lines=lines or None
        )
    clock = bench_clock(node)
    board = make_board(simulation, node.sensors, clock.wall_s())
    return Bench(board.pin_factory, board.buses, clock, lambda _s: None, board)


def bench_clock(node: NodeSettings) -> Clock:
    """The machine's clock, or the simulated slope's."""
    simulation = node.settings.simulation
    if simulation is None:
        return SystemClock()
    return make_clock(simulation)


def sensors(
    node: NodeSettings, on: Bench, hardware: Hardware | None = None
) -> list[Sensor]:
    """A node's sensors on a bench, for a look at them."""
    parts = hardware or Hardware(
        on.pin_factory, on.sleep, buses=on.buses, lines=on.lines
    )
    opened = open_sensors(node.sensors, parts)
    if on.lines is not None:
        on.lines.forget_the_rest()
    return opened
