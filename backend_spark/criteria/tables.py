"""Table of criteria by cell, read from a CSV file.

Columns: ``mesh`` (third mesh) or ``node_cell`` (S2 token of level 13, or ``*`` for
every other cell), ``LEVEL1`` (advisory), ``LEVEL2`` (warning), and
if the prefecture gives them ``LEVEL3_00`` to ``LEVEL3_150`` (critical line, one for
each mm of 60-minute rain), ``SPECIAL`` (special warning), ``municipality`` and
``VERSION`` (author and date, shown in reasons), all criteria as soil water index in mm.
999 is not judged, 0 beyond the table.

JMA's cells: third meshes (JIS X 0410) of 30" x 45", about 1 km.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from backend_spark.errors import CriteriaTableError
from service_runtime.errors import FieldError
from slope_science.criteria import MAX_LINE_POINTS, Criteria
from slope_science.errors import ScienceError
from slope_science.reason_compat import parse_or_text
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

_CODE: Final = re.compile(r"[3-6][0-9][2-5][0-9][0-7][0-7][0-9][0-9]")
_LAT_DEG: Final = 30 / 3600
_LON_DEG: Final = 45 / 3600


def check_mesh(code: str) -> None:
    """Check the code of a third mesh in Japan.

    Raises:
        FieldError: The code is invalid.
    """
    if not _CODE.fullmatch(code):
        rule = "8 digits of a third mesh in Japan such as 50330471"
        raise FieldError("mesh", rule, code, "a spreadsheet may have cut zeros")


def mesh_center(code: str) -> tuple[float, float]:
    """Latitude and longitude of the centre of a third mesh, in degrees."""
    check_mesh(code)
    d = [int(digit) for digit in code]
    rows = ((d[0] * 10 + d[1]) * 8 + d[4]) * 10 + d[6]
    columns = ((d[2] * 10 + d[3]) * 8 + d[5]) * 10 + d[7]
    return (rows + 0.5) * _LAT_DEG, 100 + (columns + 0.5) * _LON_DEG


def mesh_code_at(latitude_deg: float, longitude_deg: float) -> str:
    """Code of the third mesh that holds a position in Japan."""
    row = math.floor(latitude_deg / _LAT_DEG + 1e-9)
    column = math.floor((longitude_deg - 100) / _LON_DEG + 1e-9)
    first, second, third = row // 80, row // 10 % 8, row % 10
    code = (
        f"{first:02d}{column // 80:02d}{second}{column // 10 % 8}{third}{column % 10}"
    )
    check_mesh(code)
    return code


def cell_at_mesh(code: str) -> str:
    """Token of the analysis cell that holds the centre of a mesh."""
    return Cell.at(*mesh_center(code), ANALYSIS_LEVEL).token


NOT_JUDGED: Final = 999.0
BEYOND_TABLE: Final = 0.0
OTHER_CELLS: Final = "*"
MAX_PROBLEMS: Final = 20
MAX_BYTES: Final = 400_000_000
"""All meshes of Japan with their lines are some 250 MB."""

_LINE: Final = re.compile(r"LEVEL3_(\d{2,3})")
_ENCODINGS: Final = ("utf-8-sig", "cp932")


@dataclass(frozen=True)
class CriteriaRow:
    """Criteria of one mesh as the table has them, in mm.

    Attributes:
        advisory_mm: LEVEL1.
        warning_mm: LEVEL2.
        line_mm: LEVEL3 for 0, 1, 2 mm of rain, and so on; empty without.
        special_mm: SPECIAL; None without.
        municipality: Code of its municipality; empty without.
        version: Author and date, shown in reasons; empty in a prefecture's table.
    """

    advisory_mm: float
    warning_mm: float
    line_mm: tuple[float, ...] = ()
    special_mm: float | None = None
    municipality: str = ""
    version: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether the prefecture gives criteria for this mesh."""
        return NOT_JUDGED not in {self.advisory_mm, self.warning_mm}

    def criteria(self) -> Criteria:
        """Convert to `Criteria`.

        Raises:
            ScienceError: The criteria are out of order.
        """
        known = [mm for mm in self.line_mm if mm != BEYOND_TABLE]
        line = tuple((float(r60), mm) for r60, mm in enumerate(known))
        at_rest_mm = known[0] if known else 1.478 * self.warning_mm
        special_mm = self.special_mm or 1.25 * at_rest_mm
        return Criteria(
            self.warning_mm,
            self.advisory_mm,
            special_mm,
            assumed=False,
            line=line,
            special_assumed=self.special_mm is None,
            basis=parse_or_text(self.version) if self.version else None,
        )

    def replacing(self, table: "CriteriaRow | None") -> "CriteriaRow":
        """These criteria instead of a table's; its critical line stays."""
        if table is None:
            return self
        special_mm = self.special_mm or table.special_mm
        line, code = table.line_mm, table.municipality
        return replace(self, line_mm=line, special_mm=special_mm, municipality=code)

    def lower_of(self, other: "CriteriaRow") -> "CriteriaRow":
        """The lower of two meshes' criteria, value by value."""
        both = zip(self.line_mm, other.line_mm, strict=False)
        specials = [s for s in (self.special_mm, other.special_mm) if s is not None]
        return CriteriaRow(
            min(self.advisory_mm, other.advisory_mm),
            min(self.warning_mm, other.warning_mm),
            tuple(min(a, b) for a, b in both),
            min(specials, default=None),
            self.municipality or other.municipality,
            self.version or other.version,
        )


