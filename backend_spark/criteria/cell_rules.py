"""Rules for scoring each cell, and the changes of criteria that the job has applied.

The job writes the applied changes to a file; the console compares it with the versions
that a chief saved, so that a version that never reaches the levels does not look like
one that did.
"""

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from backend_spark.analysed_cells import cell_meshes
from backend_spark.analysed_rain import AnalysisReader
from backend_spark.config import BackendSettings, RainCriteriaSection
from backend_spark.criteria.tables import CriteriaRow, CriteriaTable, read_criteria
from backend_spark.criteria.telegrams import telegrams_in
from backend_spark.errors import CriteriaTableError
from backend_spark.forecast import ForecastReader
from backend_spark.scoring.holds import NO_LIMITS, HoldLimits
from backend_spark.scoring.rules import ALONE_LEVEL, CellRules
from backend_spark.tables.store import tables_folder
from service_runtime.files import read_json_or, write_best_effort
from slope_science import ScienceError
from slope_science.evidence.settings import (
    DEFAULT_EVIDENCE,
    EvidenceSettings,
    with_tilt_rates,
)
from slope_science.levels import Criteria

log = logging.getLogger(__name__)

LAST_CHANGES_FILE: Final = "criteria-last.csv"
"""Name of the job's copy of ``criteria.changes`` in the data folder."""

APPLIED_FILE: Final = "criteria-applied.json"
NO_CHANGE: Final = 0


@dataclass(frozen=True)
class CellRuleProvider:
    """Makes the rules of cells.

    Attributes:
        table: Criteria.
        changes: File of criteria set in the console, which take precedence.
        last_changes: Copy of the last readable `changes`, which counts while that file
            is lost or damaged; None: kept only in memory.
        evidence: Rules of movement and water.
        limits: When holds of levels end.
        alone_level: Highest level of doubtful rain that nothing else confirms.
        look_ahead: Whether forecast rain may raise a level.
        same_rain: Whether the rain of the last hour may, without a forecast.
        telegrams: Folder of JMA's telegrams; None without telegrams.
        feed: Rain forecasts; None without forecasts.
        analyses: Analysed rain and soil water index; None without.
    """

    table: CriteriaTable
    look_ahead: bool = True
    same_rain: bool = False
    telegrams: Path | None = None
    feed: ForecastReader | None = None
    changes: Path | None = None
    limits: HoldLimits = NO_LIMITS
    alone_level: int = ALONE_LEVEL
    analyses: AnalysisReader | None = None
    evidence: EvidenceSettings = DEFAULT_EVIDENCE
    last_changes: Path | None = None
    _tables: dict[tuple[int, int] | None, CriteriaTable] = field(default_factory=dict)

    @classmethod
    def from_settings(
        cls,
        settings: RainCriteriaSection,
        feed: ForecastReader | None = None,
        limits: HoldLimits = NO_LIMITS,
        analyses: AnalysisReader | None = None,
        *,
        evidence: EvidenceSettings = DEFAULT_EVIDENCE,
    ) -> "CellRuleProvider":
        """Make from the settings.

        Args:
            settings: Settings of the criteria.
            feed: Rain forecasts.
            limits: When holds of levels end.
            analyses: Analysed rain and soil water index.
            evidence: Rules of movement and water.

        Raises:
            CriteriaTableError: The file is invalid.
        """
        assumed = Criteria.assumed_from(settings.warning_mm)
        default = replace(assumed, look_ahead_h=settings.look_ahead_h)
        table = CriteriaTable(default)
        if settings.file is not None:
            table = read_criteria(Path(settings.file), table.default)
        folder = None if settings.telegrams is None else Path(settings.telegrams)
        changes = None if settings.changes is None else Path(settings.changes)
        return cls(
            table,
            settings.look_ahead,
            settings.look_ahead_same_rain,
            folder,
            feed,
            changes,
            limits,
            settings.rain_alone_level,
            analyses,
            evidence,
        )

    def rules_of(self, cells: Iterable[str]) -> dict[str, CellRules]:
        """Rules of some cells with the present telegrams and forecasts."""
        telegrams = telegrams_in(self.telegrams).read() if self.telegrams else []
        rules, table = {}, self.current_table()
        newest = self.feed.newest_version() if self.feed else None
        analysed = self.analyses.newest_version() if self.analyses else None
        for cell in cells:
            code = table.municipality(cell)
            ours = tuple(t for t in telegrams if code in t.levels)
            criteria = table.criteria_of(cell)
            rules[cell] = CellRules(
                criteria,
                self.look_ahead,
                code if telegrams else None,
                ours,
                self.feed.cell_forecast(cell, code, newest, criteria.look_ahead_steps)
                if self.feed and newest
                else None,
                evidence=self.evidence_of(table.row(cell)),
                limits=self.limits,
                alone_level=self.alone_level,
                analyses=self.analyses.of_cell(cell_meshes(cell), analysed)
                if self.analyses and analysed
                else None,
                same_rain=self.same_rain,
            )
        return rules

    def evidence_of(self, row: CriteriaRow | None) -> EvidenceSettings:
        """Rules of movement and water of a cell, with the rates of tilt of its row."""
        if row is None or not row.tilt_deg_per_h:
            return self.evidence
        try:
            return with_tilt_rates(self.evidence, *row.tilt_deg_per_h)
        except ScienceError as error:
            log.error("%s; the rates of the settings count", error)  # noqa: TRY400
            return self.evidence

    def change_of(self, cell: str) -> CriteriaRow | None:
        """Criteria that the console set for a cell; None if it set none."""
        changes = self.current_table().changes
        return None if changes is None else changes.row(cell)

    def current_table(self) -> CriteriaTable:
        """The table with the changes made in the console so far.

        If their file is lost or cannot be read, an error is logged and the last good
        one counts: criteria that were lowered after an earthquake must not rise.
        """
        path = self.changes
        if path is None:
            return self.table
        try:
            stat = path.stat()
            stamp = stat.st_ino, stat.st_mtime_ns
        except OSError:  # missing, or its folder is away
            stamp = None
        if stamp not in self._tables:
            table = self._kept() if stamp is None else self._read_changes(path)
            if stamp is None and table.changes is not None:
                log.error(
                    "criteria.changes: %s is lost; criteria stay as they were", path
                )
            self._tables.clear()
            self._tables[stamp] = table
        return self._tables[stamp]

    def _read_changes(self, path: Path) -> CriteriaTable:
        """The table with the changes of a file, which is copied; else the last one."""
        try:
            table = self._with_changes(path)
        except CriteriaTableError as error:
            log.error("%s; criteria stay as they were", error)  # noqa: TRY400
            return self._kept()
        if self.last_changes is not None and path.is_file():
            with suppress(FileNotFoundError):  # just removed
                write_best_effort(self.last_changes, path.read_bytes())
        return table

    def _kept(self) -> CriteriaTable:
        """The last readable table, of this run or of the copy; else without changes."""
        if self._tables:
            return next(iter(self._tables.values()))
        copy = self.last_changes
        if copy is None or not copy.exists():
            return self.table
        try:
            return self._with_changes(copy)
        except CriteriaTableError as error:
            log.error("%s; the prefecture's criteria count", error)  # noqa: TRY400
            return self.table

    def _with_changes(self, path: Path) -> CriteriaTable:
        changes = read_criteria(path, self.table.default, may_be_empty=True)
        log.info("%d cells have criteria of their own", len(changes.by_cell))
        return self.table.with_changes(changes)


