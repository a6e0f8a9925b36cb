"""A fleet's CSV as lines of text cells, whatever a spreadsheet made of it.

Spreadsheets write byte order marks, Shift JIS or UTF-16, semicolons or tabs, full-width
digits and blanks at the end; what a person meant is clear, and is what is read.
"""

import csv
import difflib
import io
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

REQUIRED = ("id", "latitude", "longitude")
PLACE = "place"
SENSOR = "sensor."
_SECTIONS = {
    "id": "node.id",
    "latitude": "node.latitude",
    "longitude": "node.longitude",
}
_SHORT = {"managers": "uplink.managers", "gateway": "uplink.gateway"}
SHORT: Mapping[str, str] = {**_SECTIONS, **_SHORT}
"""Columns that need not say their section."""

_DELIMITERS = ",;\t"
_DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−"), "-")


class FleetError(ValueError):
    """A fleet's file breaks one rule or more.

    Attributes:
        problems: One sentence for each mistake, in the order of the lines.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Line:
    """One node's line.

    Attributes:
        number: Of the line in the file, from 1.
        cells: By the name of the column; empty ones are left out.
    """

    number: int
    cells: Mapping[str, str]


def lines_of(text: str, known: Sequence[str]) -> tuple[list[Line], list[str]]:
    """The lines of a fleet's CSV, and what is wrong with their form.

    Args:
        text: With a header.
        known: Keys of the settings that may be columns, beside the short names,
            `PLACE` and ``sensor.<name>``.

    Raises:
        FleetError: A column that every node needs is missing, or there is no line.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    header = [_column(cell) for cell in next(rows, [])]
    while header and not header[-1]:
        header.pop()
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise FleetError([
            f"line 1 must have a column {name!r}, got {', '.join(header) or 'none'}"
            for name in missing
        ])
    problems = list(_header_problems(header, known))
    good = [name if _is_known(name, known) else None for name in header]
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
            lines.append(Line(rows.line_num, named))
    if not lines:
        raise FleetError(["the file must have a line for each node, got none"])
    return lines, problems


def _is_known(column: str, known: Sequence[str]) -> bool:
    is_sensor = column.startswith(SENSOR) and len(column) > len(SENSOR)
    return is_sensor or column in {*SHORT, PLACE, *known}


def _delimiter(text: str) -> str:
    """What stands most often in the header."""
    head = text.partition("\n")[0]
    return max(_DELIMITERS, key=head.count)


def _plain(cell: str) -> str:
    """The cell with plain digits, letters, dashes and blanks, and none around it."""
    return unicodedata.normalize("NFKC", cell).translate(_DASHES).strip()


def _column(cell: str) -> str:
    """Its name; only that of a sensor may have capitals."""
    name = _plain(cell)
    is_sensor = name.lower().startswith(SENSOR)
    return SENSOR + name[len(SENSOR) :] if is_sensor else name.lower()


def _header_problems(header: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    for name in sorted({n for n in header if header.count(n) > 1}):
        yield f"line 1, column {name!r} must be there once; remove or rename the others"
    for name in header:
        if not _is_known(name, known):
            columns = [*SHORT, PLACE, *known]
            near = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]!r}?" if near else "remove it"
            yield f"line 1, column {name!r} is not known; {remedy}"
