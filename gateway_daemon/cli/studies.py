"""``gateway-daemon overlay``: what the overlay among gateways would cost.

``gateway-daemon topology``: who bears the load of a federation of brokers.
"""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway_daemon.overlay.keys import OverlayError
from gateway_daemon.topology.centrality import TopologyError
from gateway_daemon.topology.evaluation import (
    Advice,
    Evaluation,
    advise,
    evaluate,
    lost_without,
)
from gateway_daemon.topology.federations import (
    NAMES,
    PLACEMENTS,
    Federation,
    FederationFile,
    named,
)
from service_runtime.settings import SettingsError, parse, read
from spatial_mqtt.priority import LADDER

EXIT_FAILED, EXIT_USAGE = 1, 64

METHODS = ("sg", "psg", "atm", "patm", "v3", "v6", "policy")
PATTERNS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")

HEAD = ("pattern", "method", "pri", "hops", "p99", "messages", "each", "widest",
        "ms by hops", "ms", "p99 ms", "least ms")  # fmt: skip


@click.group(name="overlay")
def overlay_commands() -> None:
    """Simulate the overlay among gateways."""


@overlay_commands.command()
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS))
@click.option("--pattern", "patterns", multiple=True, type=click.Choice(PATTERNS))
@click.option("--nodes", default=10_000, show_default=True, help="Of the overlay.")
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    type=click.IntRange(1, LADDER.top),
    default=(LADDER.top,),
    show_default=True,
)
@click.option("--trials", default=30, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="JSON instead of a table.")
def simulate(
    methods: Sequence[str],
    patterns: Sequence[str],
    priorities: Sequence[int],
    is_json: bool,
    **chosen: int,
) -> None:
    """Publish into topics of the thesis' sizes, in overlays at rest.

    Without --method and --pattern it runs all of them; both may be repeated.
    """
    try:
        # A gateway has no numpy, and needs none to run.
        from gateway_daemon.overlay.simulation.statistics import results  # noqa: PLC0415
    except ImportError as error:
        _fail(str(error), EXIT_FAILED)
    told: list[dict[str, Any]] = []
    for pattern in patterns or PATTERNS:
        try:
            told += results(pattern, methods or METHODS, priorities, **chosen)
        except OverlayError as error:
            _fail(str(error), EXIT_USAGE)
    click.echo(json.dumps(told) if is_json else _overlay_table(told))


def _overlay_table(told: Sequence[dict[str, Any]]) -> str:
    widths = [max(len(head), 8) for head in HEAD]
    rows = [HEAD, *(tuple(_text(v) for v in _cells(row)) for row in told)]
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )


def _cells(row: dict[str, Any]) -> list[Any]:
    return [
        value for name, value in row.items() if name not in {"nodes", "trials", "seed"}
    ]


def _text(cell: float | str) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _fail(words: str, code: int) -> NoReturn:
    click.echo(f"gateway-daemon: {words}", err=True)
    raise SystemExit(code)


EXIT_DATA, EXIT_NO_INPUT = 65, 66

clients_options = (
    click.option("--publishers", default=12, show_default=True, help="How many."),
    click.option("--subscribers", default=12, show_default=True, help="How many."),
    click.option(
        "--placement",
        type=click.Choice(PLACEMENTS),
        default="even",
        show_default=True,
        help="even; leaves: none on b1; apart: publishers on b1, subscribers on b4.",
    ),
    click.option("--json", "is_json", is_flag=True, help="JSON instead of a table."),
)


@click.group(name="topology")
def topology_commands() -> None:
    """Evaluate federations of brokers, and choose one."""


@topology_commands.command(name="evaluate")
@click.argument("topology", metavar="FILE|" + "|".join(NAMES))
@clients_options[0]
@clients_options[1]
@clients_options[2]
@click.option("--duplicates", is_flag=True, help="Cycles bring further copies.")
@clients_options[3]
def evaluate_command(
    topology: str,
    publishers: int,
    subscribers: int,
    placement: str,
    *,
    duplicates: bool,
    is_json: bool,
) -> None:
    """Load of each broker: what enters and leaves it, beside a single broker.

    A file names its clients itself.
    """
    try:
        federation = _federation(topology, publishers, subscribers, placement)
        told = evaluate(federation, has_duplicates=duplicates)
    except TopologyError as error:
        _fail(str(error), EXIT_USAGE)
    if is_json:
        click.echo(json.dumps(_facts(federation, told)))
    else:
        click.echo(_topology_table(federation, told))


@topology_commands.command(name="advise")
@clients_options[0]
@clients_options[1]
@clients_options[2]
@clients_options[3]
def advise_command(
    publishers: int, subscribers: int, placement: str, *, is_json: bool
) -> None:
    """Which topology for these clients, and what fails with a broker."""
    try:
        told = advise(NAMES, publishers, subscribers, placement)
    except TopologyError as error:
        _fail(str(error), EXIT_USAGE)
    if is_json:
        click.echo(json.dumps([_advice(each) for each in told]))
        return
    click.echo("topology  busiest in  busiest out  copies  connections  parted  by")
    for each in told:
        row = _advice(each)
        click.echo(
            f"{each.name:<8}{row['in']:>12.3f}{row['out']:>13.3f}{row['copies']:>8}"
            f"{row['connections']:>13}{row['parted']:>8.3f}  {row['fails']}"
        )


def _federation(
    topology: str, publishers: int, subscribers: int, placement: str
) -> Federation:
    path = Path(topology)
    if topology in NAMES or not path.suffix:
        return named(topology, publishers, subscribers, placement)
    try:
        text = path.read_text(encoding="utf-8")
        return read(FederationFile, parse(text)).federation()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{topology}: {error}", EXIT_NO_INPUT)
    except SettingsError as error:
        _fail("\n".join(f"{topology}: {words}" for words in error.problems), EXIT_DATA)


def _facts(federation: Federation, told: Evaluation) -> dict[str, object]:
    return {
        "brokers": {
            broker: {
                "in": float(load.inbound),
                "out": float(load.outbound),
                "in_exact": str(load.inbound),
                "out_exact": str(load.outbound),
                "parted": float(lost_without(federation, broker)),
            }
            for broker, load in told.loads.items()
        },
        "copies": told.copies,
        "connections": told.connections,
    }


def _topology_table(federation: Federation, told: Evaluation) -> str:
    width = max(len(broker) for broker in (*told.loads, "broker"))
    rows = [f"{'broker':<{width}}        in       out    parted"]
    for broker, load in told.loads.items():
        cells = (load.inbound, load.outbound, lost_without(federation, broker))
        rows.append(f"{broker:<{width}}" + "".join(map(_cell, cells)))
    copies, connections = told.copies, told.connections
    rows.append(f"copies a publisher sends {copies}, connections of a subscriber "
                f"{connections}")  # fmt: skip
    return "\n".join(rows)


def _cell(number: Fraction) -> str:
    return f"{float(number):>10.4f}"


def _advice(each: Advice) -> dict[str, object]:
    loads = each.evaluation.loads.values()
    broker, parted = each.worst
    return {
        "topology": each.name,
        "in": float(max(load.inbound for load in loads)),
        "out": float(max(load.outbound for load in loads)),
        "copies": each.evaluation.copies,
        "connections": each.evaluation.connections,
        "fails": broker,
        "parted": float(parted),
    }
