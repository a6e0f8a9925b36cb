"""Cell states: the level of each cell at one moment, for exports."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow.compute as pc

from backend_spark.console.level_grid import ended_level
from backend_spark.console.places import NO_PLACES, Gazetteer
from backend_spark.errors import ExportError
from backend_spark.i18n import reasons_of
from backend_spark.scoring.holds import (
    GRACE_S,
    HELD,
    JUDGED,
    NO_LIMITS,
    HoldLimits,
    PresentLevel,
)
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from slope_science.findings import LOWEST, Cause, find_causes

VALIDITY: Final = timedelta(seconds=GRACE_S)
"""Validity of a row after the end of its step; then its cell is silent."""

AHEAD: Final = timedelta(seconds=STEP_S)
"""A row belongs to the end of its step, which may be ahead of the present."""

COLUMNS: Final = (
    "cell",
    "at",
    "level",
    "state",
    "known_until",
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
        level: 1 to 5, judged or held; None if it is unknown.
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
        state: Judged, held or unknown at the moment; see `scoring.holds`.
        known_until: End of the last judged step, where it is not judged.
        moment: The moment.
        last_level: Level of the last judgement, also after its hold has ended; None if
            it is not known.
        place: Name of the place; empty without one.
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
    state: str = JUDGED
    known_until: datetime | None = None
    moment: datetime | None = None
    last_level: int | None = None
    place: str = ""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Causes of the level, rain first."""
        reasons = reasons_of(self.reason_codes, self.reasons)
        return find_causes(self.level or LOWEST, reasons)

    @property
    def is_judged(self) -> bool:
        """Whether the level is that of the moment."""
        return self.level is not None and self.state == JUDGED

    @property
    def is_held(self) -> bool:
        """Whether the level is a held one."""
        return self.state == HELD


def read_cell_states(
    tables: DeltaTables,
    now: datetime,
    at: datetime | None = None,
    limits: HoldLimits = NO_LIMITS,
    places: Gazetteer = NO_PLACES,
    *,
    may_be_old: bool = False,
) -> tuple[datetime, list[CellState]]:
    """States of all cells at a moment, sorted by token.

    The present is never the time of the newest data: a level is as old as it is.

    Args:
        tables: Tables with the levels.
        now: The present, with its zone.
        at: The moment, with its zone; None means the present.
        limits: When holds of levels end.
        places: Names of the cells.
        may_be_old: Whether the rows of all cells may be from before the time for which
            a level is held, so that all levels are unknown.

    Returns:
        The moment, and one state for each cell with a row in the time before it for
        which a level is held, or with its newest row of all before that time.

    Raises:
        ExportError: There is no level at that moment.
    """
    moment = at or now
    # The present step ends after the present.
    until = moment if at is not None else moment + AHEAD
    since = moment - timedelta(seconds=max(limits.hold_s, 86_400.0))
    rows = tables.newest_levels(COLUMNS, since, until, with_silent=True)
    if not rows or not (may_be_old or any(row["at"] >= since for row in rows)):
        raise _no_levels(tables, moment)
    states = [state_of_row(row, moment, limits) for row in rows]
    return moment, [replace(each, place=places.name(each.cell)) for each in states]


def _no_levels(tables: DeltaTables, moment: datetime) -> ExportError:
    newest = pc.max(tables.newest()["at"]).as_py()
    if newest is None:
        remedy = "score first: backend-spark score"
        return ExportError("levels", "a table with rows", "none", remedy)
    rule = "a moment that levels were computed for"
    remedy = f"the newest level is of {newest.isoformat()}; give --at for the past"
    return ExportError("--at", rule, moment.isoformat(), remedy)


def state_of_row(
    row: dict[str, Any], moment: datetime, limits: HoldLimits = NO_LIMITS
) -> CellState:
    """State of a cell at a moment by its newest row, which has all of `COLUMNS`."""
    present = PresentLevel.of_row(row, moment.timestamp(), limits)
    codes, reasons = row["reason_codes"] or (), row["reasons"] or ()
    known_s = present.known_until_s
    return CellState(
        cell=row["cell"],
        at=row["at"],
        level=present.level,
        r60_mm=row["r60_mm"],
        swi_mm=row["swi_mm"],
        margin_mm=row["margin_mm"],
        completeness=row["completeness"],
        is_lower_bound=bool(row["lower_bound"]),
        is_silent=moment - row["at"] > VALIDITY,
        reasons=tuple(reasons),
        assumed=tuple(row["assumed"] or ()),
        n_nodes=row["n_nodes"] or 0,
        reason_codes=tuple(codes),
        state=present.state,
        known_until=None if known_s is None else datetime.fromtimestamp(known_s, UTC),
        moment=moment,
        last_level=row["level"] or ended_level(reasons_of(codes, reasons)),
    )
