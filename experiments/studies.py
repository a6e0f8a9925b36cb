"""The command groups ``overlay`` (simulation) and ``topology`` (broker loads)."""

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from experiments.topology_study.centrality import TopologyError
from experiments.topology_study.evaluation import (
    FederationCost,
    TopologyAdvice,
    evaluate_federation,
    rank_topologies,
    share_lost_without,
)
from experiments.topology_study.federations import (
    PLACEMENTS,
    TOPOLOGIES,
    Federation,
    FederationFile,
    make_federation,
)
from gateway_daemon.cli import EXIT_NO_INPUT, EXIT_USAGE, fail, json_option
from gateway_daemon.overlay.keys import OverlayError
from service_runtime.lifecycle import EXIT_USAGE_DATA
from service_runtime.settings import SettingsError, build_settings, parse_toml
from spatial_mqtt.priority import LADDER

METHODS = ("sg", "psg", "atm", "patm", "v3", "v6", "policy")
PATTERNS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")

HEAD = ("pattern", "method", "pri", "hops", "p99", "messages", "each", "widest",
        "ms by hops", "ms", "p99 ms", "least ms")  # fmt: skip

_clients_options = (
    click.option("--publishers", default=12, show_default=True, help="How many."),
    click.option("--subscribers", default=12, show_default=True, help="How many."),
    click.option(
        "--placement",
        type=click.Choice(PLACEMENTS),
        default="even",
        show_default=True,
        help="even; leaves: none on b1; apart: publishers on b1, subscribers on b4.",
    ),
    json_option,
)


def _clients(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_clients_options):
        command = option(command)
    return command


@click.group(name="overlay")
def overlay_commands() -> None:
    """Simulate the overlay among gateways."""


@overlay_commands.command()
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS))
@click.option("--pattern", "patterns", multiple=True, type=click.Choice(PATTERNS))
@click.option("--nodes", default=10_000, show_default=True, help="Number of gateways.")
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
@json_option
def simulate(
    methods: Sequence[str],
    patterns: Sequence[str],
    priorities: Sequence[int],
    is_json: bool,
    **chosen: int,
) -> None:
    """Simulate publications to topics of the thesis' sizes, in stable overlays.

    Without --method and --pattern all of them run; both are repeatable.
    """
    try:
        # A gateway has no numpy installed.
        from experiments.overlay_study.statistics import measure_all as results  # noqa: PLC0415
    except ImportError as error:
        fail(error)
    rows: list[dict[str, Any]] = []
    for pattern in patterns or PATTERNS:
        try:
            rows += results(pattern, methods or METHODS, priorities, **chosen)
        except OverlayError as error:
            fail(error, EXIT_USAGE)
    click.echo(json.dumps(rows) if is_json else _overlay_table(rows))


def _overlay_table(rows: Sequence[dict[str, Any]]) -> str:
    widths = [max(len(head), 8) for head in HEAD]
    lines = [HEAD, *(tuple(_text(v) for v in _cells(row)) for row in rows)]
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True))
        for line in lines
    )


def _cells(row: dict[str, Any]) -> list[Any]:
    return [
        value for name, value in row.items() if name not in {"nodes", "trials", "seed"}
    ]


def _text(cell: float | str) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


@click.group(name="topology")
def topology_commands() -> None:
    """Evaluate federations of brokers and choose one."""


@topology_commands.command(name="evaluate")
@click.argument("topology", metavar="FILE|" + "|".join(TOPOLOGIES))
@_clients
@click.option("--duplicates", is_flag=True, help="Count the copies that cycles cause.")
def evaluate_command(
    topology: str,
    publishers: int,
    subscribers: int,
    placement: str,
    *,
    duplicates: bool,
    is_json: bool,
) -> None:
    """Show the load in and out of each broker, relative to a single broker.

    A FILE names its clients itself.
    """
    try:
        federation = _federation(topology, publishers, subscribers, placement)
        evaluation = evaluate_federation(federation, has_duplicates=duplicates)
    except TopologyError as error:
        fail(error, EXIT_USAGE)
    if is_json:
        click.echo(json.dumps(_to_dict(federation, evaluation)))
    else:
        click.echo(_topology_table(federation, evaluation))


@topology_commands.command(name="advise")
@_clients
def advise_command(
    publishers: int, subscribers: int, placement: str, *, is_json: bool
) -> None:
    """Compare topologies for these clients, with the loss when a broker fails."""
    try:
        advice = rank_topologies(TOPOLOGIES, publishers, subscribers, placement)
    except TopologyError as error:
        fail(error, EXIT_USAGE)
    if is_json:
        click.echo(json.dumps([_advice_to_dict(each) for each in advice]))
        return
    click.echo("topology  busiest in  busiest out  copies  connections  parted  by")
    for each in advice:
        row = _advice_to_dict(each)
        click.echo(
            f"{each.name:<8}{row['in']:>12.3f}{row['out']:>13.3f}{row['copies']:>8}"
            f"{row['connections']:>13}{row['parted']:>8.3f}  {row['fails']}"
        )


def _federation(
    topology: str, publishers: int, subscribers: int, placement: str
) -> Federation:
    path = Path(topology)
    if topology in TOPOLOGIES or not path.suffix:
        return make_federation(topology, publishers, subscribers, placement)
    try:
        text = path.read_text(encoding="utf-8")
        return build_settings(FederationFile, parse_toml(text)).to_federation()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{topology}: {error}", EXIT_NO_INPUT)
    except SettingsError as error:
        problems = "\n".join(f"{topology}: {problem}" for problem in error.problems)
        fail(problems, EXIT_USAGE_DATA)


def _to_dict(federation: Federation, evaluation: FederationCost) -> dict[str, object]:
    return {
        "brokers": {
            broker: {
                "in": float(load.inbound),
                "out": float(load.outbound),
                "in_exact": str(load.inbound),
                "out_exact": str(load.outbound),
                "parted": float(share_lost_without(federation, broker)),
            }
            for broker, load in evaluation.loads.items()
        },
        "copies": evaluation.copies,
        "connections": evaluation.connections,
    }


def _topology_table(federation: Federation, evaluation: FederationCost) -> str:
    width = max(len(broker) for broker in (*evaluation.loads, "broker"))
    rows = [f"{'broker':<{width}}        in       out    parted"]
    for broker, load in evaluation.loads.items():
        cells = (load.inbound, load.outbound, share_lost_without(federation, broker))
        rows.append(f"{broker:<{width}}" + "".join(map(_cell, cells)))
    copies, connections = evaluation.copies, evaluation.connections
    rows.append(f"copies a publisher sends {copies}, connections of a subscriber "
                f"{connections}")  # fmt: skip
    return "\n".join(rows)


def _cell(number: Fraction) -> str:
    return f"{float(number):>10.4f}"


def _advice_to_dict(each: TopologyAdvice) -> dict[str, object]:
    loads = each.cost.loads.values()
    broker, parted = each.worst
    return {
        "topology": each.name,
        "in": float(max(load.inbound for load in loads)),
        "out": float(max(load.outbound for load in loads)),
        "copies": each.cost.copies,
        "connections": each.cost.connections,
        "fails": broker,
        "parted": float(parted),
    }
