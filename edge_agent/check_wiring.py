"""Puts the parts of a check together; beside `wiring`, it names clocks and files."""

import dataclasses
import platform
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from edge_agent import bench_wiring, wiring
from edge_agent.commissioning.link import LinkReport
from edge_agent.commissioning.live import LiveCheck, Screen, Slot, hasty
from edge_agent.commissioning.look import Look, look_of
from edge_agent.commissioning.report import Machine
from edge_agent.commissioning.trial import (
    HANDSHAKE_BYTES,
    TLS_BYTES,
    Traveller,
    Trial,
    area_of,
    ask,
)
from edge_agent.config import NodeSettings
from edge_agent.queue.inspection import users
from edge_agent.reading import Reader
from edge_agent.sensors.base import Hardware
from edge_agent.uplink.nearest import FixedGateway
from spatial_mqtt.topics import cell_topic

BURST_BYTES, LIMITED_BURST_BYTES = 16_000, 4_000
MOST_GATEWAYS = 3
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
    clock = bench_wiring.bench_clock(node)
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
    bench = bench_wiring.bench(node)
    sensors = bench_wiring.sensors(node, bench)
    reader = Reader(sensors, bench.clock.mono_s)
    readings = reader.read(sensors, bench.clock.wall_s())
    for sensor in sensors:
        sensor.close()
    return [look_of(each, readings, reader) for each in node.sensors]


def link(node: NodeSettings, burst_bytes: int) -> LinkReport:
    """Ask the Managers, then try gateways until one serves, as the agent would."""
    known, topic = wiring.candidates(node), cell_topic(wiring.cell(node))
    trial = Trial(_traveller(node, burst_bytes))
    if isinstance(known, FixedGateway):
        tried = [trial.try_gateway(known.endpoint, None)]
        return LinkReport((), tried, trial.used_bytes)
    asked, entries, tls = ask(
        known.managers, known.fetch, bench_wiring.bench_clock(node).mono_s
    )
    tried = []
    for gateway in known.rank(entries, tls)[:MOST_GATEWAYS]:
        tried.append(trial.try_gateway(gateway, area_of(entries, gateway, topic)))
        if tried[-1].problem is None:
            break
    used = trial.used_bytes + sum(
        HANDSHAKE_BYTES + TLS_BYTES * m.tls for m in known.managers
    )
    return LinkReport(asked, tried, used)


def burst_bytes(node: NodeSettings) -> int:
    """How large a burst may be: a link with a limit is one that is paid for."""
    uplink = node.settings.uplink
    is_limited = uplink.rate_bytes_per_s is not None or uplink.period
    return LIMITED_BURST_BYTES if is_limited else BURST_BYTES


def _traveller(node: NodeSettings, burst: int) -> Traveller:
    settings, clock = node.settings, bench_wiring.bench_clock(node)
    return Traveller(
        dataclasses.replace(wiring.sender(node), gather_s=0.0),
        wiring.cell(node),
        settings.tls,
        secrets.token_hex(4),
        clock.mono_s,
        clock.wall_s,
        lambda characters: secrets.token_urlsafe(characters)[:characters],
        burst,
    )


@contextmanager
def live(node: NodeSettings, screen: Screen) -> Iterator[LiveCheck]:
    """A live check of the node's sensors, which are closed at the end."""
    quick = dataclasses.replace(node, sensors=tuple(map(hasty, node.sensors)))
    bench = bench_wiring.bench(quick)
    board, clock = bench.board, bench.clock
    wakes = {each.name: threading.Event() for each in quick.sensors}
    hardware = Hardware(
        bench.pin_factory,
        bench.sleep,
        on_event=lambda name: wakes[name].set(),
        buses=bench.buses,
        lines=bench.lines,
    )
    sensors = bench_wiring.sensors(quick, bench, hardware)

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
