"""The command ``provision``: a fleet's CSV to settings of each node, and labels.

The CSV has a line for each node. Spreadsheets write byte order marks, Shift JIS or
UTF-16, semicolons or tabs, full-width digits and trailing blanks; all of these are
accepted. The labels are for the boxes of a fleet: one HTML page for A4 that needs no
network.
"""

import csv
import difflib
import html
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import segno

from edge_agent import app
from edge_agent.cli._options import EXIT_FAILED, PROGRAM
from edge_agent.cli.first_boot import NODE_FILE, TextError, decode_text
from edge_agent.config import NodeSections, NodeSettings, parse_node_settings
from edge_agent.sensors.registry import find_sensor_kind
from service_runtime import lifecycle
from service_runtime.errors import FieldError
from service_runtime.files import write_atomic
from service_runtime.settings import (
    Problem,
    SettingsError,
    describe_settings,
    parse_toml,
)
from spatial_mqtt.topics import cell_topic

REQUIRED_COLUMNS = ("id", "latitude", "longitude")
PLACE_COLUMN = "place"
SENSOR_PREFIX = "sensor."
_SECTIONS = {
    "id": "node.id",
    "latitude": "node.latitude",
    "longitude": "node.longitude",
}
_SHORT = {"managers": "uplink.managers", "gateway": "uplink.gateway"}
SHORT_COLUMNS: Mapping[str, str] = {**_SECTIONS, **_SHORT}
"""Columns whose name has no section."""

_DELIMITERS = ",;\t"
_DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−"), "-")


class FleetError(ValueError):
    """A fleet file breaks one rule or more.

    Attributes:
        problems: One sentence for each mistake, in the order of the lines.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class FleetLine:
    """The line of one node.

    Attributes:
        number: Number of the line in the file, from 1.
        cells: By the name of the column; empty ones are left out.
    """

    number: int
    cells: Mapping[str, str]


def parse_fleet_lines(
    text: str, keys: Sequence[str]
) -> tuple[list[FleetLine], list[str]]:
    """Read the lines of a fleet's CSV, and find mistakes of their form.

    Args:
        text: The file, with a header.
        keys: Keys of the settings that may be columns, beside the short names,
            `PLACE_COLUMN` and ``sensor.<name>``.

    Raises:
        FleetError: A required column is missing, or there is no line.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    header = [_column(cell) for cell in next(rows, [])]
    while header and not header[-1]:
        header.pop()
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise FleetError([
            f"line 1 must have a column {name!r}, got {', '.join(header) or 'none'}"
            for name in missing
        ])
    problems = list(_header_problems(header, keys))
    good = [name if _is_known(name, keys) else None for name in header]
    lines = []
    for row in rows:
        cells = [_plain(cell) for cell in row]
        extra = [cell for cell in cells[len(header) :] if cell]
        if extra:
            problems.append(
                f"line {rows.line_num} must have at most {len(header)} cells, "
                f"got {extra[0]!r} beyond them; quote a cell that holds a delimiter"
            )
        named = {n: c for n, c in zip(good, cells, strict=False) if n and c}
        if named:
            lines.append(FleetLine(rows.line_num, named))
    if not lines:
        raise FleetError(["the file must have a line for each node, got none"])
    return lines, problems


def _is_known(column: str, known: Sequence[str]) -> bool:
    is_sensor = column.startswith(SENSOR_PREFIX) and len(column) > len(SENSOR_PREFIX)
    return is_sensor or column in {*SHORT_COLUMNS, PLACE_COLUMN, *known}


def _delimiter(text: str) -> str:
    """The delimiter that is most frequent in the header."""
    head = text.partition("\n")[0]
    return max(_DELIMITERS, key=head.count)


def _plain(cell: str) -> str:
    """The cell with ASCII digits, dashes and blanks, without blanks around it."""
    return unicodedata.normalize("NFKC", cell).translate(_DASHES).strip()


def _column(cell: str) -> str:
    """Name of a column; only the name of a sensor may have capitals."""
    name = _plain(cell)
    is_sensor = name.lower().startswith(SENSOR_PREFIX)
    return SENSOR_PREFIX + name[len(SENSOR_PREFIX) :] if is_sensor else name.lower()


def _header_problems(header: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    for name in sorted({n for n in header if header.count(n) > 1}):
        yield f"line 1, column {name!r} must be there once; remove or rename the others"
    for name in header:
        if not _is_known(name, known):
            columns = [*SHORT_COLUMNS, PLACE_COLUMN, *known]
            near = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]!r}?" if near else "remove it"
            yield f"line 1, column {name!r} is not known; {remedy}"


Table = dict[str, Any]

_KINDS = {row.path: row.kind for row in describe_settings(NodeSections)}
SETTINGS_KEYS: Sequence[str] = tuple(path for path in _KINDS if path.count(".") == 1)
"""Keys of the settings that may be columns."""

_PAIR = re.compile(r"([a-z0-9_]+)=(.*)")
_COMMA = re.compile(r"-?\d+,\d+")


