"""Preview of a review: the levels of a cell as they are, and as they would be.

The job's own code scores the cell twice from the saved state before the first reading
of the review: with the reviews in force and with those that would be.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from backend_spark.config import ScoreSection
from backend_spark.console.threshold_preview import PreviewBusyError
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.scoring.arrow import ScoreCollector, Scorer
from backend_spark.scoring.cell_state import REREAD_S
from backend_spark.scoring.decode import has_plausible_time
from backend_spark.scoring.nearby_gauges import find_nearby_cells
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.reviews import ReadingReview, ReadingReviews
from backend_spark.tables.delta_writer import read_cell_states
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader
from backend_spark.tables.store import Folder, is_table
from slope_science.findings import DANGER

MAX_CHANGES: Final = 20
"""Periods with another level in a preview, the newest."""

_MICRO: Final = 1_000_000

Row = Mapping[str, Any]


@dataclass(frozen=True)
class LevelChange:
    """Steps in a row that have another level.

    Attributes:
        begin_s: Unix time of the begin of the first step.
        end_s: Of the end of the last one.
        before: Level as it is; None is unknown.
        after: As it would be.
    """

    begin_s: int
    end_s: int
    before: int | None
    after: int | None


@dataclass(frozen=True)
class ReviewEffect:
    """What a review changes.

    Attributes:
        before: Level, state and level of notices of the newest step, as they are.
        after: As they would be; both are None without a step.
        changes: Periods in which the level changes, newest first.
        steps: Number of steps with another level.
        raised_to: Highest level, 4 or 5, to which a step is raised; None: none is.
        is_raised_now: Whether the newest step is raised to 4 or more, so that notices
            and sirens follow.
    """

    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changes: tuple[LevelChange, ...]
    steps: int
    raised_to: int | None
    is_raised_now: bool

    @classmethod
    def of(cls, pairs: Sequence[tuple[Row, Row]]) -> "ReviewEffect":
        """Make it from pairs of rows of levels, before and after, by time."""
        changes = list(_changes(pairs))
        raised = [b["level"] for a, b in pairs if _is_raised(a, b)]
        newest = pairs[-1] if pairs else None
        return cls(
            _shown(newest[0]) if newest else None,
            _shown(newest[1]) if newest else None,
            tuple(changes[: -MAX_CHANGES - 1 : -1]),
            sum(a["level"] != b["level"] for a, b in pairs),
            max(raised, default=None),
            bool(newest and _is_raised(*newest)),
        )

    def to_json(self) -> dict[str, Any]:
        """For the page."""
        return asdict(self)


def _is_raised(before: Row, after: Row) -> bool:
    level = after["level"] or 0
    return level >= DANGER and level > (before["level"] or 0)


def _shown(row: Row) -> dict[str, Any]:
    notice = row["notice_level"]
    return {
        "at_s": _time(row),
        "level": row["level"],
        "state": row["state"],
        "notice_level": row["level"] if notice is None else notice,
    }


def _changes(pairs: Sequence[tuple[Row, Row]]) -> list[LevelChange]:
    found = []
    levels = groupby(pairs, key=lambda pair: (pair[0]["level"], pair[1]["level"]))
    for (before, after), group in levels:
        steps = list(group)
        if before != after:
            begin_s = _time(steps[0][0]) - STEP_S
            found.append(LevelChange(begin_s, _time(steps[-1][0]), before, after))
    return found


def _time(row: Row) -> int:
    at_s: float = row["at"].timestamp()
    return round(at_s)


@dataclass(frozen=True)
class ReviewPreview:
    """Scores a cell with other reviews.

    Attributes:
        tables: Folder of the tables.
        rules: Rules of cells, with the thresholds in force.
        settings: Of the scoring.
    """

    tables: Folder
    rules: CellRuleProvider
    settings: ScoreSection
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def compare(
        self,
        cell: str,
        from_s: float,
        reviews: tuple[Sequence[ReadingReview], Sequence[ReadingReview]],
        cells: Sequence[str],
    ) -> ReviewEffect:
        """Levels of a cell before and after a change of the reviews.

        Args:
            cell: Token of the cell.
            from_s: Unix time of the first reading whose review changes.
            reviews: Those in force, and those that would be.
            cells: Cells with nodes, among them those around.

        Raises:
            PreviewBusyError: Another preview is computed; they take seconds each.
        """
        if not self._busy.acquire(timeout=20.0):
            raise PreviewBusyError
        try:
            before, after = self._score(cell, from_s, reviews, cells)
        finally:
            self._busy.release()
        return ReviewEffect.of(list(zip(before, after, strict=True)))

    def _score(
        self,
        cell: str,
        from_s: float,
        reviews: tuple[Sequence[ReadingReview], Sequence[ReadingReview]],
        cells: Sequence[str],
    ) -> list[list[Row]]:
        from_us = {cell: round(from_s * _MICRO)}
        states = self.tables / "memories"
        known = read_cell_states(states, from_us).valid if is_table(states) else {}
        valid = known.get(cell)
        horizon_s = self.settings.horizon_days * 86_400
        since_s = valid[0] - REREAD_S if valid else from_s - horizon_s
        around = find_nearby_cells([cell], list(cells), self.settings.nearby_km)
        scorers = [
            Scorer(
                self.rules.rules_of([cell]),
                horizon_s,
                from_us,
                {cell: valid[1]} if valid else {},
                around,
                reviews=ReadingReviews(each),
            )
            for each in reviews
        ]
        history = self._history(sorted(scorers[0].cells), since_s, horizon_s)
        return [_rows(scorer, history) for scorer in scorers]

    def _history(
        self, cells: Sequence[str], since_s: float, horizon_s: int
    ) -> pa.Table:
        path = self.tables / "silver"
        reader = CellRowReader(path, HISTORY_SCHEMA, cells, round(since_s * _MICRO))
        rows = reader.read(reader.list_files() if is_table(path) else [])
        return rows.filter(
            has_plausible_time(rows, self.settings.max_ahead_s, horizon_s)
        )


def _rows(scorer: Scorer, history: pa.Table) -> list[Row]:
    found = ScoreCollector()
    scorer.collect(history, found)
    rows: list[Row] = found.tables()["levels"].sort_by("at").to_pylist()
    return rows
