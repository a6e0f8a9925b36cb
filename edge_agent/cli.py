"""The command line of the edge agent."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edge_agent import config, wiring
from edge_agent.config import NodeSettings
from edge_agent.hillslope.errors import RainFileError
from edge_agent.inspection import look_at
from edge_agent.outbox import drafts_of
from edge_agent.queue.errors import QueueError
from edge_agent.queue_cli import queue_commands
from spatial_mqtt import daemon
from spatial_mqtt.settings import SettingsError
from spatial_mqtt.supervision import serve

PROGRAM = "edge-agent"
EXIT_FAILED = 1

config_option = click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="The node's settings in TOML.",
)


@click.group()
@click.version_option(package_name="yamamori")
def cli() -> None:
    """A node on the slope: sensors to queue to uplink, the urgent message first."""


@cli.command()
@config_option
@click.option("--verbose", is_flag=True, help="Log every step.")
def run(path: Path, verbose: bool) -> None:
    """Run the node."""
    settings = _settings(path)
    daemon.log_to_stderr(verbose)
    daemon.die_on_unknown_errors()
    try:
        node = wiring.Node(settings)
    except (QueueError, RainFileError) as error:
        raise SystemExit(_say(error)) from error
    serve(node, node.supervision)


@cli.command()
@config_option
def check(path: Path) -> None:
    """Check the settings and read every sensor once. Touches no queue."""
    settings = _settings(path)
    click.echo(f"{path}: settings are valid")
    rows = list(look_at(settings))
    for row in rows:
        click.echo(f"  {'ok  ' if row.is_well else 'FAIL'}  {row.name:<12} {row.words}")
    failed = sum(not row.is_well for row in rows)
    click.echo(f"{len(rows) - failed} of {len(rows)} sensors read")
    raise SystemExit(EXIT_FAILED if failed else 0)


@cli.command()
@config_option
def send(path: Path) -> None:
    """Put messages from standard input on the node's queue and print their ids.

    One JSON object a line, such as
    {"pri": 5, "e": [{"n": "test", "u": "mm", "v": 1.0}]}
    Good lines are queued even when others are bad; then the status is 65.
    """
    settings = _settings(path)
    try:
        queue = wiring.queue(settings)
    except QueueError as error:
        raise SystemExit(_say(error)) from error
    bad = 0
    clock = wiring.bench_clock(settings)
    for draft in drafts_of(
        _lines(), settings.settings.node.id, wiring.cell(settings), clock
    ):
        if isinstance(draft, str):
            bad += 1
            click.echo(f"{PROGRAM}: {draft}", err=True)
            continue
        try:
            click.echo(str(queue.put([draft])[0]))
        except QueueError as error:
            raise SystemExit(_say(error)) from error
    queue.close()
    raise SystemExit(daemon.EXIT_USAGE_DATA if bad else 0)


cli.add_command(queue_commands)


def _settings(path: Path) -> NodeSettings:
    try:
        return config.read_node(path)
    except (SettingsError, OSError) as error:
        raise SystemExit(daemon.exit_for_settings(PROGRAM, error)) from error


def _lines() -> Iterator[str]:
    yield from sys.stdin


def _say(error: Exception) -> int:
    click.echo(f"{PROGRAM}: {error}", err=True)
    return EXIT_FAILED
