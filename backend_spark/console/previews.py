"""Previews: the past of a cell judged twice, by the code of the job.

That of thresholds scores the last month with those in force and with others. That of a
review scores from the saved state before its first reading, with the reviews in force
and with those that would be.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.config import ScoreSection
from backend_spark.console.thresholds import Thresholds
from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.criteria.tables import CriteriaTable
from backend_spark.scoring.arrow import ScoreCollector, Scorer
from backend_spark.scoring.decode import has_plausible_time
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.reviews import ReadingReview, ReadingReviews
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import REREAD_S
from backend_spark.scoring.surrounding_rain import CellDistances, find_nearby_cells
from backend_spark.tables.delta_writer import read_cell_states
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader
from backend_spark.tables.store import Folder, is_table
from slope_science.levels import ADVISORY, DANGER, EMERGENCY, LOWEST

PREVIEW_DAYS: Final = 30
MAX_STORMS: Final = 5
DRY_STEPS: Final = 24 * 3600 // STEP_S
"""A day without rain ends a storm (一連の雨)."""

MAX_CHANGES: Final = 20
"""Periods with another level in a preview of a review, the newest."""

_MICRO: Final = 1_000_000
_LEVELS: Final = range(ADVISORY, EMERGENCY + 1)

Row = Mapping[str, Any]


class PreviewBusyError(Exception):
    """Another preview is computed."""

    def __init__(self) -> None:
        super().__init__("another preview is computed: try again")


@dataclass(frozen=True)
class CellBench:
    """Reads and scores the past of cells, for one preview at a time.

    Attributes:
        tables: Folder of the tables.
        settings: Of the scoring.
    """

    tables: Folder
    settings: ScoreSection
    _busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def horizon_s(self) -> int:
        """Maximum age of readings."""
        return self.settings.horizon_days * 86_400

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Exclude other previews, which take seconds each.

        Raises:
            PreviewBusyError: Another preview is computed.
        """
        if not self._busy.acquire(timeout=20.0):
            raise PreviewBusyError
        try:
            yield
        finally:
            self._busy.release()

    def nearby(self, cell: str, cells: Sequence[str]) -> Mapping[str, CellDistances]:
        """Cells around a cell whose rain it is compared with."""
        return find_nearby_cells([cell], cells, self.settings.nearby_km)

    def history(self, cells: Iterable[str], since_s: float) -> pa.Table:
        """Readings of cells from a time on, without those of a wrong clock."""
        path = self.tables / "silver"
        since_us = round(since_s * _MICRO)
        reader = CellRowReader(path, HISTORY_SCHEMA, sorted(cells), since_us)
        rows = reader.read(reader.list_files() if is_table(path) else [])
        ahead_s = self.settings.max_ahead_s
        return rows.filter(has_plausible_time(rows, ahead_s, self.horizon_s))


def _levels(scorer: Scorer, history: pa.Table) -> list[Row]:
    """Rows of levels that a scorer makes, by time."""
    found = ScoreCollector()
    scorer.collect(history, found)
    rows: list[Row] = found.tables()["levels"].sort_by("at").to_pylist()
    return rows


def _time(row: Row) -> int:
    at_s: float = row["at"].timestamp()
    return round(at_s)


@dataclass(frozen=True)
class StormComparison:
    """One storm, or a rise without rain, judged twice.

    Attributes:
        begin_s: Unix time of its first step.
        end_s: Of its last step.
        total_mm: Rain.
        highest_r60_mm: Highest 60-minute rain; None if unknown.
        highest_swi_mm: Highest soil water index; None if unknown.
        before: Highest level with the thresholds in force; 0 is unknown.
        after: With those to preview.
        before_s: Unix time of the first step at level 3 or more; None without.
        after_s: With those to preview.
    """

    begin_s: int
    end_s: int
    total_mm: float
    highest_r60_mm: float | None
    highest_swi_mm: float | None
    before: int
    after: int
    before_s: int | None
    after_s: int | None


@dataclass(frozen=True)
class PastPreview:
    """Judges the past of cells with other thresholds.

    Attributes:
        thresholds: Those in force.
        bench: Scores the cells.
    """

    thresholds: Thresholds
    bench: CellBench

    def compare(
        self, cell: str, draft: CellRules, now_s: float, cells: Sequence[str]
    ) -> dict[str, Any]:
        """Rises and storms of a cell before and after a change.

        Args:
            cell: Token of the cell.
            draft: Its rules with the thresholds to preview.
            now_s: Unix time.
            cells: Cells with nodes, among them those around.

        Raises:
            PreviewBusyError: Another preview is computed.
        """
        with self.bench.reserved():
            rules = self.thresholds.rules.rules_of([cell])[cell]
            around = self.bench.nearby(cell, cells)
            others = {token for _, token in around[cell]}
            since_s = now_s - PREVIEW_DAYS * 86_400
            history = self.bench.history({cell, *others}, since_s)
            before, after = (
                _score_all(cell, each, history, around) for each in (rules, draft)
            )
        return _compared(before, after)

    def draft_rules(self, cell: str, changes: CriteriaTable) -> CellRules:
        """Rules of a cell with other changes than those in force."""
        now = self.thresholds.rules
        table = now.table.with_changes(changes)
        return replace(
            now.rules_of([cell])[cell],
            criteria=table.criteria_of(cell),
            evidence=now.evidence_of(table.row(cell)),
        )