def make_cell_rules(settings: BackendSettings) -> CellRuleProvider:
    """Rules of cells with the forecasts and analyses of a data folder.

    Raises:
        CriteriaTableError: The file of criteria is invalid.
    """
    tables = tables_folder(settings.backend)
    return CellRuleProvider.from_settings(
        settings.criteria,
        ForecastReader(tables, settings.forecast.max_age_s),
        HoldLimits(settings.score.hold_s),
        AnalysisReader(tables, settings.analysis.max_age_s),
        evidence=settings.evidence,
    )


def change_number(row: CriteriaRow | None) -> int:
    """Number of a change, which differs between changes; `NO_CHANGE` without one."""
    return NO_CHANGE if row is None else zlib.crc32(repr(row).encode()) or 1


class AppliedReport(msgspec.Struct, frozen=True):
    """What the job applies.

    Attributes:
        changes: Absolute path of its setting ``criteria.changes``; None without.
        cells: Number of the change with which each cell was last scored, and the Unix
            time of the first pass with it; cells that never had one are left out.
    """

    changes: str | None
    cells: dict[str, tuple[int, float]] = {}

    def applied_s(self, cell: str, number: int) -> float | None:
        """Unix time since when a cell is scored with a change; None: it is not yet.

        0 for a cell without a change that never had one.
        """
        found, at_s = self.cells.get(cell, (NO_CHANGE, 0.0))
        return at_s if found == number else None


def read_applied(data: Path) -> AppliedReport | None:
    """The job's report in a data folder; None if there is none that can be read."""
    return read_json_or(data / APPLIED_FILE, AppliedReport, None)


@dataclass
class AppliedChanges:
    """The job's side: what its passes applied.

    Attributes:
        data: The data folder.
        rules: Rules of cells.
        clock: Unix time.
    """

    data: Path
    rules: CellRuleProvider
    clock: Callable[[], float]
    _cells: dict[str, tuple[int, float]] = field(default_factory=dict)
    _is_new: bool = True

    def __post_init__(self) -> None:
        """Go on from the report of the last run."""
        known = read_applied(self.data)
        if known is not None:
            self._cells = dict(known.cells)

    def numbers(self, cells: Iterable[str]) -> Mapping[str, int]:
        """Changes with which a pass that begins now scores cells.

        Cells without a change that never had one are left out.
        """
        if self.rules.current_table().changes is None and not self._cells:
            return {}
        found = ((cell, change_number(self.rules.change_of(cell))) for cell in cells)
        return {c: n for c, n in found if n != NO_CHANGE or c in self._cells}

    def add(self, numbers: Mapping[str, int]) -> None:
        """Add what a pass applied, once its levels are written."""
        now_s = self.clock()
        for cell, number in numbers.items():
            if self._cells.get(cell, (None, 0.0))[0] != number:
                self._cells[cell] = number, now_s
                self._is_new = True

    def save(self) -> None:
        """Write the report if it is new; if that fails, the next call tries again."""
        if not self._is_new:
            return
        source = self.rules.changes
        changes = None if source is None else str(source.absolute())
        text = json.dumps({"changes": changes, "cells": self._cells})
        path = self.data / APPLIED_FILE
        self._is_new = not write_best_effort(path, text.encode())
