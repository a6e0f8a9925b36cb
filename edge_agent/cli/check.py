"""The command ``check``: an installer's look at a node before driving off.

Puts the parts of a check together; beside `wiring`, it names clocks and files.
"""

import dataclasses
import json
import math
import platform
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click
from gpiozero.exc import BadPinFactory

from edge_agent import app
from edge_agent.cli._options import (
    EXIT_FAILED,
    config_option,
    json_option,
    no_pins,
    read_settings,
    say,
)
from edge_agent.commissioning.fleet import encode
from edge_agent.commissioning.link_check import (
    HANDSHAKE_BYTES,
    TLS_BYTES,
    LinkReport,
    Traveller,
    Trial,
    area_of,
    ask,
)
from edge_agent.commissioning.live_check import LiveCheck, Screen, Slot, hasty
from edge_agent.commissioning.sensor_check import Look, Machine, Report, look_of, table
from edge_agent.config import NodeSettings
from edge_agent.notices import key_notes
from edge_agent.queue.inspection import users
from edge_agent.sensor_reader import Reader
from edge_agent.sensors.base import Hardware
from edge_agent.triage.advice import rule_notes
from edge_agent.uplink.gateway_selection import FixedGateway
from service_runtime import lifecycle
from service_runtime.files import write_atomic
from spatial_mqtt.topics import cell_topic


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for; see the options."""

    as_json: bool
    live: bool
    seconds: float | None
    link: bool
    burst: int | None
    no_sensors: bool
    report: Path | None


@click.command()
@config_option
@json_option
@click.option("--live", is_flag=True, help="Read again and again: tip, tug and tilt.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="How long --live lasts; without it, until Ctrl-C.",
)
@click.option("--link", is_flag=True, help="Try the link: one message, a receipt.")
@click.option(
    "--burst",
    type=click.IntRange(0, 1_000_000),
    help="Bytes by which --link measures the rate; 0 for none.  [default: 16000, or "
    "4000 where the settings limit the link]",
)
@click.option("--no-sensors", is_flag=True, help="Leave the sensors alone.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what is printed to a file that Windows shows, such as on the card.",
)
def check(path: Path, **asked: object) -> None:
    """Check the settings, read every sensor, try the link. Touches no queue.

    The status is 0 when all is well, 1 when something is not, 78 when the settings
    are wrong.
    """
    node, wishes = read_settings(path), Wishes(**asked)  # type: ignore[arg-type]  # click checked them
    if not wishes.as_json:
        click.echo(f"{path}: settings are valid")
    problems = [] if wishes.no_sensors else obstacles(node)
    looks: list[Look] | None = None
    moves: dict[str, int] = {}
    if not wishes.no_sensors and not problems:
        try:
            looks, moves = _sensors(node, wishes)
        except BadPinFactory as error:
            problems = [no_pins(error)]
    linked = _try_link(node, wishes) if wishes.link else None
    report = Report(machine(node), looks, linked, moves, problems)
    rules = node.settings
    notes = [
        *rule_notes(rules.triage, rules.criteria, node.sensors),
        *key_notes(rules.notices.keys),
    ]
    shown = [f"note: {note}" for note in notes]
    lines = [*(table(looks) if looks else ()), *shown, *report.box()]
    told = report.told() | {"notes": notes}
    click.echo(json.dumps(told) if wishes.as_json else "\n".join(lines))
    if wishes.report is not None:
        _write(wishes.report, lines)
    raise SystemExit(0 if report.is_passed else EXIT_FAILED)


def _sensors(
    node: NodeSettings, wishes: Wishes
) -> tuple[list[Look] | None, dict[str, int]]:
    if not wishes.live:
        return look(node), {}
    is_terminal = sys.stdout.isatty() and not wishes.as_json

    def write(text: str) -> None:
        click.echo(text, nl=False, err=wishes.as_json)

    with live(node, Screen(is_terminal, write)) as shown:
        lifecycle.on_stop_signals(shown.stop)
        return shown.run(wishes.seconds or math.inf), shown.moves


def _try_link(node: NodeSettings, wishes: Wishes) -> LinkReport:
    usual, wanted = burst_bytes(node), wishes.burst
    size = usual if wanted is None else wanted
    click.echo(f"trying the link with a burst of {size} bytes ...", err=wishes.as_json)
    return link(node, size)


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        write_atomic(path, encode(lines))
    except OSError as error:
        raise SystemExit(say(error)) from error


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
    clock = app.node_clock(node)
    now = datetime.fromtimestamp(clock.wall_s(), UTC)
    try:
        board = _MODEL.read_text(encoding="utf-8").rstrip("\0\n")
    except OSError:
        board = platform.machine()
    return Machine(
        section.id,
        section.latitude,
        section.longitude,
        cell_topic(app.node_cell(node)),
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
    bench = app.bench(node)
    sensors = app.sensors(node, bench)
    reader = Reader(sensors, bench.clock.mono_s)
    readings = reader.read(sensors, bench.clock.wall_s())
    for sensor in sensors:
        sensor.close()
    return [look_of(each, readings, reader) for each in node.sensors]


def link(node: NodeSettings, burst_bytes: int) -> LinkReport:
    """Ask the Managers, then try gateways until one serves, as the agent would."""
    known, topic = app.candidates(node), cell_topic(app.node_cell(node))
    trial = Trial(_traveller(node, burst_bytes))
    if isinstance(known, FixedGateway):
        tried = [trial.try_gateway(known.endpoint, None)]
        return LinkReport((), tried, trial.used_bytes)
    asked, entries, tls = ask(known.managers, known.fetch, app.node_clock(node).mono_s)
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
    settings, clock = node.settings, app.node_clock(node)
    return Traveller(
        dataclasses.replace(app.sender(node), gather_s=0.0),
        app.node_cell(node),
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
    bench = app.bench(quick)
    board, clock = bench.board, bench.clock
    wakes = {each.name: threading.Event() for each in quick.sensors}
    hardware = Hardware(
        bench.pin_factory,
        bench.sleep,
        on_event=lambda name: wakes[name].set(),
        buses=bench.buses,
        lines=bench.lines,
    )
    sensors = app.sensors(quick, bench, hardware)

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
