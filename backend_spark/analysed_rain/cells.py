"""Analyses of cells: their meshes, and the levels that follow from them alone."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from backend_spark.analysed_rain.grib_files import Product
from backend_spark.analysed_rain.table import NEWEST_LAST, TABLE
from backend_spark.criteria.tables import (
    CriteriaTable,
    cell_at_mesh,
    mesh_center,
    mesh_code_at,
)
from backend_spark.scoring.analysed_rain import HOLD_S
from backend_spark.scoring.features import not_judged_reasons
from backend_spark.scoring.holds import HELD, JUDGED, UNKNOWN
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import UTC_TIME
from backend_spark.tables.store import Folder
from service_runtime.errors import FieldError
from slope_science.analysed_rain import AnalysedState, judge_analysis
from slope_science.criteria import Criteria
from slope_science.findings import LOWEST, Finding
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason, reason_to_json
from spatial_mqtt.cells import Cell

REACH: Final = range(-2, 3)
"""Meshes to each side of a cell's centre whose centres may lie in the cell."""

_STEP_US: Final = STEP_S * 1_000_000
RAIN_LAGS_US: Final = tuple(_STEP_US * n for n in range(4))
"""Times of the end of an hour of rain before that of an index, the newest first."""

HOLD_LAGS_US: Final = tuple(
    range(RAIN_LAGS_US[-1] + _STEP_US, round(HOLD_S * 1_000_000) + 1, _STEP_US)
)
"""The same of an hour of rain that is too old and holds its level."""

CellTime = tuple[str, int]
"""Token of a cell, and Unix microseconds."""

Value = tuple[float, int]
"""Value in mm, and Unix microseconds of its receipt."""

Row = dict[str, Any]

_LAT_DEG: Final = 1 / 120
_LON_DEG: Final = 1 / 80


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
