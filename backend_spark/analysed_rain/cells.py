"""Analyses of cells: their meshes, and levels of cells without a node."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from backend_spark.analysed_rain.files import Product
from backend_spark.analysed_rain.table import TABLE
from backend_spark.criteria.tables import (
    CriteriaTable,
    cell_at_mesh,
    mesh_center,
    mesh_code_at,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, UTC_TIME
from backend_spark.tables.store import Folder
from service_runtime.errors import FieldError
from slope_science.analysed_rain import AnalysedState, judge_analysis
from slope_science.findings import LOWEST
from slope_science.reason_text import render_english
from slope_science.reasons import reason_to_json
from spatial_mqtt.cells import Cell

REACH: Final = range(-2, 3)
"""Meshes to each side of a cell's centre whose centres may lie in the cell."""

RAIN_LAGS_US: Final = tuple(600_000_000 * n for n in range(4))
"""Times of the end of an hour of rain before that of an index, the newest first."""

Value = tuple[float, int]
"""Value in mm, and Unix microseconds of its receipt."""

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


def score_new_analyses(
    tables: Folder,
    table: CriteriaTable,
    with_nodes: Collection[str],
    imports: tuple[int, int],
) -> pa.Table:
    """Levels of cells with criteria and without a node, at the times of new analyses.

    Of several meshes of a cell the highest value counts. Without a soil water index for
    a time there is no row: rain alone gives no level.

    Args:
        tables: Folder of the tables.
        table: Criteria.
        with_nodes: Cells with a node; they are scored with their readings.
        imports: Number of the last scored import, and of the newest.

    Shape:
        schemas.LEVELS.
    """
    cells = {c: m for c, m in criteria_cells(table).items() if c not in with_nodes}
    cell_of = {mesh: cell for cell, meshes in cells.items() for mesh in meshes}
    dataset = DeltaTables(tables).dataset(TABLE)
    number, after, upto = ds.field("batch_id"), *imports
    new = dataset.to_table(["at"], filter=(number > after) & (number <= upto))
    times_us = pc.unique(new["at"].cast(pa.int64())).to_pylist()
    needed = [us - lag for us in times_us for lag in RAIN_LAGS_US]
    is_needed = ds.field("at").isin(pa.array(needed, UTC_TIME))
    rows = dataset.to_table(filter=is_needed & (number <= upto))
    index = _highest(rows, Product.SOIL_WATER, cell_of)
    hourly = _highest(rows, Product.RAIN, cell_of)
    levels = [
        _row((cell, at_us), mm, _last_hour(hourly, cell, at_us), table)
        for (cell, at_us), mm in index.items()
        if at_us in times_us
    ]
    return pa.Table.from_pylist(sorted(levels, key=_key), schema=LEVELS)


def _last_hour(
    hourly: Mapping[tuple[str, int], Value], cell: str, at_us: int
) -> Value | None:
    """Newest hour of rain at a time; JMA analyses it each 30 minutes, or quickly 10."""
    ends_us = (at_us - lag for lag in RAIN_LAGS_US)
    return next((hourly[cell, us] for us in ends_us if (cell, us) in hourly), None)


def _key(row: dict[str, Any]) -> tuple[str, int]:
    return row["cell"], row["at"]


def _highest(
    rows: pa.Table, product: Product, cell_of: dict[int, str]
) -> dict[tuple[str, int], Value]:
    """Highest value, and newest receipt, by cell and time (Unix microseconds)."""
    is_given = (pc.field("product") == product.value) & pc.field("mm").is_valid()
    some = rows.filter(is_given).sort_by("received_at")
    newest: dict[tuple[int, int], Value] = {}
    for mesh, at_us, mm, known_us in _numbers(some):
        newest[mesh, at_us] = mm, known_us  # a later issue replaces an earlier one
    found: dict[tuple[str, int], Value] = {}
    for (mesh, at_us), value in newest.items():
        if mesh in cell_of:
            key = cell_of[mesh], at_us
            found[key] = max(value, found.get(key, value))
    return found


def _numbers(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    times = [rows[name].cast(pa.int64()) for name in ("at", "received_at")]
    columns = (rows["mesh"], times[0], rows["mm"], times[1])
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _row(
    key: tuple[str, int],
    index: Value,
    hour: Value | None,
    table: CriteriaTable,
) -> dict[str, Any]:
    cell, at_us = key
    index_mm, received_us = index
    at_s, r60_mm = at_us / 1_000_000, hour[0] if hour else None
    state = AnalysedState(index_mm, at_s, r60_mm, at_s if hour else None)
    found = judge_analysis(state, table.criteria_of(cell))
    reasons = [found.reason] if found else []
    return {
        "cell": cell,
        "at": at_us,
        "r60_mm": r60_mm,
        "swi_mm": index_mm,
        "lower_bound": False,
        "rain_known": hour is not None,
        "level": found.level if found else LOWEST,
        "state": "judged",
        "reasons": list(map(render_english, reasons)),
        "reason_codes": list(map(reason_to_json, reasons)),
        "n_nodes": 0,
        "n_nodes_day": 0,
        "latest_received": max(received_us, hour[1] if hour else 0),
        "version": 1,
    }
