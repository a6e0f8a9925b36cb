"""Puts the parts of a check together; beside `wiring`, it names clocks and files."""

import dataclasses
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from edge_agent import wiring
from edge_agent.commissioning.live import LiveCheck, Screen, Slot, hasty
from edge_agent.commissioning.look import Look, look_of
from edge_agent.commissioning.report import Machine
from edge_agent.config import NodeSettings
from edge_agent.queue.inspection import users
from edge_agent.reading import Reader
from edge_agent.sensors.base import Hardware
from spatial_mqtt.topics import cell_topic

_MODEL = Path("/proc/device-tree/model")
_STOP = "stop it with 'systemctl stop edge-agent', check, and start it again"


def obstacles(node: NodeSettings) -> list[str]:
    """Why the sensors cannot be looked at without disturbing somebody."""
    found = users(Path(node.settings.queue.path))
    if not found:
        return []
    who = ", ".join(map(str, found))
    agent = f"the agent runs (process {who}) and owns pins and buses"
    return [f"{agent}: {_STOP}; --no-sensors leaves them alone"]


def machine(node: NodeSettings) -> Machine:
    """Which node this is, and on what it runs."""
    section = node.settings.node
    clock = wiring.bench_clock(node)
    now = datetime.fromtimestamp(clock.wall_s(), UTC)
    try:
        board = _MODEL.read_text(encoding="utf-8").rstrip("\0\n")
    except OSError:
        board = platform.machine()
    return Machine(
        section.id,
        section.latitude,
        section.longitude,
        cell_topic(wiring.cell(node)),
        now.isoformat(timespec="seconds"),
        clock.is_synchronised(),
        {
            "yamamori": version("yamamori"),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "board": board,
        },
    )


def look(node: NodeSettings) -> list[Look]:
    """Read each sensor once, side by side."""
    bench = wiring.bench(node)
    sensors = wiring.sensors(node, bench)
    reader = Reader(sensors, bench.clock.mono_s)
    readings = reader.read(sensors, bench.clock.wall_s())
    for sensor in sensors:
        sensor.close()
    return [look_of(each, readings, reader) for each in node.sensors]


@contextmanager
def live(node: NodeSettings, screen: Screen) -> Iterator[LiveCheck]:
    """A live check of the node's sensors, which are closed at the end."""
    quick = dataclasses.replace(node, sensors=tuple(map(hasty, node.sensors)))
    bench = wiring.bench(quick)
    board, clock = bench.board, bench.clock
    wakes = {each.name: threading.Event() for each in quick.sensors}
    hardware = Hardware(
        bench.pin_factory,
        bench.sleep,
        on_event=lambda name: wakes[name].set(),
        buses=bench.buses,
        lines=bench.lines,
    )
    sensors = wiring.sensors(quick, bench, hardware)

    def advance() -> None:
        if board is not None:
            board.advance(clock.wall_s())

    slots = [
        Slot(settings, sensor, wakes[settings.name])
        for settings, sensor in zip(quick.sensors, sensors, strict=True)
    ]
    try:
        yield LiveCheck(slots, clock.mono_s, clock.wall_s, screen, advance)
    finally:
        for sensor in sensors:
            sensor.close()
