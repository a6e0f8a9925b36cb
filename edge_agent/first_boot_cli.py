"""The command ``first-boot``: settings from the card's FAT partition, with a report."""

from datetime import UTC, datetime
from pathlib import Path

import click

from edge_agent.cli_options import say
from edge_agent.clock import SystemClock
from edge_agent.commissioning.files import write_whole
from edge_agent.commissioning.first_boot import (
    REPORT,
    Outcome,
    Place,
    Result,
    report,
    take,
    wipe,
)
from spatial_mqtt import daemon

_STATUS = {Result.NOTHING: 0, Result.TAKEN: 0, Result.REFUSED: daemon.EXIT_CONFIG}
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("first-boot")
@click.option("--from", "source", required=True, type=_FOLDER, help="On the FAT.")
@click.option("--to", "target", required=True, type=_FOLDER, help="Active settings.")
def first_boot(source: Path, target: Path) -> None:
    """Take node.toml from the card, if it is new and right; write a report beside it.

    Certificates that [tls] names are taken along, and the key is wiped from the
    card. Runs at every start before the agent, and is quick when nothing is new.
    The status is 0, or 78 when the file was refused: then the settings from before
    stay active.
    """
    try:
        outcome = _taken(Place(source, target))
    except OSError as error:
        raise SystemExit(say(error)) from error
    click.echo(f"{source}: {outcome.result.value}; active: {outcome.node or 'none'}")
    for problem in outcome.problems:
        click.echo(problem, err=True)
    raise SystemExit(_STATUS[outcome.result])


def _taken(place: Place) -> Outcome:
    place.target.mkdir(parents=True, exist_ok=True)
    outcome = take(place)
    path = place.source / REPORT
    told = path.read_bytes() if path.exists() else b""
    if place.source.is_dir() and not outcome.is_told(told):
        write_whole(path, report(outcome, _now()))
    wipe(place)
    return outcome


def _now() -> str:
    clock = SystemClock()
    now = datetime.fromtimestamp(clock.wall_s(), UTC)
    words = "" if clock.is_synchronised() else " (the clock was not set yet)"
    return f"{now:%Y-%m-%d %H:%M} UTC{words}"