@dataclass(frozen=True)
class FleetNode:
    """One node of a fleet.

    Attributes:
        line: Number of its line in the file.
        place: Name of its place for people; may be empty.
        table: Its settings as a TOML table.
        node: The same, checked.
    """

    line: int
    place: str
    table: Table
    node: NodeSettings

    @property
    def id(self) -> str:
        """Id of the node."""
        return self.node.settings.node.id


def make_fleet_nodes(
    lines: Iterable[FleetLine], problems: Sequence[str] = ()
) -> list[FleetNode]:
    """Make the settings of every line.

    Args:
        lines: Lines of the file.
        problems: Mistakes of their form.

    Raises:
        FleetError: Lines have mistakes; lists all of them.
    """
    problems = list(problems)
    nodes: list[FleetNode] = []
    first: dict[str, int] = {}
    for line in lines:
        id_ = line.cells.get("id", "")
        if id_ and first.setdefault(id_.lower(), line.number) != line.number:
            problems.append(
                f"line {line.number}, column 'id': must be unique, got {id_!r}, which "
                f"line {first[id_.lower()]} has; give one of them another"
            )
        table, wrong = _table(line)
        problems += wrong
        try:
            nodes.append(
                FleetNode(
                    line.number,
                    line.cells.get(PLACE_COLUMN, ""),
                    table,
                    parse_node_settings(table),
                )
            )
        except SettingsError as error:
            problems += [_at(line, problem) for problem in error.problems]
    if problems:
        raise FleetError(problems)
    return nodes


def _table(line: FleetLine) -> tuple[Table, list[str]]:
    """The TOML table of a line, and the mistakes in its cells of sensors."""
    table: Table = {}
    problems: list[str] = []
    for column, cell in line.cells.items():
        if column == PLACE_COLUMN:
            continue
        if column.startswith(SENSOR_PREFIX):
            name = column.removeprefix(SENSOR_PREFIX)
            sensor, wrong = _sensor(name, cell)
            table.setdefault("sensor", []).append(sensor)
            problems += [f"line {line.number}, column {column!r}: {w}" for w in wrong]
        else:
            section, _, key = SHORT_COLUMNS.get(column, column).partition(".")
            value = _value(cell, _KINDS[f"{section}.{key}"])
            table.setdefault(section, {})[key] = value
    return table, problems


def _sensor(name: str, cell: str) -> tuple[Table, list[str]]:
    """``rain-gauge pin=17 mm_per_tip=0.5`` as a table."""
    kind, *pairs = cell.split()
    table: Table = {"kind": kind, "name": name}
    problems = []
    try:
        kinds = {
            row.path: row.kind
            for row in describe_settings(find_sensor_kind(kind).settings)
        }
    except FieldError:
        kinds = {}  # reading the settings reports it
    for pair in pairs:
        match = _PAIR.fullmatch(pair)
        if match is None:
            problems.append(
                f"must be a kind and key=value pairs, got {pair!r}; "
                "write such as rain-gauge pin=17 mm_per_tip=0.5"
            )
        else:
            table[match[1]] = _value(match[2], kinds.get(match[1], "text"))
    return table, problems


def _value(cell: str, kind: str) -> object:
    """A cell converted to the type of its key; unchanged when that fails."""
    if kind.startswith("a list of "):
        element = "a " + kind.removeprefix("a list of ")
        return [_value(each, element) for each in cell.replace(",", " ").split()]
    if "number" in kind:
        return _number(cell)
    if kind == "true or false":
        return {"true": True, "false": False}.get(cell.lower(), cell)
    return cell


def _number(cell: str) -> object:
    for number in (int, float):
        try:
            return number(cell)
        except ValueError:
            continue
    return cell


def _at(line: FleetLine, problem: Problem) -> str:
    """Format a mistake in the settings of a line, with line and column."""
    columns = [column for column in _columns(line.cells) if _is_about(problem, column)]
    column = max(columns, key=len, default="")
    cell = line.cells.get(column, "")
    comma = "; write a point, not a comma" if _COMMA.fullmatch(cell) else ""
    place = f", column {column!r}" if column else ""
    return f"line {line.number}{place}: {problem}{comma}"


def _columns(cells: Mapping[str, str]) -> Iterator[str]:
    yield from SHORT_COLUMNS  # the mistake may be that the column is missing
    yield from (column for column in cells if column not in SHORT_COLUMNS)


def _is_about(problem: Problem, column: str) -> bool:
    key = SHORT_COLUMNS.get(column, column)
    is_under = problem.field == key or problem.field.startswith((f"{key}.", f"{key}["))
    return is_under or (column, problem.part) == ("managers", "managers or gateway")


def format_node_toml(id_: str, table: Mapping[str, Any]) -> str:
    """Format the TOML file: sections, then a ``[[sensor]]`` for each sensor."""
    return "\n".join(_lines(id_, table)) + "\n"


def _lines(id_: str, table: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Node {id_}, made by 'edge-agent provision'."
    for section, keys in table.items():
        if section != "sensor":
            yield f"\n[{section}]"
            yield from _keys(keys)
    for sensor in table.get("sensor", []):
        yield "\n[[sensor]]"
        yield from _keys(sensor)


def _keys(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        # JSON's text, numbers, booleans and lists are TOML as well.
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"


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
