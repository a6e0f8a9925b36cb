"""From a line of a fleet's CSV to the checked settings of one node."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_agent.commissioning.fleet import PLACE, SENSOR, SHORT, FleetError, Line
from edge_agent.config import NodeSettings, Settings, from_table
from edge_agent.sensors.registry import find_kind
from spatial_mqtt.errors import FieldError
from spatial_mqtt.settings import SettingsError, describe

Table = dict[str, Any]

_KINDS = {row.path: row.kind for row in describe(Settings)}
KEYS: Sequence[str] = tuple(path for path in _KINDS if path.count(".") == 1)
"""Keys of the settings that may be columns."""

_PAIR = re.compile(r"([a-z0-9_]+)=(.*)")
_COMMA = re.compile(r"-?\d+,\d+")


@dataclass(frozen=True)
class Planned:
    """One node of a fleet.

    Attributes:
        line: Where it stands in the file.
        place: What people call its place; may be empty.
        table: Its settings as TOML has them.
        node: The same, checked.
    """

    line: int
    place: str
    table: Table
    node: NodeSettings

    @property
    def id(self) -> str:
        """Of the node."""
        return self.node.settings.node.id


def planned(lines: Iterable[Line], problems: Sequence[str] = ()) -> list[Planned]:
    """Check every line.

    Args:
        lines: Of the file.
        problems: What is wrong with their form.

    Raises:
        FleetError: Lists every mistake in every line.
    """
    problems = list(problems)
    nodes: list[Planned] = []
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
                Planned(
                    line.number, line.cells.get(PLACE, ""), table, from_table(table)
                )
            )
        except SettingsError as error:
            problems += [_at(line, problem) for problem in error.problems]
    if problems:
        raise FleetError(problems)
    return nodes


def _table(line: Line) -> tuple[Table, list[str]]:
    """The settings' tables of a line, and what is wrong with its sensors' cells."""
    table: Table = {}
    problems: list[str] = []
    for column, cell in line.cells.items():
        if column == PLACE:
            continue
        if column.startswith(SENSOR):
            name = column.removeprefix(SENSOR)
            sensor, wrong = _sensor(name, cell)
            table.setdefault("sensor", []).append(sensor)
            problems += [f"line {line.number}, column {column!r}: {w}" for w in wrong]
        else:
            section, _, key = SHORT.get(column, column).partition(".")
            value = _value(cell, _KINDS[f"{section}.{key}"])
            table.setdefault(section, {})[key] = value
    return table, problems


def _sensor(name: str, cell: str) -> tuple[Table, list[str]]:
    """``rain-gauge pin=17 mm_per_tip=0.5`` as a table."""
    kind, *pairs = cell.split()
    table: Table = {"kind": kind, "name": name}
    problems = []
    try:
        kinds = {row.path: row.kind for row in describe(find_kind(kind).settings)}
    except FieldError:
        kinds = {}  # the settings will say so
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
    """A cell as its key wants it; as it is when it cannot be that."""
    if kind.startswith("a list of "):
        of = "a " + kind.removeprefix("a list of ")
        return [_value(each, of) for each in cell.replace(",", " ").split()]
    if "number" in kind:
        return _number(cell)
    if kind == "true or false":
        return {"true": True, "false": False}.get(cell.lower(), cell)
    return cell


def _number(cell: str) -> object:
    for form in (int, float):
        try:
            return form(cell)
        except ValueError:
            continue
    return cell


def _at(line: Line, problem: str) -> str:
    """A mistake in a line's settings, with the line and the column."""
    columns = [column for column in _columns(line.cells) if _is_about(problem, column)]
    column = max(columns, key=len, default="")
    cell = line.cells.get(column, "")
    comma = "; write a point, not a comma" if _COMMA.fullmatch(cell) else ""
    place = f", column {column!r}" if column else ""
    return f"line {line.number}{place}: {problem}{comma}"


def _columns(cells: Mapping[str, str]) -> Iterator[str]:
    yield from SHORT  # a column may be missing, and be the mistake
    yield from (column for column in cells if column not in SHORT)


def _is_about(problem: str, column: str) -> bool:
    key = SHORT.get(column, column)
    is_start = re.match(rf"{re.escape(key)}(?![A-Za-z0-9_-])", problem)
    return bool(is_start) or (column == "managers" and "managers or gateway" in problem)
