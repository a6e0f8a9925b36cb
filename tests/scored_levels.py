"""Levels of cells from readings whose flags are given, and scores as rows of tables."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from backend_spark.scoring.arrow import ScoreCollector
from backend_spark.scoring.cell_readings import CellReadings, first_changed_s
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.score import CellPass, CellScores, LevelRow, level_rows
from slope_science.levels import Criteria


def score_levels(
    observations: Sequence[Observation],
    criteria: Criteria,
    touched_s: float | None = None,
) -> list[LevelRow]:
    """Score a cell at the end of each step from its first to its last reading.

    Args:
        observations: All readings of the cell within the horizon, in any order; their
            flags are used as given.
        criteria: Criteria for rain.
        touched_s: Unix time of the earliest new reading; only rows that it can change
            are returned. None returns all.
    """
    if not observations:
        return []
    from_s = first_changed_s(observations, touched_s)
    known = sorted(observations, key=lambda o: o.at_s)
    rules = CellRules(criteria)
    run = CellPass(CellReadings.from_observations(known, from_s), known, rules)
    return level_rows(run, rules, from_s)


def make_levels_table(cell: str, rows: list[LevelRow]) -> pa.Table:
    """Scored rows as Arrow."""
    return _tables(cell, CellScores(rows, [], []))["levels"]


def make_sensors_table(cell: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of sensors as Arrow."""
    return _tables(cell, CellScores([], rows, []))["sensors"]


def _tables(cell: str, scores: CellScores) -> dict[str, pa.Table]:
    collector = ScoreCollector()
    collector.add(cell, scores)
    return collector.tables()
