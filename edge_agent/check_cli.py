"""The command ``check``: an installer's look at a node before driving off."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from gpiozero.exc import BadPinFactory

from edge_agent import check_wiring
from edge_agent.cli_options import (
    EXIT_FAILED,
    config_option,
    json_option,
    no_pins,
    read_settings,
    say,
)
from edge_agent.commissioning.files import write_whole
from edge_agent.commissioning.link import LinkReport
from edge_agent.commissioning.live import Screen
from edge_agent.commissioning.look import Look
from edge_agent.commissioning.office_text import encode
from edge_agent.commissioning.report import Report
from edge_agent.commissioning.table import table
from edge_agent.config import NodeSettings
from edge_agent.notices import key_notes
from edge_agent.triage.usable import rule_notes
from spatial_mqtt import daemon


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
    problems = [] if wishes.no_sensors else check_wiring.obstacles(node)
    looks: list[Look] | None = None
    moves: dict[str, int] = {}
    if not wishes.no_sensors and not problems:
        try:
            looks, moves = _sensors(node, wishes)
        except BadPinFactory as error:
            problems = [no_pins(error)]
    linked = _try_link(node, wishes) if wishes.link else None
    report = Report(check_wiring.machine(node), looks, linked, moves, problems)
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
        return check_wiring.look(node), {}
    is_terminal = sys.stdout.isatty() and not wishes.as_json

    def write(text: str) -> None:
        click.echo(text, nl=False, err=wishes.as_json)

    with check_wiring.live(node, Screen(is_terminal, write)) as shown:
        daemon.on_stop_signals(shown.stop)
        return shown.run(wishes.seconds or math.inf), shown.moves


def _try_link(node: NodeSettings, wishes: Wishes) -> LinkReport:
    usual, wanted = check_wiring.burst_bytes(node), wishes.burst
    size = usual if wanted is None else wanted
    click.echo(f"trying the link with a burst of {size} bytes ...", err=wishes.as_json)
    return check_wiring.link(node, size)


def _write(path: Path, lines: Sequence[str]) -> None:
    try:
        write_whole(path, encode(lines))
    except OSError as error:
        raise SystemExit(say(error)) from error
