"""Analyses of cells: their meshes, levels by them alone, and those of silent cells.

JMA's analyses raise the level of a cell whose nodes do not report. The newest row of a
cell is its present level. A row by the analyses therefore rests on the newest row by
readings, the base: it has the higher level of both, and where the analyses fall again,
one row has the level that the base has then. Without a higher analysis there is no row,
because the hold of a silent cell is computed on reading.

Rows by readings have nodes, rows by the analyses have none (`n_nodes`). Readings that
arrive later replace rows of their own time; the rows after them are made again.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from backend_spark.analysed_rain import NEWEST_LAST, TABLE
from backend_spark.criteria.tables import (
    CriteriaTable,
    cell_at_mesh,
    mesh_center,
    mesh_code_at,
)
from backend_spark.grib_files import Product
from backend_spark.scoring.holds import (
    GRACE_S,
    HELD,
    JUDGED,
    LOW_HOLD_S,
    NO_LIMITS,
    UNKNOWN,
    HoldLimits,
    PresentLevel,
)
from backend_spark.scoring.observation import STEP_S, step_end_s
from backend_spark.scoring.rules import not_judged_reasons
from backend_spark.scoring.surrounding_rain import HOLD_S
from backend_spark.tables.current import read_newest, sql_time
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import UTC_TIME
from backend_spark.tables.store import Folder, open_table
from service_runtime.errors import FieldError
from slope_science.levels import LOWEST, Criteria, Finding
from slope_science.official_rain import AnalysedState, judge_analysis
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, reason_to_json, render_english
from spatial_mqtt.cells import Cell

REACH: Final = range(-2, 3)
"""Meshes to each side of a cell's centre whose centres may lie in the cell."""

_MICRO: Final = 1_000_000
_STEP_US: Final = STEP_S * _MICRO
RAIN_LAGS_US: Final = tuple(_STEP_US * n for n in range(4))
"""Times of the end of an hour of rain before that of an index, the newest first."""

HOLD_LAGS_US: Final = tuple(
    range(RAIN_LAGS_US[-1] + _STEP_US, round(HOLD_S * _MICRO) + 1, _STEP_US)
)
"""The same of an hour of rain that is too old and holds its level."""

CellTime = tuple[str, int]
"""Token of a cell, and Unix microseconds."""

Value = tuple[float, int]
"""Value in mm, and Unix microseconds of its receipt."""

Row = dict[str, Any]

_LAT_DEG: Final = 1 / 120
_LON_DEG: Final = 1 / 80

COLUMNS: Final = (
    *("cell", "at", "level", "state", "known_until", "n_nodes"),
    *("notice_level", "reasons", "reason_codes"),
)
GRACE: Final = timedelta(seconds=GRACE_S)
_NEVER: Final = datetime.fromtimestamp(0, UTC)

NO_READINGS: Final[Row] = {
    **dict.fromkeys(COLUMNS),
    "at": _NEVER,
    "state": UNKNOWN,
    "reasons": (),
    "reason_codes": (),
}
"""Base of a cell with a node of whose readings no row is known."""


@lru_cache(maxsize=100_000)
def cell_meshes(token: str) -> tuple[str, ...]:
    """Codes of the meshes whose centres lie in a cell, or of the one at its centre.

    Empty beyond Japan's meshes.
    """
    try:
        middle = mesh_code_at(*Cell.from_token(token).center())
        lat, lon = mesh_center(middle)
        around = [
            mesh_code_at(lat + n * _LAT_DEG, lon + m * _LON_DEG)
            for n in REACH
            for m in REACH
        ]
    except FieldError:
        return ()
    inside = tuple(mesh for mesh in around if cell_at_mesh(mesh) == token)
    return inside or (middle,)


def meshes_of_interest(table: CriteriaTable, node_cells: Iterable[str]) -> np.ndarray:
    """Codes of the meshes of a table of criteria and of cells with nodes, ascending."""
    meshes = {*table.by_mesh}
    covered = {cell_at_mesh(mesh) for mesh in table.by_mesh}
    for token in {*table.by_cell} - covered | {*node_cells}:
        meshes.update(cell_meshes(token))
    return np.array(sorted(map(int, meshes)), dtype=np.int64)