@dataclass(frozen=True)
class CriteriaTable:
    """Criteria by cell, with a default for other cells.

    Attributes:
        default: For those.
        by_cell: Token of the analysis cell to its criteria.
        by_mesh: Code of the third mesh to its criteria.
        others: Of every cell that neither names; None without.
        changes: What people set before this table; None without.
    """

    default: Criteria
    by_cell: Mapping[str, CriteriaRow] = field(default_factory=dict)
    by_mesh: Mapping[str, CriteriaRow] = field(default_factory=dict)
    others: CriteriaRow | None = None
    changes: "CriteriaTable | None" = None

    def row(self, token: str) -> CriteriaRow | None:
        """The table's criteria of a cell; None when it does not judge it.

        Of several meshes whose centres lie in the cell each number is the lowest; a
        cell without one takes the mesh around its own centre.
        """
        row = self.by_cell.get(token) or self._around(token) or self.others
        row = row if row and row.is_judged else None
        change = self.changes.row(token) if self.changes else None
        return row if change is None else change.replacing(row)

    def _around(self, token: str) -> CriteriaRow | None:
        try:
            mesh = (
                mesh_code_at(*Cell.from_token(token).center()) if self.by_mesh else ""
            )
        except FieldError:
            return None  # beyond Japan's meshes
        return self.by_mesh.get(mesh)

    def criteria_of(self, token: str) -> Criteria:
        """Criteria of a cell."""
        row = self.row(token)
        return self.default if row is None else row.criteria()

    def with_changes(self, changes: "CriteriaTable") -> "CriteriaTable":
        """This table with the changes of people before it, cell by cell."""
        return replace(self, changes=changes)

    def municipality(self, token: str) -> str | None:
        """Code of a cell's municipality; None if the table has none."""
        row = self.row(token)
        return row.municipality if row and row.municipality else None


def read_criteria(path: Path, default: Criteria) -> CriteriaTable:
    """Read a table of criteria.

    Raises:
        CriteriaTableError: It cannot be read or breaks a rule: every mistake, up to
            `MAX_PROBLEMS`, with line, field, rule, value and remedy.
    """
    rows = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    reader = _Reader(problems=[])
    try:
        rows.fieldnames = [(name or "").strip() for name in rows.fieldnames or ()]
        reader.problems += _header(rows.fieldnames)
        if not reader.problems:
            reader.read_all(rows)
    except csv.Error as error:
        reader.problems.append(f"line {rows.line_num}: must be CSV: {error}")
    if reader.problems:
        raise CriteriaTableError(str(path), reader.problems[:MAX_PROBLEMS])
    return CriteriaTable(default, reader.by_cell, reader.by_mesh, reader.others)


