"""Cell states: the level of each cell at one moment, for exports."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.errors import ExportError
from backend_spark.tables.reader import DeltaTables

VALIDITY: Final = timedelta(minutes=30)
"""Validity of a row after the end of its step; then its cell is silent."""

COLUMNS: Final = (
    "cell",
    "at",
    "level",
    "r60_mm",
    "swi_mm",
    "margin_mm",
    "completeness",
    "lower_bound",
    "reasons",
    "reason_codes",
    "assumed",
    "n_nodes",
)


@dataclass(frozen=True)
class CellState:
    """State of a cell.

    Attributes:
        cell: S2 token.
        at: End of the last step with a row.
        level: 1 to 5; None if there is no judgement or the cell is silent.
        r60_mm: Rain of the last hour; None if unknown.
        swi_mm: Soil water index; None if unknown.
        margin_mm: Distance below the critical line; negative beyond the line.
        completeness: Share of the last day whose rain is known.
        is_lower_bound: Whether rain data are missing, so that the index is too low.
        is_silent: Whether the row is too old for the moment.
        reasons: Reasons of the level.
        assumed: Findings that rest on assumed criteria.
        n_nodes: Number of nodes with data in the step.
        reason_codes: The reasons as JSON; empty in rows of an earlier program.
    """

    cell: str
    at: datetime
    level: int | None
    r60_mm: float | None
    swi_mm: float | None
    margin_mm: float | None
    completeness: float | None
    is_lower_bound: bool
    is_silent: bool
    reasons: tuple[str, ...]
    assumed: tuple[str, ...]
    n_nodes: int
    reason_codes: tuple[str, ...] = ()


def read_cell_states(
    tables: DeltaTables, at: datetime | None = None
) -> tuple[datetime, list[CellState]]:
    """States of all cells at a moment, sorted by token.

    Args:
        tables: Tables with the levels.
        at: The moment, with its zone; None means the newest in the table.

    Returns:
        The moment, and one state for each cell with a row in the day before it.

    Raises:
        ExportError: There is no level at that moment.
    """
    moment = at or _newest(tables)
    since = moment - timedelta(days=1)
    wanted = (pc.field("at") <= moment) & (pc.field("at") > since)
    rows = tables.dataset("levels").to_table(columns=list(COLUMNS), filter=wanted)
    if not rows.num_rows:
        rule = "a moment that levels were computed for"
        remedy = "leave it out for the newest; see the first and last in the table"
        raise ExportError("--at", rule, moment.isoformat(), remedy)
    last: dict[str, dict[str, Any]] = {}
    for row in rows.sort_by("at").to_pylist():
        last[row["cell"]] = row
    return moment, [_state(last[cell], moment) for cell in sorted(last)]


def _newest(tables: DeltaTables) -> datetime:
    times = tables.levels(["at"])["at"]
    newest = pc.max(times).as_py() if isinstance(times, pa.ChunkedArray) else None
    if newest is None:
        raise ExportError(
            "levels", "a table with rows", "none", "score first: backend-spark score"
        )
    return newest  # type: ignore[no-any-return]


def _state(row: dict[str, Any], moment: datetime) -> CellState:
    is_silent = moment - row["at"] > VALIDITY
    return CellState(
        cell=row["cell"],
        at=row["at"],
        level=None if is_silent else row["level"],
        r60_mm=row["r60_mm"],
        swi_mm=row["swi_mm"],
        margin_mm=row["margin_mm"],
        completeness=row["completeness"],
        is_lower_bound=bool(row["lower_bound"]),
        is_silent=is_silent,
        reasons=tuple(row["reasons"] or ()),
        assumed=tuple(row["assumed"] or ()),
        n_nodes=row["n_nodes"] or 0,
        reason_codes=tuple(row["reason_codes"] or ()),
    )