def criteria_cells(table: CriteriaTable) -> dict[str, tuple[int, ...]]:
    """Meshes of each cell that a table of criteria names."""
    found: dict[str, list[int]] = {}
    for mesh in table.by_mesh:
        found.setdefault(cell_at_mesh(mesh), []).append(int(mesh))
    cells = {token: tuple(meshes) for token, meshes in found.items()}
    for token in {*table.by_cell} - {*cells}:
        cells[token] = tuple(map(int, cell_meshes(token)))
    return cells


class AnalysedLevels:
    """Levels of cells by the analyses alone.

    Of several meshes of a cell the highest value counts. Without a soil water index for
    a time there is no row: rain alone gives no level. Without rain the level is at
    least that with the last rain.

    Args:
        tables: Folder of the tables.
        table: Criteria; only cells that it names have a level.
        upto: Number of the newest import that counts.
    """

    def __init__(self, tables: Folder, table: CriteriaTable, upto: int) -> None:
        self._table, self._upto = table, upto
        self._dataset = DeltaTables(tables).dataset(TABLE)

    def times_to_score(self, after: int) -> set[int]:
        """Times (Unix microseconds) of the index that imports after one change.

        Rain counts at later times too.
        """
        number = ds.field("batch_id")
        is_new = (number > after) & (number <= self._upto)
        new = self._dataset.to_table(["product", "at"], filter=is_new)
        times_us: set[int] = set()
        for product, lags_us in (
            (Product.SOIL_WATER, (0,)),
            (Product.RAIN, RAIN_LAGS_US),
        ):
            some = new.filter(pc.equal(new["product"], product.value))
            ends_us = pc.unique(some["at"].cast(pa.int64())).to_pylist()
            times_us.update(us + lag for us in ends_us for lag in lags_us)
        return times_us

    def rows(
        self,
        times_us: Iterable[int],
        *,
        cells: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> list[Row]:
        """Rows of `levels`, sorted by cell and time; times in Unix microseconds.

        Args:
            times_us: Times.
            cells: Cells; None for all.
            without: Cells that are left out.
        """
        meshes = {
            cell: codes
            for cell, codes in criteria_cells(self._table).items()
            if cell not in without and (cells is None or cell in cells)
        }
        known = self._dataset.filter(ds.field("batch_id") <= self._upto)
        analyses = _CellAnalyses(known, meshes)
        index = analyses.highest(Product.SOIL_WATER, times_us, meshes)
        hourly = analyses.hours_before(index)
        criteria_of = self._table.criteria_of
        return sorted(
            (_row(key, mm, hourly, criteria_of(key[0])) for key, mm in index.items()),
            key=_key,
        )


@dataclass(frozen=True)
class _CellAnalyses:
    """Highest values of cells.

    Attributes:
        dataset: Rows of the table.
        cells: Meshes of each cell.
    """

    dataset: ds.Dataset
    cells: Mapping[str, tuple[int, ...]]

    def highest(
        self, product: Product, times_us: Iterable[int], cells: Iterable[str]
    ) -> dict[CellTime, Value]:
        """Values of some cells and times."""
        cell_of = {mesh: cell for cell in cells for mesh in self.cells[cell]}
        is_wanted = (
            (ds.field("product") == product.value)
            & ds.field("at").isin(pa.array(sorted(times_us), UTC_TIME))
            & ds.field("mesh").isin(pa.array(cell_of, pa.int32()))
        )
        return _highest(self.dataset.to_table(filter=is_wanted), cell_of)

    def hours_before(self, keys: Collection[CellTime]) -> dict[CellTime, Value]:
        """Rain before times of the index; the old rain only where newer is missing."""
        found: dict[CellTime, Value] = {}
        for lags_us in (RAIN_LAGS_US, HOLD_LAGS_US):
            dry = [key for key in keys if _newest(found, key, RAIN_LAGS_US) is None]
            times_us = {us - lag for _, us in dry for lag in lags_us}
            found |= self.highest(Product.RAIN, times_us, {cell for cell, _ in dry})
        return found


def _newest(
    hourly: Mapping[CellTime, Value], key: CellTime, lags_us: Iterable[int]
) -> CellTime | None:
    """Cell and end of the newest hour of rain at a time; None without.

    JMA analyses it each 30 minutes, or quickly 10.
    """
    cell, at_us = key
    ends = ((cell, at_us - lag) for lag in lags_us)
    return next((end for end in ends if end in hourly), None)


def _key(row: Row) -> CellTime:
    return row["cell"], row["at"]


def _highest(rows: pa.Table, cell_of: Mapping[int, str]) -> dict[CellTime, Value]:
    """Highest value, and newest receipt, by cell and time, of rows of one product."""
    some = rows.filter(pc.field("mm").is_valid())
    some = some.sort_by([(name, "ascending") for name in NEWEST_LAST])
    newest: dict[tuple[int, int], Value] = {}
    for mesh, at_us, mm, known_us in _numbers(some):
        newest[mesh, at_us] = mm, known_us  # a later issue replaces an earlier one
    found: dict[CellTime, Value] = {}
    for (mesh, at_us), value in newest.items():
        key = cell_of[mesh], at_us
        found[key] = max(value, found.get(key, value))
    return found


def _numbers(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    times = [rows[name].cast(pa.int64()) for name in ("at", "received_at")]
    columns = (rows["mesh"], times[0], rows["mm"], times[1])
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _row(
    key: CellTime, index: Value, hourly: Mapping[CellTime, Value], criteria: Criteria
) -> Row:
    cell, at_us = key
    hour = _newest(hourly, key, RAIN_LAGS_US)
    last = None if hour else _newest(hourly, key, HOLD_LAGS_US)
    state = AnalysedState(
        index[0], at_us / 1_000_000, hourly[hour][0] if hour else None
    )
    found, is_held = _judge(state, hourly[last][0] if last else None, criteria)
    is_judged = criteria.judges_rain
    reasons = [found.reason] if found else []
    if found or not is_judged:
        reasons += not_judged_reasons(criteria)
    return {
        "cell": cell,
        "at": at_us,
        "r60_mm": state.r60_mm,
        "swi_mm": state.index_mm,
        "lower_bound": False,
        "rain_known": hour is not None,
        "level": (found.level if found else LOWEST) if is_judged else None,
        "state": (HELD if is_held else JUDGED) if is_judged else UNKNOWN,
        "known_until": last[1] if last and is_held else None,
        "reasons": list(map(render_english, reasons)),
        "reason_codes": list(map(reason_to_json, reasons)),
        "n_nodes": 0,
        "n_nodes_day": 0,
        "latest_received": max(index[1], hourly[hour][1] if hour else 0),
        "version": 1,
    }


def _judge(
    state: AnalysedState, last_mm: float | None, criteria: Criteria
) -> tuple[Finding | None, bool]:
    """The finding, and whether it is held: with the last rain if that is higher."""
    found = judge_analysis(state, criteria)
    if last_mm is None:
        return found, False
    last = judge_analysis(replace(state, r60_mm=last_mm), criteria)
    if last is None or (found is not None and found.level >= last.level):
        return found, False
    return Finding(last.level, Reason(ReasonCode.HELD, because=last.reason)), True


@dataclass
class SilentCells:
    """Rows by the analyses of cells with nodes.

    Attributes:
        tables: Folder of the tables.
        limits: When holds of levels end.
    """

    tables: Folder
    limits: HoldLimits = NO_LIMITS
    _bases: dict[str, Row] | None = field(default=None, init=False)

    def reporting_cells(self, at_us: int) -> set[str]:
        """Cells whose newest row by readings is recent at a time, Unix microseconds."""
        newest = DeltaTables(self.tables).newest().select(["cell", "at", "n_nodes"])
        is_recent = pc.greater_equal(newest["at"], _time(at_us) - GRACE)
        by_readings = pc.greater(pc.fill_null(newest["n_nodes"], 0), 0)
        return set(newest.filter(pc.and_(is_recent, by_readings))["cell"].to_pylist())

    def rows(self, analysed: Iterable[Row], with_nodes: Collection[str]) -> list[Row]:
        """Rows of `levels` to write.

        Args:
            analysed: Rows by new analyses alone, sorted by cell and time.
            with_nodes: Cells with nodes; the rows of others stay as they are.
        """
        rows = list(analysed)
        last = self._newest({row["cell"] for row in rows} & {*with_nodes})
        bases = self._known_bases()
        found: list[Row] = []
        for analysis in rows:
            cell = analysis["cell"]
            if cell not in with_nodes:
                found.append(analysis)
                bases.setdefault(cell, NO_READINGS)
                continue
            newest = last.get(cell, NO_READINGS)
            base = bases.get(cell, newest)
            row = self._row_on(base, analysis, newest)
            if row is not None:
                found.append(row)
                bases[cell] = base
                last[cell] = max(newest, _with_times(row), key=_at)
        return found

    def with_analyses(self, earliest_us: Mapping[str, int]) -> dict[str, int]:
        """Those of some cells whose newest row was one by the analyses."""
        bases = self._known_bases()
        return {cell: us for cell, us in earliest_us.items() if cell in bases}

    def rows_after(
        self, earliest_us: Mapping[str, int], levels: AnalysedLevels
    ) -> list[Row]:
        """The rows by the analyses after the newest readings of cells, made again.

        Args:
            earliest_us: Cells of `with_analyses` whose readings were scored, and Unix
                microseconds of the first of these.
            levels: Levels by the analyses.
        """
        bases = self._known_bases()
        changed = self._newest_by_readings(earliest_us)
        bases.update(changed)
        for cell, row in self._newest(earliest_us).items():
            if row["n_nodes"]:
                del bases[cell]
        times_us = self._times_after({c: bases[c] for c in changed if c in bases})
        analysed = levels.rows(set().union(*times_us.values()), cells=times_us)
        return [
            _joined(row, bases[row["cell"]], self._present(bases[row["cell"]], row))
            for row in analysed
            if row["at"] in times_us[row["cell"]]
        ]

    def _row_on(self, base: Row, analysis: Row, newest: Row) -> Row | None:
        """A row by an analysis on the base; None if it states nothing new."""
        at = _time(analysis["at"])
        if at <= base["at"] or (newest is base and at - base["at"] <= GRACE):
            return None
        present = self._present(base, analysis)
        row = _joined(analysis, base, present)
        if _is_raised(analysis, base, present) or at <= newest["at"]:
            return row
        shown = PresentLevel.of_row(newest, at.timestamp(), self.limits)
        is_same = (shown.level, shown.state) == (present.level, present.state)
        is_same &= newest["notice_level"] == base["notice_level"]
        return None if is_same else row

    def _present(self, base: Row, analysis: Row) -> PresentLevel:
        """What the base is at the time of an analysis."""
        return PresentLevel.of_row(base, _time(analysis["at"]).timestamp(), self.limits)

    def _known_bases(self) -> dict[str, Row]:
        """Base of each cell whose newest row is one by the analyses."""
        if self._bases is None:
            tables = DeltaTables(self.tables)
            newest = tables.newest().select(["cell", "n_nodes"])
            without = pc.equal(pc.fill_null(newest["n_nodes"], 1), 0)
            cells = set(newest.filter(without)["cell"].to_pylist())
            ends = {
                row["cell"]: _time(step_end_s(row["at"].timestamp()) * _MICRO)
                for row in tables.nodes(["cell", "at"]).sort_by("at").to_pylist()
                if row["cell"] in cells and row["at"] is not None
            }
            steps = ", ".join(map(sql_time, sorted({*ends.values()})))
            known = self._by_readings(ends, f"at IN ({steps})")
            known |= self._held_by_readings(cells - known.keys())
            self._bases = dict.fromkeys(cells, NO_READINGS) | known
        return self._bases

    def _held_by_readings(self, cells: Collection[str]) -> dict[str, Row]:
        """The same of cells whose nodes have moved, or sent more than was scored.

        What is older than any hold, beside the newest row of all, is unknown anyway.
        """
        newest = self._newest(cells)
        if not newest:
            return {}
        hold = timedelta(seconds=max(self.limits.hold_s, LOW_HOLD_S))
        since = max(row["at"] for row in newest.values()) - hold
        return self._by_readings(newest, f"at >= {sql_time(since)}")

    def _newest_by_readings(self, since_us: Mapping[str, int]) -> dict[str, Row]:
        """The newest row by readings of each cell, if it is not before a time."""
        since = _time(min(since_us.values(), default=0))
        found = self._by_readings(since_us, f"at >= {sql_time(since)}")
        return {c: row for c, row in found.items() if row["at"] >= _time(since_us[c])}

    def _by_readings(self, cells: Collection[str], condition: str) -> dict[str, Row]:
        """The newest row by readings of each cell, of those that meet a condition."""
        levels = open_table(self.tables / "levels")
        rows = read_newest(levels, COLUMNS, cells, f"n_nodes > 0 AND {condition}")
        return {row["cell"]: row for row in rows}

    def _newest(self, cells: Collection[str]) -> dict[str, Row]:
        """The newest row of each cell."""
        newest = DeltaTables(self.tables).newest().select(COLUMNS)
        some = pc.is_in(newest["cell"], pa.array(sorted(cells), pa.string()))
        return {row["cell"]: row for row in newest.filter(some).to_pylist()}

    def _times_after(self, bases: Mapping[str, Row]) -> dict[str, set[int]]:
        """Times (Unix microseconds) of the rows of cells after their bases."""
        found: dict[str, set[int]] = {cell: set() for cell in bases}
        if not bases:
            return found
        is_wanted = ds.field("cell").isin(pa.array(sorted(bases), pa.string()))
        is_wanted &= ds.field("at") > min(base["at"] for base in bases.values())
        dataset = DeltaTables(self.tables).dataset("levels")
        for row in dataset.to_table(["cell", "at"], filter=is_wanted).to_pylist():
            if row["at"] > bases[row["cell"]]["at"]:
                found[row["cell"]].add(round(row["at"].timestamp()) * _MICRO)
        return found


def _joined(analysis: Row, base: Row, present: PresentLevel) -> Row:
    """A row by the analyses on what the base is at its time."""
    names = ("reasons", "reason_codes")
    level, held = analysis["level"] or LOWEST, present.level or LOWEST
    given = {name: [*(base[name] or ())] if held > LOWEST else [] for name in names}
    if not _is_raised(analysis, base, present):
        return analysis | _as_held(base, present)
    if level >= held:
        return analysis | {name: [*analysis[name], *given[name]] for name in names}
    both = {name: [*given[name], *analysis[name]] for name in names}
    return analysis | _as_held(base, present) | both | {"notice_level": level}


def _is_raised(analysis: Row, base: Row, present: PresentLevel) -> bool:
    """Whether an analysis has a higher level for notices than the base then has."""
    noticed = None if present.level is None else base["notice_level"] or present.level
    return (analysis["level"] or LOWEST) > (noticed or LOWEST)


def _as_held(base: Row, present: PresentLevel) -> Row:
    """Columns of the level that a base has."""
    known_s = present.known_until_s
    known_us = None if known_s is None else round(known_s * _MICRO)
    held = {"level": present.level, "state": present.state, "known_until": known_us}
    if present.level is not None:
        texts = {name: [*(base[name] or ())] for name in ("reasons", "reason_codes")}
        return held | texts | {"notice_level": base["notice_level"]}
    ended = []
    if base["level"] is not None and known_s is not None:
        level, until_s = base["level"], round(known_s)
        ended = [Reason(ReasonCode.HOLD_ENDED, level=level, known_until_s=until_s)]
    return held | {
        "reasons": list(map(render_english, ended)),
        "reason_codes": list(map(reason_to_json, ended)),
    }


def _with_times(row: Row) -> Row:
    """A row with its times as those of stored rows."""
    known = row["known_until"]
    until = None if known is None else _time(known)
    stored = {name: row.get(name) for name in COLUMNS}
    return stored | {"at": _time(row["at"]), "known_until": until}


def _at(row: Row) -> datetime:
    at: datetime = row["at"]
    return at


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / _MICRO, UTC)
