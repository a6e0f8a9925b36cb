"""Preview of thresholds: a cell's past judged with them, by the rules of the pipeline.

The readings of the last month are scored twice by `scoring.arrow.Scorer`, as a pass
scores them: with the thresholds in force and with those to preview.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.config import ScoreSection
from backend_spark.console.thresholds import Thresholds
from backend_spark.criteria.tables import CriteriaTable
from backend_spark.scoring.arrow import ScoreCollector, Scorer
from backend_spark.scoring.decode import has_plausible_time
from backend_spark.scoring.nearby_gauges import find_nearby_cells
from backend_spark.scoring.observation import STEP_S
from backend_spark.scoring.rules import CellRules
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader
from backend_spark.tables.store import Folder, is_table
from slope_science.findings import ADVISORY, EMERGENCY, LOWEST

PREVIEW_DAYS: Final = 30
MAX_STORMS: Final = 5
DRY_STEPS: Final = 24 * 3600 // STEP_S
"""A day without rain ends a storm (一連の雨)."""

_MICRO: Final = 1_000_000
_LEVELS: Final = range(ADVISORY, EMERGENCY + 1)

Row = Mapping[str, Any]


class PreviewBusyError(Exception):
    """Another preview is computed."""


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
        tables: Folder of the tables.
        thresholds: Those in force.
        settings: Of the scoring.
    """

    tables: Folder
    thresholds: Thresholds
    settings: ScoreSection
    _busy: threading.Lock = field(default_factory=threading.Lock)

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
            PreviewBusyError: Another preview is computed; they take seconds each.
        """
        if not self._busy.acquire(timeout=20.0):
            raise PreviewBusyError
        try:
            rules = self.thresholds.rules.rules_of([cell])[cell]
            around = find_nearby_cells([cell], list(cells), self.settings.nearby_km)
            others = {token for _, token in around[cell]}
            history = self._history(sorted({cell, *others}), now_s)
            before, after = (
                self._score(cell, each, history, around) for each in (rules, draft)
            )
        finally:
            self._busy.release()
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

    def _history(self, cells: Sequence[str], now_s: float) -> pa.Table:
        path = self.tables / "silver"
        if not is_table(path):
            return CellRowReader(path, HISTORY_SCHEMA, cells, 0).read([])
        since_us = round((now_s - PREVIEW_DAYS * 86_400) * _MICRO)
        reader = CellRowReader(path, HISTORY_SCHEMA, cells, since_us)
        rows = reader.read(reader.list_files())
        horizon_s = self.settings.horizon_days * 86_400
        return rows.filter(
            has_plausible_time(rows, self.settings.max_ahead_s, horizon_s)
        )

    def _score(
        self, cell: str, rules: CellRules, history: pa.Table, around: Mapping[str, Any]
    ) -> list[Row]:
        """Rows of levels of the cell, by time."""
        ours = history.filter(pc.equal(history["cell"], cell))
        if not ours.num_rows:
            return []
        first_us = pc.min(ours["at"].cast(pa.int64())).as_py()
        horizon_s = PREVIEW_DAYS * 86_400
        scorer = Scorer({cell: rules}, horizon_s, {cell: first_us}, around=around)
        found = ScoreCollector()
        scorer.collect(history, found)
        rows: list[Row] = found.tables()["levels"].sort_by("at").to_pylist()
        return rows


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


def _time(row: Row) -> int:
    at_s: float = row["at"].timestamp()
    return round(at_s)


def _highest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(max(known), 1) if known else None


def _highest_level(rows: Sequence[Row]) -> int:
    levels: list[int] = [row["level"] or 0 for row in rows]
    return max(levels)


def _first_warning(rows: Sequence[Row]) -> int | None:
    found = (_time(row) for row in rows if (row["level"] or 0) >= ADVISORY + 1)
    return next(found, None)
