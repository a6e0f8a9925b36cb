"""Thresholds set in the console, their versions, and levels under assumed rain.

The newest version of a cell, or of all cells, is used in the console at once. It has
its own criteria, a percentage for the prefecture's critical line, and rates of tilt.
The same thresholds are written as a table for the scoring job, which reads it if
``criteria.changes`` names it.
"""

import csv
import io
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from backend_spark.console import level_grid
from backend_spark.console.audit_log import Journal, JournalEntry
from backend_spark.console.level_grid import LevelGrid
from backend_spark.console.live_state import LiveState
from backend_spark.console.snake_line import WIDEST_MM, moments_ahead
from backend_spark.criteria.cell_rules import (
    AppliedReport,
    CellRuleProvider,
    change_number,
)
from backend_spark.criteria.tables import OTHER_CELLS, CriteriaRow, CriteriaTable
from service_runtime.decoding import convert
from service_runtime.files import put_in_place, write_beside_if_new
from slope_science import JST
from slope_science.evidence.settings import LevelThresholds, with_tilt_rates
from slope_science.levels import (
    EMERGENCY,
    FULL_PERCENT,
    JUDGED_LEVELS,
    LOWEST,
    Criteria,
)
from slope_science.rain_and_soil_water import STEPS_PER_HOUR, assumed_levels
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english

ALL_CELLS: Final = ""
MAX_VERSIONS: Final = 10_000
MAX_HOURS: Final = 6
MAX_MM_PER_H: Final = 200.0
FAR_MM: Final = 1e9
TABLE_COLUMNS: Final = (
    *("cell", "LEVEL1", "LEVEL2", "SPECIAL", "VERSION", "LINE_PERCENT"),
    *("TILT3_DEG_PER_H", "TILT4_DEG_PER_H"),
)
REPLACED: Final = "replaced"
WAITING: Final = "waiting"
APPLIED: Final = "applied"
NOT_READ: Final = "not_read"
_LEVELS: Final = range(LOWEST, EMERGENCY + 1)


class ThresholdVersion(msgspec.Struct, frozen=True):
    """Thresholds of one cell or of all cells, as the journal holds them.

    Attributes:
        advisory_mm: Criterion of level 2, soil water index.
        warning_mm: Of level 3.
        special_mm: Of level 5.
        why: Reason of the change.
        line_percent: Critical line in percent of the prefecture's.
        tilt_3_deg_per_h: Rate of tilt of level 3; None for that of the settings, as
            is the next one.
        tilt_4_deg_per_h: Of level 4.
        withdrawn: Whether the earlier versions end instead, and the values above do
            not count.
    """

    advisory_mm: float = 0.0
    warning_mm: float = 0.0
    special_mm: float = 0.0
    why: str = ""
    line_percent: float = FULL_PERCENT
    tilt_3_deg_per_h: float | None = None
    tilt_4_deg_per_h: float | None = None
    withdrawn: bool = False

    def row(self, version: str = "") -> CriteriaRow | None:
        """The row for the job's table; None where the version ends earlier ones.

        Args:
            version: Author and day, shown in reasons.
        """
        if self.withdrawn:
            return None
        tilt = (self.tilt_3_deg_per_h, self.tilt_4_deg_per_h)
        return CriteriaRow(
            self.advisory_mm,
            self.warning_mm,
            special_mm=self.special_mm,
            version=version,
            line_percent=None
            if self.line_percent == FULL_PERCENT
            else self.line_percent,
            tilt_deg_per_h=tuple(rate for rate in tilt if rate is not None),
        )


