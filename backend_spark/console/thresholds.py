"""Thresholds as people set them: every version is kept, with who, when and why.

The newest version of a cell, or of all cells, counts in the console at once; a
prefecture's critical line stays. For the job the same is written as a table of
criteria that ``criteria.changes`` can name.

What if it rains: the levels of all cells under rain that somebody assumes.
"""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import numpy as np

from backend_spark.console import level_grid, snake_line
from backend_spark.console.audit_log import Entry, Journal
from backend_spark.console.level_grid import Grid
from backend_spark.console.live_state import Board
from backend_spark.console.snake_line import WIDEST_MM
from backend_spark.criteria.tables import OTHERS, CriteriaTable
from service_runtime.files import fsync_file, fsync_folder
from slope_science.criteria import Criteria
from slope_science.findings import ADVISORY, DANGER, EMERGENCY, LOWEST, WARNING
from slope_science.reason_text import english
from slope_science.reasons import Reason, ReasonCode

ALL_CELLS: Final = ""
JAPAN: Final = timezone(timedelta(hours=9))
MOST_VERSIONS: Final = 10_000
_LEVELS: Final = range(LOWEST, EMERGENCY + 1)


@dataclass(frozen=True)
class Thresholds:
    """What each cell is judged against in the console.

    Attributes:
        journal: Keeps the versions.
        base: The prefecture's table, and the default where it has none.
        table: The file for the job.
    """

    journal: Journal
    base: CriteriaTable
    table: Path

    @property
    def default(self) -> Criteria:
        """Where neither a person nor the prefecture has set any."""
        return self.base.default

    def of(self, cell: str) -> Criteria:
        """Criteria of a cell: its own newest version, or that of all, or the base.

        A version for all cells replaces those of single cells before it.
        """
        return self.newest()(cell)

    def is_changed(self, cell: str) -> bool:
        """Whether somebody set criteria here that gold may not have been judged by."""
        own, common = self._set()
        return cell in own or common is not None

    def newest(self) -> Callable[[str], Criteria]:
        """What `of` does, for many cells."""
        own, common = self._set()

        def criteria(cell: str) -> Criteria:
            base, changed = self.base.of(cell), own.get(cell) or common
            return replace(changed, line=base.line) if changed else base

        return criteria

    def _set(self) -> tuple[dict[str, Criteria], Criteria | None]:
        """Versions of single cells, and of all others; None where nobody set any."""
        own: dict[str, Criteria] = {}
        for entry in self.versions():
            if entry.subject == ALL_CELLS:
                return own, _version(entry)
            own.setdefault(entry.subject, _version(entry))
        return own, None

    def versions(self) -> list[Entry]:
        """Newest first."""
        return self.journal.read("threshold", most=MOST_VERSIONS)

    def change(
        self, at_s: float, who: str, cell: str, body: dict[str, Any]
    ) -> Criteria:
        """Write a new version.

        Raises:
            ScienceError: The criteria are out of order; nothing is written.
        """
        criteria = criteria_of(body)
        self.journal.write(at_s, "threshold", cell, who, body)
        return criteria

    def export(self) -> None:
        """Write the table for the job, whole or not at all."""
        text = io.StringIO()
        out = csv.writer(text)
        out.writerow(["cell", "LEVEL1", "LEVEL2", "SPECIAL", "VERSION"])
        own, common = self._set()
        # Cells that are not known yet must have those of all cells, too.
        rows = own | ({} if common is None else {OTHERS: common})
        for cell, criteria in rows.items():
            limits = (criteria.advisory_mm, criteria.warning_mm)
            basis = english(criteria.basis) if criteria.basis else ""
            out.writerow([cell, *limits, criteria.special_mm, basis])
        fresh = self.table.with_suffix(".new")
        fresh.write_text(text.getvalue(), encoding="utf-8")
        fsync_file(fresh)
        fresh.rename(self.table)
        fsync_folder(self.table.parent)


def _version(entry: Entry) -> Criteria:
    """Criteria that an entry of the book set, and who did so on which day of Japan."""
    day = datetime.fromtimestamp(entry.at_s, JAPAN)
    basis = Reason(ReasonCode.SET_BY, person=entry.who, day=f"{day:%Y-%m-%d}")
    return replace(criteria_of(entry.body), basis=basis)


def criteria_of(body: dict[str, Any]) -> Criteria:
    """Criteria as a version has them, without the table's critical line.

    Raises:
        ScienceError: They are out of order.
    """
    return Criteria(
        body["warning_mm"], body["advisory_mm"], body["special_mm"], assumed=False
    )


def highest_levels(known: Grid, rows: Iterable[int], criteria: Criteria) -> list[int]:
    """How many cells reached each level 1 to 5 by rain within the 72 hours.

    Args:
        known: The grid.
        rows: Of it, the cells that count.
        criteria: To judge all of them against.
    """
    places = list(rows)
    swi, r60 = (known.numbers[n][places] for n in ("swi_mm", "r60_mm"))
    r60s = np.arange(WIDEST_MM + 1, dtype=float)
    line = np.interp(
        np.nan_to_num(r60), r60s, [criteria.critical_line_mm(r) for r in r60s]
    )
    levels = np.where(np.isnan(swi), level_grid.MISSING, LOWEST)
    for level, limit in (
        (ADVISORY, criteria.advisory_mm),
        (WARNING, criteria.warning_mm),
        (DANGER, line),
        (EMERGENCY, criteria.special_mm),
    ):
        levels = np.where(swi >= limit, np.maximum(levels, level), levels)
    highest = levels.max(axis=1, initial=level_grid.MISSING)
    return [int((highest == level).sum()) for level in _LEVELS]


MOST_HOURS: Final = 6
MOST_MM_PER_H: Final = 200.0


def levels_if(
    board: Board, thresholds: Thresholds, mm_per_h: float, hours: int
) -> dict[str, Any]:
    """Highest level of each cell by rain, in the order of the cells.

    Even rain from the present on. A cell without soil water now stays missing: it
    starts nowhere. Signs of motion are not judged; the present level, which has
    them, is the least that is shown.

    Args:
        board: The present.
        thresholds: Of the cells.
        mm_per_h: Rain.
        hours: How long.
    """
    with board.lock:
        cells = list(zip(board.grid.tokens, board.grid.latest, strict=True))
        shown = board.grid.shown(board.present_step_s()).tolist()
    depths = [mm_per_h / snake_line.HOUR_STEPS] * (hours * snake_line.HOUR_STEPS)
    criteria_of = thresholds.newest()
    levels = []
    for (token, latest), now in zip(cells, shown, strict=True):
        if now == level_grid.MISSING or latest.tanks is None:
            levels.append(level_grid.MISSING)
            continue
        start = (latest.tanks, latest.r60_mm or 0.0)
        then = snake_line.future("given", start, depths, criteria_of(token))
        levels.append(max(then.level, now if now != level_grid.NO_JUDGEMENT else 0))
    return {"levels": levels, "mm_per_h": mm_per_h, "hours": hours}
