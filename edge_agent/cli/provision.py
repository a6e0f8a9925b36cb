"""The commands ``provision`` (fleet CSV to node files and labels) and ``first-boot``.

``provision`` runs in the office, ``first-boot`` at each start of a node. The labels are
for the boxes of a fleet: one HTML page for A4 that needs no network.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import segno

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
from edge_agent.config import parse_node_settings
from service_runtime import lifecycle
from service_runtime.files import write_atomic
from service_runtime.settings import parse_toml
from spatial_mqtt.topics import cell_topic

LABELS = "labels.html"


@dataclass(frozen=True)
class Label:
    """Content of one label.

    Attributes:
        id: Id of the node.
        place: Name of its place for people; may be empty.
        latitude: In degrees.
        longitude: In degrees.
        cell: Topic of its S2 cell.
        sensors: Name, kind and wiring of each.
    """

    id: str
    place: str
    latitude: float
    longitude: float
    cell: str
    sensors: Sequence[tuple[str, str, str]]


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


_STYLE = """
@page { size: A4; margin: 10mm }
* { box-sizing: border-box }
body { margin: 0; font-family: "Noto Sans CJK JP", "Hiragino Sans", "Yu Gothic",
  "DejaVu Sans", Arial, sans-serif; color: #000; background: #fff }
.sheet { display: grid; grid-template-columns: 93mm 93mm; gap: 2mm 4mm }
.label { width: 93mm; height: 53mm; border: 0.3mm dashed #777; padding: 3mm;
  display: grid; grid-template-columns: 34mm 1fr; column-gap: 3mm;
  break-inside: avoid; overflow: hidden }
.label svg { width: 34mm; height: 34mm; display: block }
.id { font-size: 13pt; font-weight: bold; line-height: 1.1; overflow-wrap: anywhere }
.long { font-size: 9pt }
.place { font-size: 10pt; line-height: 1.15; margin: 0.6mm 0 }
.mono { font-family: "DejaVu Sans Mono", Consolas, monospace; font-size: 7.5pt }
.cell { font-size: 5.5pt; margin-top: 1mm; overflow-wrap: anywhere }
table { border-collapse: collapse; margin-top: 1mm; font-size: 7pt }
td { padding: 0 2mm 0 0; vertical-align: top; line-height: 1.15 }
td:nth-child(2) { white-space: nowrap }
td:last-child { padding: 0; overflow-wrap: anywhere }
@media screen { body { padding: 10mm; width: 210mm } }
"""

MAX_SENSORS = 10
LONG_ID = 20


def make_qr_payload(label: Label) -> str:
    """Content of the QR code: a position that a phone's map opens, with the node's id.

    Source:
        RFC 5870 (geo URI); ``q`` with a name in brackets as map programs read it.
    """
    place = f"{label.latitude:.6f},{label.longitude:.6f}"
    return f"geo:{place}?q={place}({label.id})"


def format_label_sheet(labels: Sequence[Label]) -> str:
    """Make the page, ten labels to a sheet of A4."""
    return "\n".join(_sheet_lines(labels)) + "\n"


def _sheet_lines(labels: Sequence[Label]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="ja">\n<head>\n<meta charset="utf-8">'
    yield f"<title>Labels of {len(labels)} nodes</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>"
    yield '<div class="sheet">'
    for label in labels:
        yield from _label_parts(label)
    yield "</div>\n</body>\n</html>"


def _label_parts(label: Label) -> Iterator[str]:
    code = segno.make(make_qr_payload(label), error="m", micro=False)
    position = f"{label.latitude:.6f}, {label.longitude:.6f}"
    kind = "id long" if len(label.id) > LONG_ID else "id"
    more = len(label.sensors) - MAX_SENSORS
    rest = [(f"and {more} more", "", "")] if more > 0 else []
    yield '<div class="label">'
    yield f"<div>{code.svg_inline(border=2, omitsize=True)}"
    yield f'<div class="mono cell">{html.escape(label.cell)}</div></div>'
    yield f'<div><div class="{kind}">{html.escape(label.id)}</div>'
    yield f'<div class="place">{html.escape(label.place)}</div>'
    yield f'<div class="mono">{position}</div><table>'
    for row in [*label.sensors[:MAX_SENSORS], *rest]:
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in row)
        yield f"<tr>{cells}</tr>"
    yield "</table></div></div>"