@dataclass
class _Reader:
    """Rows and errors of a table so far."""

    problems: list[str]
    by_cell: dict[str, CriteriaRow] = field(default_factory=dict)
    by_mesh: dict[str, CriteriaRow] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    others: CriteriaRow | None = None

    def read_all(self, rows: "csv.DictReader[str]") -> None:
        """Read all rows and collect their errors."""
        for cells in rows:
            self._try(rows.line_num, cells)
        if not (self.problems or self.by_cell or self.others):
            self.problems.append("line 2: must hold a row of criteria, there is none")

    def _try(self, number: int, cells: Mapping[str, str]) -> None:
        try:
            self._add(number, cells)
        except (FieldError, ScienceError) as error:
            self.problems.append(f"line {number}: {error}")

    def _add(self, number: int, cells: Mapping[str, str]) -> None:
        mesh = (cells.get("mesh") or "").strip()
        key = mesh or (cells.get("cell") or "").strip()
        if key in self.lines:
            rule = f"given once, line {self.lines[key]} has it too"
            raise FieldError("mesh or cell", rule, key, "remove one")
        self.lines[key] = number
        if not mesh and key == OTHER_CELLS:
            self.others = _row(cells)
            return
        token, row = _token(mesh, key), _row(cells)
        had = self.by_cell.get(token)
        self.by_cell[token] = row if had is None else had.lower_of(row)
        if mesh:
            self.by_mesh[mesh] = row


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = f"must have at most {MAX_BYTES} bytes; cut it by area"
            raise CriteriaTableError(str(path), [problem])
        raw = path.read_bytes()
    except OSError as error:
        raise CriteriaTableError(
            str(path), [f"cannot be read: {error.strerror}; check criteria.file"]
        ) from error
    for encoding in _ENCODINGS:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise CriteriaTableError(
        str(path), ["must be UTF-8 or cp932; save it as CSV UTF-8"]
    )


def _header(names: Sequence[str]) -> Iterable[str]:
    """Problems of the first line."""
    if not {"mesh", "cell"} & set(names):
        yield f"line 1: needs a column mesh or cell, got {', '.join(names) or 'none'}"
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        yield f"line 1: each column must be there once, got {twice[0]} twice"
    for name in ("LEVEL1", "LEVEL2"):
        if name not in names:
            yield f"line 1: needs a column {name}, got {', '.join(names[:8]) or 'none'}"
    line = [int(m[1]) for name in names if (m := _LINE.fullmatch(name))]
    if line and line != list(range(MAX_LINE_POINTS)):
        missing = sorted(set(range(MAX_LINE_POINTS)) - set(line))
        where = f"LEVEL3_{missing[0]:02d} is missing" if missing else "out of order"
        yield f"line 1: needs LEVEL3_00 to LEVEL3_150 in order or none, {where}"


def _token(mesh: str, token: str) -> str:
    if mesh:
        check_mesh(mesh)
        return cell_at_mesh(mesh)
    cell = Cell.from_token(token)
    if cell.level != ANALYSIS_LEVEL:
        rule = f"the token of an S2 cell of level {ANALYSIS_LEVEL}"
        raise FieldError("cell", rule, token, f"its level is {cell.level}")
    return token


def _row(cells: Mapping[str, str]) -> CriteriaRow:
    line = tuple(
        _number(cells, name, least=0.0)
        for name in cells
        if name and _LINE.fullmatch(name)
    )
    while line and line[-1] == BEYOND_TABLE:
        line = line[:-1]
    if BEYOND_TABLE in line:
        field_name = f"LEVEL3_{line.index(BEYOND_TABLE):02d}"
        rule = "more than 0 mm before the end of the line"
        raise FieldError(field_name, rule, 0, "only the end is beyond the table")
    special = (cells.get("SPECIAL") or "").strip()
    row = CriteriaRow(
        _number(cells, "LEVEL1"),
        _number(cells, "LEVEL2"),
        line,
        _number(cells, "SPECIAL") if special else None,
        (cells.get("municipality") or "").strip(),
        (cells.get("VERSION") or "").strip(),
    )
    if row.is_judged:
        row.criteria()
    return row


def _number(cells: Mapping[str, str], name: str, least: float = 1.0) -> float:
    text = (cells.get(name) or "").strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= NOT_JUDGED:
        rule = f"a soil water index of {least:g} to 999 mm"
        remedy = "write 999 where the prefecture judges nothing" if not text else None
        raise FieldError(name, rule, text, remedy)
    return number