@dataclass(frozen=True)
class Thresholds:
    """Criteria of each cell in the console.

    The job and the console read the same file with the same code (`CellRuleProvider`).

    Attributes:
        journal: Stores the versions.
        rules: Rules of cells with the prefecture's criteria; `rules.changes` is the
            file for the job.
    """

    journal: Journal
    rules: CellRuleProvider
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def table(self) -> Path:
        """The file for the job.

        Raises:
            ValueError: The rules name none.
        """
        if self.rules.changes is None:
            raise ValueError("the rules of the console must name a file of changes")
        return self.rules.changes

    @property
    def default(self) -> Criteria:
        """Criteria of cells without a version and without a row in the base."""
        return self.rules.table.default

    def for_cell(self, cell: str) -> Criteria:
        """Criteria of a cell: its newest version, or that of all cells, or the base.

        A version for all cells replaces earlier versions of single cells; it leaves
        out the levels that the prefecture does not judge in a cell.
        """
        return self.lookup()(cell)

    def tilt_of(self, cell: str) -> LevelThresholds:
        """Levels and rates of tilt of a cell, the fastest first; none if not used."""
        row = self.rules.current_table().row(cell)
        tilt = self.rules.evidence_of(row).rules.tilt
        return tilt.thresholds if tilt.used else ()

    @property
    def speed(self) -> LevelThresholds:
        """Levels and speeds of displacement, the fastest first; none if not used."""
        displacement = self.rules.evidence.rules.displacement
        return displacement.thresholds if displacement.used else ()

    def has_version(self, cell: str) -> bool:
        """Whether the cell has a version, which gold may not have been scored with."""
        return self.rules.change_of(cell) is not None

    def lookup(self) -> Callable[[str], Criteria]:
        """Criteria of many cells, as `for_cell` gives them, after one reading."""
        return self.rules.current_table().criteria_of

    def changes(self) -> CriteriaTable:
        """The versions in force: of single cells, and of all others if there is one."""
        own: dict[str, CriteriaRow | None] = {}
        common = None
        for entry in self.versions():
            row = _row(entry)
            if entry.subject == ALL_CELLS:
                common = row
                break
            own.setdefault(entry.subject, row)
        rows = {cell: row for cell, row in own.items() if row is not None}
        return CriteriaTable(self.default, rows, others=common)

    def changes_with(self, cell: str, version: ThresholdVersion) -> CriteriaTable:
        """The versions in force if this one were saved."""
        row = version.row()
        if cell == ALL_CELLS:
            return CriteriaTable(self.default, others=row)
        now = self.changes()
        rows = {c: r for c, r in now.by_cell.items() if c != cell}
        return replace(now, by_cell=rows if row is None else {**rows, cell: row})

    def versions(self) -> list[JournalEntry]:
        """Versions, newest first."""
        return self.journal.read("threshold", limit=MAX_VERSIONS)

    def check(self, version: ThresholdVersion) -> None:
        """Check a version.

        Raises:
            ScienceError: The criteria or the rates of tilt are out of order.
        """
        row = version.row()
        if row is not None:
            row.criteria()
        if row is not None and row.tilt_deg_per_h:
            with_tilt_rates(self.rules.evidence, *row.tilt_deg_per_h)

    def add_version(
        self, at_s: float, who: str, cell: str, version: ThresholdVersion
    ) -> None:
        """Write a new version, and the table for the job.

        Raises:
            ScienceError: The criteria are out of order; nothing is written.
        """
        self.check(version)
        # Without the lock an older table could overwrite a newer one.
        with self._writing:
            # What a full disk refuses must not take effect with the next version.
            with self.journal.batch():
                body = msgspec.to_builtins(version)
                self.journal.write(at_s, "threshold", cell, who, body)
                is_new = self._write_beside()
            if is_new:
                put_in_place(self.table)

    def write_table(self) -> None:
        """Write the table for the job atomically.

        It is empty after the last version ended: to the job, a missing table is a lost
        one. There is none before the first version.
        """
        if self._write_beside():
            put_in_place(self.table)

    def _write_beside(self) -> bool:
        """Write the table beside the one for the job; False if it is the same."""
        now = self.changes()
        # The job applies the last row to cells that are unknown today, too.
        rows = {**now.by_cell} | (
            {} if now.others is None else {OTHER_CELLS: now.others}
        )
        if not (rows or self.versions()):
            self.table.unlink(missing_ok=True)
            return False
        text = io.StringIO()
        out = csv.writer(text)
        out.writerow(TABLE_COLUMNS)
        for cell, row in rows.items():
            tilt = row.tilt_deg_per_h or ("", "")
            limits = (row.advisory_mm, row.warning_mm, row.special_mm)
            out.writerow([cell, *limits, row.version, row.line_percent or "", *tilt])
        return write_beside_if_new(self.table, text.getvalue().encode())


