"""``gateway-daemon topology``: who bears the load of a federation of brokers."""

import json
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import click

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
from spatial_mqtt.settings import SettingsError, parse, read

EXIT_USAGE, EXIT_DATA, EXIT_NO_INPUT = 64, 65, 66

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
        click.echo(_table(federation, told))


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


def _table(federation: Federation, told: Evaluation) -> str:
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


def _fail(words: str, code: int) -> NoReturn:
    for line in words.splitlines():
        click.echo(f"gateway-daemon: {line}", err=True)
    raise SystemExit(code)
