"""Runs of levels: since when each cell has had its present level.

The grid has 72 hours. A run that began before them, and the last row of a cell that has
been silent for longer, are in the newest levels of the tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from backend_spark.console import level_grid
from backend_spark.console.level_grid import LevelGrid
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from slope_science.criteria import Criteria
from slope_science.findings import ADVISORY, EMERGENCY

LAST_WEEK_S: Final = 7 * 86_400.0

_SEVERITY: Final = np.array([level_grid.severity(n)[0] for n in range(16)], np.uint8)


@dataclass
class LevelRuns:
    """Begin of the present run of each cell from level 2 on.

    Attributes:
        tables: The tables, for what is older than the grid.
    """

    tables: DeltaTables
    _begins: dict[str, tuple[int, int]] = field(default_factory=dict)
    _unknown: dict[str, int] = field(default_factory=dict)

    def update(self, grid: LevelGrid, shown: level_grid.Bytes) -> None:
        """Find the runs of levels; those older than the grid remain unknown.

        Args:
            grid: Levels of the last 72 hours.
            shown: Present level of each cell.
        """
        present = _SEVERITY[shown]
        rows = np.flatnonzero(present >= ADVISORY)
        levels = _SEVERITY[grid.levels[rows]]
        is_known = grid.levels[rows] != level_grid.MISSING
        is_other = is_known & (levels != present[rows, None])
        steps = levels.shape[1]
        last = np.where(
            is_other.any(1), steps - 1 - np.argmax(is_other[:, ::-1], axis=1), -1
        )
        is_run = is_known & (np.arange(steps) > last[:, None])
        first = np.argmax(is_run, axis=1)
        begins = self._begins
        self._begins, self._unknown = {}, {}
        for at, row in enumerate(rows.tolist()):
            token, level = grid.tokens[row], int(present[row])
            known = begins.get(token)
            if last[at] >= 0 and is_run[at].any():
                begin_s = grid.begin_s + int(first[at]) * STEP_S
                self._begins[token] = level, begin_s
            elif known is not None and known[0] == level:
                self._begins[token] = known
            else:
                self._unknown[token] = level

    def read_older(self, until_s: float) -> None:
        """Read the begins that are older than the grid from the tables."""
        wanted, self._unknown = self._unknown, {}
        if not wanted:
            return
        until = datetime.fromtimestamp(until_s, UTC)
        for token, at in self.tables.level_begins(wanted, until).items():
            self._begins[token] = wanted[token], round(at.timestamp())

    def begin_s(self, token: str) -> int:
        """Unix time of the begin of a run; 0 if unknown or below level 2."""
        return self._begins.get(token, (0, 0))[1]


def margin_mm(
    row: level_grid.LatestRow, level: int, criteria: Criteria
) -> float | None:
    """Soil water index that is missing to the next level; None without one."""
    if level >= EMERGENCY or row.tanks is None:
        return None
    limit_mm = criteria.limit_mm(level + 1, row.r60_mm or 0.0)
    margin = limit_mm - row.tanks.index_mm
    return round(margin, 1) if np.isfinite(margin) else None


def urgency(
    level: int, margin: float | None, households: int
) -> tuple[int, bool, float, int]:
    """Sort key of a cell in lists: level, margin to the next one, then households.

    A level comes before the same one held.
    """
    shown, is_held = level_grid.severity(level)
    return -shown, is_held, np.inf if margin is None else margin, -households


def silent_rows(
    tables: DeltaTables,
    grid: LevelGrid,
    last_s: Mapping[str, float],
    newest_s: float,
) -> Sequence[dict[str, Any]]:
    """The newest row of each cell that has been silent since before the grid.

    Args:
        tables: The tables.
        grid: Levels of the last 72 hours.
        last_s: Unix time of the last reading of each cell with nodes.
        newest_s: Unix time of the newest level in the tables.
    """
    until = datetime.fromtimestamp(grid.begin_s, UTC)
    if not grid.tokens:  # nothing for 72 hours: the last week that has levels
        since_s = min(newest_s, grid.begin_s) - LAST_WEEK_S
        since = datetime.fromtimestamp(max(since_s, 0.0), UTC)
        return tables.newest_levels(level_grid.COLUMNS, since, until)
    silent = {cell: at_s for cell, at_s in last_s.items() if cell not in grid.row_of}
    if not silent:
        return []
    since_s = max(min(silent.values()) - 86_400.0, 0.0)
    since = datetime.fromtimestamp(since_s, UTC)
    return tables.newest_levels(level_grid.COLUMNS, since, until, silent)


def last_readings(nodes: Iterable[Any]) -> dict[str, float]:
    """Unix time of the last reading of each cell, from the states of its nodes."""
    found: dict[str, float] = {}
    for node in nodes:
        if node.cell is not None:
            found[node.cell] = max(node.at_s, found.get(node.cell, 0.0))
    return found
