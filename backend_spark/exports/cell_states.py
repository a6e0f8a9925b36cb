"""The level of each cell at one moment, as exports tell it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.errors import ExportError
from backend_spark.tables.reader import Tables

STANDS_FOR: Final = timedelta(minutes=30)
"""A row counts so long after the end of its step; then its cell is silent."""

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
    """What is known of a cell.

    Attributes:
        cell: S2 token.
        at: End of the step that was judged last.
        level: 1 to 5; None: no judgement, or silent for too long.
        r60_mm: Rain of the last hour; None: unknown.
        swi_mm: Soil water index; None: unknown.
        margin_mm: How far below the critical line; negative is beyond.
        completeness: Share of the last day whose rain is known.
        is_lower_bound: Whether rain was missed, so that the index is one.
        is_silent: Whether the row is too old to stand for the moment.
        reasons: Why this level.
        assumed: What of it rests on assumed criteria.
        n_nodes: Nodes that spoke in the step.
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


def cell_states(
    tables: Tables, at: datetime | None = None
) -> tuple[datetime, list[CellState]]:
    """The states of all cells at a moment, by token.

    Args:
        tables: Where the levels are.
        at: The moment, with its zone; None is the newest one in the table.

    Returns:
        The moment, and one state for each cell judged within the day before it.

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


def _newest(tables: Tables) -> datetime:
    times = tables.levels(["at"])["at"]
    newest = pc.max(times).as_py() if isinstance(times, pa.ChunkedArray) else None
    if newest is None:
        raise ExportError(
            "levels", "a table with rows", "none", "score first: backend-spark score"
        )
    return newest  # type: ignore[no-any-return]


def _state(row: dict[str, Any], moment: datetime) -> CellState:
    is_silent = moment - row["at"] > STANDS_FOR
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
