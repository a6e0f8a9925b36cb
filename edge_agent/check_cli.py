"""The command ``check``: an installer's look at a node before driving off."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from edge_agent import check_wiring
from edge_agent.cli_options import (
    EXIT_FAILED,
    config_option,
    json_option,
    read_settings,
)
from edge_agent.commissioning.live import Screen
from edge_agent.commissioning.look import Look
from edge_agent.commissioning.report import Report
from edge_agent.commissioning.table import table
from edge_agent.config import NodeSettings
from spatial_mqtt import daemon


@click.command()
@config_option
@json_option
@click.option("--live", is_flag=True, help="Read again and again: tip, tug and tilt.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="How long --live lasts; without it, until Ctrl-C.",
)
@click.option("--no-sensors", is_flag=True, help="Leave the sensors alone.")
def check(
    path: Path, as_json: bool, live: bool, seconds: float | None, no_sensors: bool
) -> None:
    """Check the settings, read every sensor, try the link. Touches no queue.

    The status is 0 when all is well, 1 when something is not, 78 when the settings
    are wrong.
    """
    node = read_settings(path)
    if not as_json:
        click.echo(f"{path}: settings are valid")
    problems = [] if no_sensors else check_wiring.obstacles(node)
    looks: Sequence[Look] | None = None
    moves: dict[str, int] = {}
    if live and not no_sensors and not problems:
        looks, moves = _watch(node, seconds or math.inf, as_json)
    elif not no_sensors and not problems:
        looks = check_wiring.look(node)
    if looks is not None and not as_json:
        click.echo("\n".join(table(looks)))
    report = Report(check_wiring.machine(node), looks, None, moves, problems)
    told = json.dumps(report.told()) if as_json else "\n".join(report.box())
    click.echo(told)
    raise SystemExit(0 if report.is_passed else EXIT_FAILED)


def _watch(
    node: NodeSettings, lasts_s: float, as_json: bool
) -> tuple[list[Look], dict[str, int]]:
    is_terminal = sys.stdout.isatty() and not as_json

    def write(text: str) -> None:
        click.echo(text, nl=False, err=as_json)

    with check_wiring.live(node, Screen(is_terminal, write)) as shown:
        daemon.on_stop_signals(shown.stop)
        return shown.run(lasts_s), shown.moves
