"""Thresholds set in the console, their versions, and levels under assumed rain.

The newest version of a cell, or of all cells, is used in the console at once; the
prefecture's critical line stays. The same thresholds are written as a table for the
scoring job, which reads it if ``criteria.changes`` names it.
"""

import csv
import io
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import numpy as np

from backend_spark.console import level_grid
from backend_spark.console.audit_log import Journal, JournalEntry
from backend_spark.console.level_grid import LevelGrid
from backend_spark.console.live_state import LiveState
from backend_spark.console.snake_line import WIDEST_MM, moments_ahead
from backend_spark.criteria.tables import OTHER_CELLS, CriteriaTable
from service_runtime.files import write_atomic
from slope_science.criteria import (
    ADVISORY_LEVEL,
    JUDGED_LEVELS,
    NOT_JUDGED_MM,
    SPECIAL_LEVEL,
    WARNING_LEVEL,
    Criteria,
)
from slope_science.findings import EMERGENCY, LOWEST
from slope_science.rain import STEPS_PER_HOUR, assumed_levels
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason

ALL_CELLS: Final = ""
JAPAN: Final = timezone(timedelta(hours=9))
MAX_VERSIONS: Final = 10_000
MAX_HOURS: Final = 6
MAX_MM_PER_H: Final = 200.0
FAR_MM: Final = 1e9
_LEVELS: Final = range(LOWEST, EMERGENCY + 1)


@dataclass(frozen=True)
class Thresholds:
    """Criteria of each cell in the console.

    Attributes:
        journal: Stores the versions.
        base: The prefecture's table, with the default of cells that it lacks.
        table: The file for the job.
    """

    journal: Journal
    base: CriteriaTable
    table: Path
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def default(self) -> Criteria:
        """Criteria of cells without a version and without a row in the base."""
        return self.base.default

    def for_cell(self, cell: str) -> Criteria:
        """Criteria of a cell: its newest version, or that of all cells, or the base.

        A version for all cells replaces earlier versions of single cells; it leaves
        out the levels that the prefecture does not judge in a cell.
        """
        return self.lookup()(cell)

    def has_version(self, cell: str) -> bool:
        """Whether the cell has a version, which gold may not have been scored with."""
        own, common = self._set()
        return cell in own or common is not None

    def lookup(self) -> Callable[[str], Criteria]:
        """Criteria of many cells, as `for_cell` gives them, after one reading."""
        own, common = self._set()

        def criteria(cell: str) -> Criteria:
            base = self.base.criteria_of(cell)
            if cell in own:
                return _changed(base, own[cell])
            return _changed(base, common, base.not_judged) if common else base

        return criteria

    def _set(self) -> tuple[dict[str, Criteria], Criteria | None]:
        """Versions of single cells, and of all others if there is one."""
        own: dict[str, Criteria] = {}
        for entry in self.versions():
            if entry.subject == ALL_CELLS:
                return own, _version(entry)
            own.setdefault(entry.subject, _version(entry))
        return own, None

    def versions(self) -> list[JournalEntry]:
        """Versions, newest first."""
        return self.journal.read("threshold", limit=MAX_VERSIONS)

    def add_version(
        self, at_s: float, who: str, cell: str, body: dict[str, Any]
    ) -> None:
        """Write a new version, and the table for the job.

        Raises:
            ScienceError: The criteria are out of order; nothing is written.
        """
        criteria_from_body(body)
        # Without the lock an older table could overwrite a newer one.
        with self._writing:
            self.journal.write(at_s, "threshold", cell, who, body)
            self.write_table()

    def write_table(self) -> None:
        """Write the table for the job atomically."""
        text = io.StringIO()
        out = csv.writer(text)
        out.writerow(["cell", "LEVEL1", "LEVEL2", "SPECIAL", "VERSION"])
        own, common = self._set()
        # The job applies this row to cells that are unknown today, too.
        rows = own | ({} if common is None else {OTHER_CELLS: common})
        for cell, criteria in rows.items():
            limits = (criteria.advisory_mm, criteria.warning_mm)
            basis = render_english(criteria.basis) if criteria.basis else ""
            out.writerow([cell, *limits, criteria.special_mm, basis])
        write_atomic(self.table, text.getvalue().encode())