def _row(entry: JournalEntry) -> CriteriaRow | None:
    """Row of a journal entry; its version names the account and the day (JST)."""
    day = datetime.fromtimestamp(entry.at_s, JST)
    basis = Reason(ReasonCode.SET_BY, person=entry.who, day=f"{day:%Y-%m-%d}")
    version: ThresholdVersion = convert(entry.body, ThresholdVersion)
    return version.row(render_english(basis))


def job_state(read: str | None, ours: Path, *, is_reported: bool) -> dict[str, Any]:
    """Whether the job reads a file of this console, and the two paths.

    Args:
        read: File that the job reads; None for none.
        ours: That of the console.
        is_reported: Whether there is a report of the job.

    Returns:
        ``state``: ``unreported``, ``reads_none``, ``reads_other`` or ``reads``.
    """
    expected = str(ours.absolute())
    if not is_reported:
        state = "unreported"
    elif read is None:
        state = "reads_none"
    else:
        state = "reads" if read == expected else "reads_other"
    return {"state": state, "path": read, "expected": expected}


@dataclass(frozen=True)
class ThresholdStates:
    """States of versions, by the job's report: whether the job has applied them.

    Attributes:
        thresholds: The versions in force.
        entries: Versions of the journal, newest first.
        report: The job's report; None without one.
        cells: All cells of the map.
    """

    thresholds: Thresholds
    entries: Sequence[JournalEntry]
    report: AppliedReport | None
    cells: Sequence[str]

    def job(self) -> dict[str, Any]:
        """Whether the job reads the changes of this console."""
        read = None if self.report is None else self.report.changes
        ours = self.thresholds.table
        return job_state(read, ours, is_reported=self.report is not None)

    def of(self, entry: JournalEntry) -> dict[str, Any]:
        """State of a version: how many of its cells are scored with it.

        Attributes:
            state: ``replaced``, ``not_read``, ``waiting`` or ``applied``.
            n_cells: Cells for which it is in force.
            n_applied: Those that the job has scored with it.
            applied_s: Unix time at which the last of them was; None: not all are.
        """
        cells = self._in_force.get(entry.id, [])
        if not cells:
            return {"state": REPLACED, "n_cells": 0, "n_applied": 0, "applied_s": None}
        times = list(self._applied_times(cells))
        is_whole = len(times) == len(cells)
        state = APPLIED if is_whole else WAITING
        if not is_whole and self.job()["state"] != "reads":
            state = NOT_READ
        return {
            "state": state,
            "n_cells": len(cells),
            "n_applied": len(times),
            "applied_s": max(times) if is_whole else None,
        }

    @cached_property
    def _in_force(self) -> dict[int, list[str]]:
        """Cells of each version in force."""
        found: dict[int, list[str]] = {}
        free = dict.fromkeys(self.cells)
        for entry in self.entries:
            own = list(free) if entry.subject == ALL_CELLS else [entry.subject]
            found[entry.id] = [cell for cell in own if cell in free]
            for cell in found[entry.id]:
                del free[cell]
        return found

    def _applied_times(self, cells: Iterable[str]) -> Iterable[float]:
        if self.report is None:
            return
        for cell in cells:
            number = change_number(self.thresholds.rules.change_of(cell))
            at_s = self.report.applied_s(cell, number)
            if at_s is not None:
                yield at_s


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
