"""Table of criteria by cell, read from the files that prefectures and JMA publish.

The forms of the files are in `published`; all criteria are soil water index in mm.
Several files complete each other mesh by mesh: for example JMA's levels 2 and 3 and the
prefecture's critical line. Where two give the same criterion, the lower counts.

JMA's cells: third meshes (JIS X 0410) of 30" x 45", about 1 km.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Final

from backend_spark.criteria.published import (
    PublishedRow,
    PublishedTable,
    long_rows,
    mesh_code,
)
from backend_spark.errors import CriteriaTableError
from service_runtime.errors import FieldError
from slope_science import ScienceError
from slope_science.levels import (
    ADVISORY,
    DANGER,
    EMERGENCY,
    FULL_PERCENT,
    LOOK_AHEAD_H,
    NOT_JUDGED_MM,
    WARNING,
    Criteria,
    CriticalLine,
)
from slope_science.reason_compat import parse_or_text
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

log = logging.getLogger(__name__)

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


OTHER_CELLS: Final = "*"
MIN_LINE_PERCENT: Final = 30.0
MAX_LINE_PERCENT: Final = 150.0
MIN_TILT_DEG_PER_H: Final = 0.001
MAX_TILT_DEG_PER_H: Final = 90.0
MAX_PROBLEMS: Final = 20


@dataclass(frozen=True)
class CriteriaRow:
    """Criteria of one mesh as a file has them, in mm; `NOT_JUDGED_MM` without one.

    Attributes:
        advisory_mm: LEVEL1; None if the file has no such column.
        warning_mm: LEVEL2; None if the file has no such column.
        line_mm: LEVEL3 for 0, 1, 2 mm of rain, and so on; empty without.
        special_mm: SPECIAL; None without.
        municipality: Code of its municipality; empty without.
        version: Author and date, shown in reasons; empty in a prefecture's table.
        advisory_line_mm: Level 2 for 0, 1, 2 mm of rain and so on; empty without.
        special_line_mm: Level 5 for 0, 1, 2 mm of rain and so on; empty without.
        look_ahead_h: Hours ahead of levels 2 to 4; None without.
        line_percent: Critical line in percent of the table's; None: 100.
        tilt_deg_per_h: Rates of tilt of levels 3 and 4; empty: those of the settings.
    """

    advisory_mm: float | None = None
    warning_mm: float | None = None
    line_mm: tuple[float, ...] = ()
    special_mm: float | None = None
    municipality: str = ""
    version: str = ""
    advisory_line_mm: tuple[float, ...] = ()
    special_line_mm: tuple[float, ...] = ()
    look_ahead_h: int | None = None
    line_percent: float | None = None
    tilt_deg_per_h: tuple[float, ...] = ()

    def criteria(self, look_ahead_h: int = LOOK_AHEAD_H[0]) -> Criteria:
        """Convert to `Criteria`.

        A level without any column is not judged. The special criterion alone is
        assumed where no file gives it and the line is judged.

        Args:
            look_ahead_h: Hours ahead where the row gives none.

        Raises:
            ScienceError: The criteria are out of order.
        """
        warning_mm = NOT_JUDGED_MM if self.warning_mm is None else self.warning_mm
        advisory_mm = _at_rest_mm(self.advisory_line_mm, self.advisory_mm)
        special_mm = self._special_at_rest_mm()
        has_special = self.special_mm is not None or self.special_line_mm
        found = Criteria(
            warning_mm,
            NOT_JUDGED_MM if advisory_mm is None else advisory_mm,
            special_mm,
            assumed=False,
            line=_points(self.line_mm),
            special_assumed=not has_special and math.isfinite(special_mm),
            basis=parse_or_text(self.version) if self.version else None,
            advisory_line=_points(self.advisory_line_mm),
            special_line=_points(self.special_line_mm),
            look_ahead_h=self.look_ahead_h or look_ahead_h,
        )
        percent = FULL_PERCENT if self.line_percent is None else self.line_percent
        return found.with_line_percent(percent)

    def _special_at_rest_mm(self) -> float:
        special_mm = _at_rest_mm(self.special_line_mm, self.special_mm)
        if special_mm is not None:
            return special_mm
        planned_mm = 1.478 * (self.warning_mm or NOT_JUDGED_MM)
        return 1.25 * (_at_rest_mm(self.line_mm, planned_mm) or NOT_JUDGED_MM)

    def in_order(self) -> "CriteriaRow":
        """These criteria, with those of levels 2 and 3 at most those of higher levels.

        Rows that are in order each may not be so together if they judge other levels.
        No level is lost: an index at the criterion of a higher level has that level.
        """
        special_mm = self._special_at_rest_mm()
        advisory_mm = _at_rest_mm(self.advisory_line_mm, self.advisory_mm)
        given = (advisory_mm, self.warning_mm, special_mm)
        judged = [mm for mm in given if mm is not None and mm != NOT_JUDGED_MM]
        if judged == sorted(judged):
            return self
        warning_mm = self.warning_mm and _at_most(self.warning_mm, special_mm)
        limit_mm = min(warning_mm or special_mm, special_mm)
        return replace(
            self,
            advisory_mm=self.advisory_mm and _at_most(self.advisory_mm, limit_mm),
            warning_mm=warning_mm,
            advisory_line_mm=tuple(
                _at_most(mm, limit_mm) for mm in self.advisory_line_mm
            ),
        )

    def replacing(
        self, table: "CriteriaRow | None", *, is_for_cell: bool = True
    ) -> "CriteriaRow":
        """These criteria instead of a table's; its critical line stays.

        Where a criterion of the table depends on the rain, it is scaled to the one of
        this row, which is that without rain.

        Args:
            table: The table's row; None without.
            is_for_cell: Whether they were set for this very cell. Those for all cells
                leave out the levels that the table does not judge.
        """
        if table is None:
            return self
        given = {
            ADVISORY: self.advisory_mm,
            WARNING: self.warning_mm,
            EMERGENCY: self.special_mm
            or _at_rest_mm(table.special_line_mm, table.special_mm),
        }
        if not is_for_cell:
            given |= dict.fromkeys(table.criteria().not_judged, NOT_JUDGED_MM)
        return replace(
            self,
            advisory_mm=given[ADVISORY],
            warning_mm=given[WARNING],
            special_mm=given[EMERGENCY],
            line_mm=table.line_mm,
            municipality=table.municipality,
            advisory_line_mm=_scaled(table.advisory_line_mm, given[ADVISORY]),
            special_line_mm=_scaled(table.special_line_mm, given[EMERGENCY]),
            look_ahead_h=table.look_ahead_h,
        )

    def lower_of(self, other: "CriteriaRow") -> "CriteriaRow":
        """The lower of two rows' criteria, value by value; None gives way."""
        return CriteriaRow(
            _lower(self.advisory_mm, other.advisory_mm),
            _lower(self.warning_mm, other.warning_mm),
            _lower_line(self.line_mm, other.line_mm),
            _lower(self.special_mm, other.special_mm),
            self.municipality or other.municipality,
            self.version or other.version,
            _lower_line(self.advisory_line_mm, other.advisory_line_mm),
            _lower_line(self.special_line_mm, other.special_line_mm),
            max(self.look_ahead_h or 0, other.look_ahead_h or 0) or None,
            _lower(self.line_percent, other.line_percent),
            self.tilt_deg_per_h or other.tilt_deg_per_h,
        )

    def differs_from(self, other: "CriteriaRow") -> bool:
        """Whether both give one criterion, and not the same."""
        pairs = [
            (getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
            if each.name.endswith("_mm")
        ]
        return any(
            a != b for a, b in pairs if a not in {None, ()} and b not in {None, ()}
        )


def _lower(one: float | None, other: float | None) -> float | None:
    return min((mm for mm in (one, other) if mm is not None), default=None)


def _lower_line(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """The lower of two lines; each is constant beyond its end."""
    if not (one and other):
        return one or other
    pairs = zip_longest(one, other)
    return tuple(
        min(one[-1] if a is None else a, other[-1] if b is None else b)
        for a, b in pairs
    )


def _at_most(mm: float, limit_mm: float) -> float:
    """A criterion, lowered to a limit; one that is not judged stays so."""
    return mm if mm == NOT_JUDGED_MM else min(mm, limit_mm)


def _at_rest_mm(line_mm: Sequence[float], constant_mm: float | None) -> float | None:
    """Highest criterion of a line that is judged, else the constant one."""
    if not line_mm:
        return constant_mm
    return max((mm for mm in line_mm if mm != NOT_JUDGED_MM), default=NOT_JUDGED_MM)


@lru_cache(maxsize=4096)
def _scaled(line_mm: tuple[float, ...], at_rest_mm: float | None) -> tuple[float, ...]:
    """A line scaled to another criterion without rain; empty if either has none."""
    table_mm = _at_rest_mm(line_mm, None) or NOT_JUDGED_MM
    if at_rest_mm is None or NOT_JUDGED_MM in {at_rest_mm, table_mm}:
        return ()
    if at_rest_mm == table_mm:
        return line_mm
    return tuple(at_rest_mm * (mm / table_mm) for mm in line_mm)


@lru_cache(maxsize=4096)
def _points(line_mm: tuple[float, ...]) -> CriticalLine:
    """Points of a line; two are enough for a constant one."""
    if len(set(line_mm)) == 1:
        return ((0.0, line_mm[0]), (1.0, line_mm[0]))
    return tuple((float(r60), mm) for r60, mm in enumerate(line_mm))


@lru_cache(maxsize=4096)  # logged once
def _log_lowered(token: str, row: CriteriaRow) -> None:
    log.warning(
        "criteria.changes, cell %s: must be 0 < advisory <= warning <= special with "
        "the criteria of the table, got %s; the lower ones count",
        token,
        (row.advisory_mm, row.warning_mm, row.special_mm),
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
        """The table's criteria of a cell; None when it does not have it.

        Of several meshes whose centres lie in the cell each number is the lowest; a
        cell without one takes the mesh around its own centre.
        """
        row = self.by_cell.get(token) or self._around(token) or self.others
        change = self.changes.row(token) if self.changes else None
        if self.changes is None or change is None:
            return row
        mixed = change.replacing(row, is_for_cell=token in self.changes.by_cell)
        found = mixed.in_order()
        if found is not mixed:
            _log_lowered(token, mixed)
        return found

    def _around(self, token: str) -> CriteriaRow | None:
        try:
            mesh = (
                mesh_code_at(*Cell.from_token(token).center()) if self.by_mesh else ""
            )
        except FieldError:
            return None  # beyond Japan's meshes
        return self.by_mesh.get(mesh)

    def criteria_of(self, token: str) -> Criteria:
        """Criteria of a cell; a level that its row does not judge has no default."""
        row = self.row(token)
        if row is None:
            return self.default
        return row.criteria(self.default.look_ahead_h)

    def with_changes(self, changes: "CriteriaTable") -> "CriteriaTable":
        """This table with the changes of people before it, cell by cell."""
        return replace(self, changes=changes)

    def municipality(self, token: str) -> str | None:
        """Code of a cell's municipality; None if the table has none."""
        row = self.row(token)
        return row.municipality if row and row.municipality else None


@dataclass
class CriteriaFile:
    """Rows of one file, by their mesh or cell.

    Attributes:
        table: The file with its encoding, title, notes and problems.
        failed: Number of rows that could not be read.
        by_mesh: Code of the mesh to its criteria.
        by_token: Token of the cell to its criteria; `OTHER_CELLS` for all others.
        differing: Meshes that are there twice with different criteria.
    """

    table: PublishedTable
    failed: int = 0
    by_mesh: dict[str, CriteriaRow] = field(default_factory=dict)
    by_token: dict[str, CriteriaRow] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)
    _lines: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> Sequence[CriteriaRow]:
        """All rows that could be read."""
        return [*self.by_mesh.values(), *self.by_token.values()]

    @classmethod
    def read(cls, path: Path, *, may_be_empty: bool = False) -> "CriteriaFile":
        """Read a file; each row that cannot be read is one of the problems.

        Args:
            path: Of the file.
            may_be_empty: Whether a file without rows is none of the problems.

        Raises:
            CriteriaTableError: The file cannot be read at all.
        """
        found = cls(PublishedTable(path))
        for row in found.table.rows():
            try:
                found.add(row)
            except (FieldError, ScienceError) as error:
                found.failed += 1
                found.table.problems.append(f"line {row.line_number}: {error}")
        if not (may_be_empty or found.table.problems or found.rows):
            problem = "line 2: must hold a row of criteria, there is none"
            found.table.problems.append(problem)
        return found

    def add(self, published: PublishedRow) -> None:
        """Add a row of the file.

        Raises:
            FieldError: A column has another form than it must.
            ScienceError: The criteria are out of order.
        """
        key = mesh_code(published.text("mesh")) or published.text("cell")
        if published.columns.is_own and key in self._lines:
            rule = f"given once, line {self._lines[key]} has it too"
            raise FieldError("mesh or cell", rule, key, "remove one")
        self._lines[key] = published.line_number
        is_mesh = "mesh" in published.columns.places and (
            published.text("mesh") or "cell" not in published.columns.places
        )
        if is_mesh:
            check_mesh(key)
        elif key != OTHER_CELLS:
            _check_cell(key)
        row = _row(published)
        rows = self.by_mesh if is_mesh else self.by_token
        if key in rows and row.differs_from(rows[key]):
            self.differing.add(key)
        rows[key] = rows[key].lower_of(row) if key in rows else row


def read_criteria(
    path: Path, default: Criteria, *, may_be_empty: bool = False
) -> CriteriaTable:
    """Read a table of criteria: a file, or a folder of ``*.csv`` of them.

    Args:
        path: Of the file or folder.
        default: Criteria of cells without a row.
        may_be_empty: Whether a file may be without rows.

    Raises:
        CriteriaTableError: It cannot be read or breaks a rule: every mistake, up to
            `MAX_PROBLEMS`, with line, field, rule, value and remedy.
    """
    files = [
        CriteriaFile.read(each, may_be_empty=may_be_empty) for each in find_tables(path)
    ]
    for each in files:
        problems = each.table.problems
        if problems:
            more = len(problems) - MAX_PROBLEMS
            shown = problems[:MAX_PROBLEMS]
            if more > 0:
                shown.append(f"{more} more; backend-spark criteria names them all")
            raise CriteriaTableError(str(each.table.path), shown)
    return combine_files(files, default)


def find_tables(path: Path) -> list[Path]:
    """The file itself, or the tables of a folder by name.

    Raises:
        CriteriaTableError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    tables = sorted(
        each
        for each in path.iterdir()
        if each.suffix.lower() == ".csv" and not each.name.startswith(".")
    )
    if not tables:
        problem = "must hold tables (*.csv), there is none; check criteria.file"
        raise CriteriaTableError(str(path), [problem])
    return tables


def combine_files(files: Iterable[CriteriaFile], default: Criteria) -> CriteriaTable:
    """One table of several files; each criterion is the lowest of them.

    Those of a cell, which may have several meshes, are put in order.

    Raises:
        CriteriaTableError: Together the criteria of a mesh are out of order.
    """
    by_mesh: dict[str, CriteriaRow] = {}
    by_cell: dict[str, CriteriaRow] = {}
    for each in files:
        for rows, known in ((by_mesh, each.by_mesh), (by_cell, each.by_token)):
            for key, row in known.items():
                rows[key] = rows[key].lower_of(row) if key in rows else row
        _check_together(each, by_mesh)
    others = by_cell.pop(OTHER_CELLS, None)
    for mesh, row in by_mesh.items():
        token = cell_at_mesh(mesh)
        by_cell[token] = by_cell[token].lower_of(row) if token in by_cell else row
    by_cell = {token: row.in_order() for token, row in by_cell.items()}
    return CriteriaTable(default, by_cell, by_mesh, others and others.in_order())


def _check_together(file: CriteriaFile, by_mesh: Mapping[str, CriteriaRow]) -> None:
    problems = []
    for mesh in file.by_mesh:
        try:
            by_mesh[mesh].criteria()
        except ScienceError as error:
            problems.append(f"mesh {mesh}, with the files before: {error}")
    if problems:
        raise CriteriaTableError(str(file.table.path), problems[:MAX_PROBLEMS])


def _check_cell(token: str) -> None:
    cell = Cell.from_token(token)
    if cell.level != ANALYSIS_LEVEL:
        rule = f"the token of an S2 cell of level {ANALYSIS_LEVEL}"
        raise FieldError("cell", rule, token, f"its level is {cell.level}")


def _row(published: PublishedRow) -> CriteriaRow:
    columns = published.columns
    beyond = long_rows(published)
    if beyond is not None:
        rule = f"a row of {len(columns.names)} columns as in the header"
        raise FieldError(
            "line", rule, len(published.cells), "look for a comma too many"
        )
    special = columns.places.get("special", columns.levels.get(EMERGENCY))
    has_special = special is not None and _cell(published, special)
    line = {columns.line_level: published.line()}
    row = CriteriaRow(
        _constant(published, ADVISORY),
        _constant(published, WARNING),
        line.get(DANGER, ()),
        published.criterion(special) if has_special and special is not None else None,
        published.text("municipality"),
        published.text("version"),
        line.get(ADVISORY, ()),
        line.get(EMERGENCY, ()),
        _look_ahead_h(published.text("look_ahead_h")),
        _number(published, "line_percent", MIN_LINE_PERCENT, MAX_LINE_PERCENT),
        _tilt_rates(published),
    )
    row.criteria()
    return row


def _cell(row: PublishedRow, place: int) -> str:
    return row.cells[place].strip() if place < len(row.cells) else ""


def _constant(row: PublishedRow, level: int) -> float | None:
    place = row.columns.levels.get(level)
    return None if place is None else row.criterion(place)


def _number(row: PublishedRow, use: str, low: float, high: float) -> float | None:
    """Number of a column; None if it is empty."""
    text = row.text(use)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:  # false for nan
        raise FieldError(use.upper(), f"a number from {low:g} to {high:g}", text)
    return number


def _tilt_rates(row: PublishedRow) -> tuple[float, ...]:
    """Rates of tilt of levels 3 and 4; empty without both."""
    uses = ("tilt3_deg_per_h", "tilt4_deg_per_h")
    rates = [_number(row, use, MIN_TILT_DEG_PER_H, MAX_TILT_DEG_PER_H) for use in uses]
    given = tuple(rate for rate in rates if rate is not None)
    if not given:
        return ()
    if len(given) < len(uses) or given[0] >= given[1]:
        rule = "given together with a larger TILT4_DEG_PER_H"
        raise FieldError("TILT3_DEG_PER_H", rule, row.text(uses[0]))
    return given


def _look_ahead_h(text: str) -> int | None:
    hours = {str(each): each for each in LOOK_AHEAD_H}
    if text and text not in hours:
        raise FieldError("LOOK_AHEAD_H", f"{' or '.join(hours)} hours, or empty", text)
    return hours.get(text)