def _changed(
    base: Criteria, version: Criteria, not_judged: Iterable[int] = ()
) -> Criteria:
    """Criteria of a version with the prefecture's critical line and look-ahead."""
    given = {
        ADVISORY_LEVEL: version.advisory_mm,
        WARNING_LEVEL: version.warning_mm,
        SPECIAL_LEVEL: version.special_mm,
    } | dict.fromkeys(not_judged, NOT_JUDGED_MM)
    return replace(
        version,
        advisory_mm=given[ADVISORY_LEVEL],
        warning_mm=given[WARNING_LEVEL],
        special_mm=given[SPECIAL_LEVEL],
        line=base.line,
        look_ahead_h=base.look_ahead_h,
    )


def _version(entry: JournalEntry) -> Criteria:
    """Criteria of a journal entry; the version names the account and the day (JST)."""
    day = datetime.fromtimestamp(entry.at_s, JAPAN)
    basis = Reason(ReasonCode.SET_BY, person=entry.who, day=f"{day:%Y-%m-%d}")
    return replace(criteria_from_body(entry.body), basis=basis)


def criteria_from_body(body: dict[str, Any]) -> Criteria:
    """Criteria of a version, without the critical line of the base.

    Raises:
        ScienceError: They are out of order.
    """
    return Criteria(
        body["warning_mm"], body["advisory_mm"], body["special_mm"], assumed=False
    )


def count_highest_levels(
    grid: LevelGrid, rows: Iterable[int], criteria: Criteria
) -> list[int]:
    """Number of cells whose highest level by rain in 72 hours is 1, 2, 3, 4 and 5.

    Args:
        grid: The grid.
        rows: Rows of the cells to count.
        criteria: Applied to all of them.
    """
    wanted = list(rows)
    swi, r60 = (grid.numbers[n][wanted] for n in ("swi_mm", "r60_mm"))
    r60s = np.arange(WIDEST_MM + 1, dtype=float)
    levels = np.where(np.isnan(swi), level_grid.MISSING, LOWEST)
    for level in JUDGED_LEVELS:
        # A level that is not judged is far above every index; inf gives nan between.
        limits = [min(criteria.limit_mm(level, r), FAR_MM) for r in r60s]
        limit = np.interp(np.nan_to_num(r60), r60s, limits)
        levels = np.where(swi >= limit, np.maximum(levels, level), levels)
    highest = levels.max(axis=1, initial=level_grid.MISSING)
    return [int((highest == level).sum()) for level in _LEVELS]


def what_if_levels(
    live_state: LiveState, thresholds: Thresholds, mm_per_h: float, hours: int
) -> dict[str, Any]:
    """Highest level of each cell under assumed rain, in the order of the cells.

    Even rain from the present on. Level 5 is allowed, unlike in the official outlook,
    which caps assumed rain at level 4: the question here is which level is reached
    once that rain has fallen. A silent cell or one without soil water has no start and
    stays missing or held. Movement is not judged; the present level, which includes
    it, is the minimum.

    Args:
        live_state: The present.
        thresholds: Of the cells.
        mm_per_h: Intensity of the rain.
        hours: Duration of the rain.
    """
    with live_state.lock:
        cells = list(zip(live_state.grid.tokens, live_state.grid.latest, strict=True))
        fresh = live_state.grid.levels_at(live_state.present_step_s()).tolist()
    shown = live_state.snapshot()["levels"]
    depths = [mm_per_h / STEPS_PER_HOUR] * (hours * STEPS_PER_HOUR)
    criteria_of = thresholds.lookup()
    levels = []
    for (token, latest), now, at in zip(cells, shown, fresh, strict=False):
        if at == level_grid.MISSING or latest.tanks is None:
            levels.append(now if now > level_grid.HELD_OFFSET else level_grid.MISSING)
            continue
        moments = moments_ahead(latest.tanks, latest.r60_mm or 0.0, depths)
        by_rain = assumed_levels(moments, criteria_of(token), max_level=EMERGENCY)
        present, is_held = level_grid.severity(now)
        rises = max(by_rain) > present
        levels.append(
            now if present and is_held and not rises else max(*by_rain, present, LOWEST)
        )
    return {"levels": levels, "mm_per_h": mm_per_h, "hours": hours}