def _score_all(
    cell: str, rules: CellRules, history: pa.Table, around: Mapping[str, CellDistances]
) -> list[Row]:
    """Rows of levels of a cell from its first reading on, by time."""
    ours = history.filter(pc.equal(history["cell"], cell))
    if not ours.num_rows:
        return []
    first_us = pc.min(ours["at"].cast(pa.int64())).as_py()
    horizon_s = PREVIEW_DAYS * 86_400
    scorer = Scorer({cell: rules}, horizon_s, {cell: first_us}, around=around)
    return _levels(scorer, history)


def _compared(before: Sequence[Row], after: Sequence[Row]) -> dict[str, Any]:
    pairs = list(zip(before, after, strict=True))
    storms = sorted(map(_storm, _storms(pairs)), key=lambda s: s.begin_s, reverse=True)
    chosen = sorted(storms, key=_weight, reverse=True)[:MAX_STORMS]
    return {
        "from_s": round(before[0]["at"].timestamp()) - STEP_S if before else None,
        "to_s": round(before[-1]["at"].timestamp()) if before else None,
        "rises": [
            {"level": n, "before": _rises(before, n), "after": _rises(after, n)}
            for n in reversed(_LEVELS)
        ],
        "storms": [asdict(storm) for storm in storms if storm in chosen],
        "others": len(storms) - len(chosen),
    }


def _rises(rows: Sequence[Row], level: int) -> int:
    """How often the level rose to a level or above it."""
    known = [row["level"] for row in rows if row["level"] is not None]
    return sum(
        low < level <= high for low, high in zip([LOWEST, *known], known, strict=False)
    )


def _storms(pairs: Sequence[tuple[Row, Row]]) -> Iterator[Sequence[tuple[Row, Row]]]:
    """Steps of each storm, and of each time above level 1."""
    active = [at for at, pair in enumerate(pairs) if _is_active(pair)]
    first = 0
    for at, place in enumerate(active):
        is_last = at + 1 == len(active)
        if is_last or active[at + 1] - place > DRY_STEPS:
            yield pairs[active[first] : place + 1]
            first = at + 1


def _is_active(pair: tuple[Row, Row]) -> bool:
    raised = any((row["level"] or LOWEST) > LOWEST for row in pair)
    return raised or (pair[0]["r60_mm"] or 0.0) > 0


def _weight(storm: StormComparison) -> tuple[int, float]:
    """The storms worth looking at: those with the highest levels, then the wettest."""
    return max(storm.before, storm.after), storm.highest_swi_mm or 0.0


def _storm(pairs: Sequence[tuple[Row, Row]]) -> StormComparison:
    before, after = ([pair[n] for pair in pairs] for n in (0, 1))
    # 60-minute rain at every full hour of the storm, so that no rain counts twice.
    r60s = [row["r60_mm"] for row in before]
    hours = r60s[len(r60s) - 1 :: -6]
    swi = [row["swi_mm"] for row in before]
    return StormComparison(
        _time(before[0]) - STEP_S,
        _time(before[-1]),
        round(sum(mm or 0.0 for mm in hours), 1),
        _highest(r60s),
        _highest(swi),
        _highest_level(before),
        _highest_level(after),
        _first_warning(before),
        _first_warning(after),
    )


def _highest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(max(known), 1) if known else None


def _highest_level(rows: Sequence[Row]) -> int:
    levels: list[int] = [row["level"] or 0 for row in rows]
    return max(levels)


def _first_warning(rows: Sequence[Row]) -> int | None:
    found = (_time(row) for row in rows if (row["level"] or 0) >= ADVISORY + 1)
    return next(found, None)


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


@dataclass(frozen=True)
class ReviewPreview:
    """Scores a cell with other reviews.

    Attributes:
        rules: Rules of cells, with the thresholds in force.
        bench: Scores the cells.
    """

    rules: CellRuleProvider
    bench: CellBench

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
            PreviewBusyError: Another preview is computed.
        """
        bench, from_us = self.bench, {cell: round(from_s * _MICRO)}
        with bench.reserved():
            states = bench.tables / "memories"
            known = read_cell_states(states, from_us).valid if is_table(states) else {}
            valid = known.get(cell)
            around = bench.nearby(cell, cells)
            scorers = [
                Scorer(
                    self.rules.rules_of([cell]),
                    bench.horizon_s,
                    from_us,
                    {cell: valid[1]} if valid else {},
                    around,
                    reviews=ReadingReviews(each),
                )
                for each in reviews
            ]
            since_s = valid[0] - REREAD_S if valid else from_s - bench.horizon_s
            history = bench.history(scorers[0].cells, since_s)
            before, after = (_levels(scorer, history) for scorer in scorers)
        return ReviewEffect.of(list(zip(before, after, strict=True)))
