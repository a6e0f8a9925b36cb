"""The commands ``provision`` (fleet CSV to node files) and ``first-boot``.

``provision`` runs in the office, ``first-boot`` at each start of a node.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from edge_agent import app
from edge_agent.cli._options import EXIT_FAILED, PROGRAM, print_error
from edge_agent.clock import SystemClock
from edge_agent.commissioning.first_boot import (
    NODE_FILE,
    REPORT_FILE,
    CardPaths,
    InstallResult,
    InstallStatus,
    format_report,
    install_settings,
    wipe_key,
)
from edge_agent.commissioning.fleet import (
    SETTINGS_KEYS,
    FleetError,
    FleetNode,
    TextError,
    decode_text,
    format_node_toml,
    make_fleet_nodes,
    parse_fleet_lines,
)
from edge_agent.commissioning.labels import Label, format_label_sheet
from edge_agent.config import parse_node_settings
from service_runtime import lifecycle
from service_runtime.files import write_atomic
from service_runtime.settings import parse_toml
from spatial_mqtt.topics import cell_topic

LABELS = "labels.html"


@click.command()
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for a folder of each node, and the labels.",
)
@click.option("--force", is_flag=True, help="Overwrite files with other content.")
def provision(fleet: Path, out: Path, force: bool) -> None:
    """Make a node.toml and a label for each line of a fleet's CSV.

    Nothing is written when a line is wrong (status 65), or when a file exists with
    other content (status 1, see --force).
    """
    try:
        nodes = make_fleet_nodes(
            *parse_fleet_lines(decode_text(fleet.read_bytes()), SETTINGS_KEYS)
        )
    except FleetError as error:
        raise SystemExit(_print_problems(fleet, error.problems)) from error
    except (TextError, OSError) as error:
        raise SystemExit(_print_problems(fleet, [str(error)])) from error
    texts = {out / each.id / NODE_FILE: _text(each) for each in nodes}
    others = [path for path, text in texts.items() if _differs(path, text)]
    if others and not force:
        for path in others:
            click.echo(f"{PROGRAM}: {path} has other content; use --force", err=True)
        raise SystemExit(EXIT_FAILED)
    written = sum(_write_new(path, text) for path, text in texts.items())
    labels = format_label_sheet([_label(each) for each in nodes])
    write_atomic(out / LABELS, labels.encode())
    click.echo(f"{len(nodes)} nodes: {written} files written, labels in {out / LABELS}")


def _text(each: FleetNode) -> str:
    text = format_node_toml(each.id, each.table)
    if parse_node_settings(parse_toml(text)) != each.node:
        raise AssertionError(f"the file of {each.id} does not give its settings")
    return text


def _differs(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() != text.encode()


def _write_new(path: Path, text: str) -> bool:
    """Write a file unless it has this content; returns whether it was written."""
    if path.exists() and not _differs(path, text):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode(), 0o600)
    return True


def _label(each: FleetNode) -> Label:
    section = each.node.settings.node
    return Label(
        section.id,
        each.place,
        section.latitude,
        section.longitude,
        cell_topic(app.find_node_cell(each.node)),
        [(s.name, s.kind, ", ".join(s.claims)) for s in each.node.sensors],
    )


def _print_problems(fleet: Path, problems: Sequence[str]) -> int:
    for problem in problems:
        click.echo(f"{PROGRAM}: {fleet}: {problem}", err=True)
    return lifecycle.EXIT_USAGE_DATA


_STATUS = {
    InstallStatus.NOTHING: 0,
    InstallStatus.TAKEN: 0,
    InstallStatus.REFUSED: lifecycle.EXIT_CONFIG,
}
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("first-boot")
@click.option(
    "--from", "source", required=True, type=_FOLDER, help="Folder on the FAT partition."
)
@click.option(
    "--to", "target", required=True, type=_FOLDER, help="Folder of the active settings."
)
def first_boot(source: Path, target: Path) -> None:
    """Install node.toml from the card, if it is new and valid; write a report.

    Certificates that [tls] names are installed as well, and the key is wiped from the
    card. Runs at every start before the agent, and is quick when nothing is new.
    The status is 0, or 78 when the file was refused: then the earlier settings stay
    active.
    """
    try:
        outcome = _install(CardPaths(source, target))
    except OSError as error:
        raise SystemExit(print_error(error)) from error
    click.echo(f"{source}: {outcome.result.value}; active: {outcome.node or 'none'}")
    for problem in outcome.problems:
        click.echo(problem, err=True)
    raise SystemExit(_STATUS[outcome.result])


def _install(place: CardPaths) -> InstallResult:
    place.target.mkdir(parents=True, exist_ok=True)
    outcome = install_settings(place)
    path = place.source / REPORT_FILE
    previous = path.read_bytes() if path.exists() else b""
    if place.source.is_dir() and not outcome.is_reported(previous):
        write_atomic(path, format_report(outcome, _now()))
    wipe_key(place)
    return outcome


def _now() -> str:
    clock = SystemClock()
    now = datetime.fromtimestamp(clock.wall_s(), UTC)
    note = "" if clock.is_synchronised() else " (the clock was not set yet)"
    return f"{now:%Y-%m-%d %H:%M} UTC{note}"
