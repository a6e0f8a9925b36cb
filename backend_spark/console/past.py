"""One cell in the past, as it is known now or as it was known then."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from backend_spark.console import grid, snake
from backend_spark.console.replay import Span, told_then
from backend_spark.console.series import MORE, futures_of
from backend_spark.schemas import LEVELS
from backend_spark.tables import Tables
from backend_spark.transforms.steps import STEP_S
from backend_spark.wording import both
from slope_science.criteria import Criteria
from slope_science.tilt import PRECAUTION_DEG_PER_H, WARNING_DEG_PER_H

NUMBERS = ("r60_mm", "swi_mm", "tilt_rate_deg_per_h")


@dataclass(frozen=True)
class Past:
    """Reads the tables.

    Attributes:
        tables: Folder of the tables.
    """

    tables: Path

    def course(
        self, token: str, span: Span, criteria: Criteria
    ) -> dict[str, Any] | None:
        """A cell's numbers over a span, step by step; None: nothing is known of it.

        Args:
            token: Of the cell.
            span: Steps that are told.
            criteria: Those of today, for the lines of its charts.
        """
        rows = self._rows(token, span)
        if not rows.num_rows:
            return None
        at_s = rows["at"].cast(pa.int64()).to_numpy() // 1_000_000
        step = (at_s - span.begin_s) // STEP_S
        told: dict[str, Any] = {}
        for name in NUMBERS:
            numbers = np.full((span.to_s - span.begin_s) // STEP_S + 1, np.nan)
            numbers[step] = rows[name].to_numpy()
            told[name] = grid.values(numbers.tolist())
        return told | {
            "token": token,
            "begin_s": span.begin_s,
            "step_s": STEP_S,
            "lines": snake.lines(criteria),
            "tilt_deg_per_h": [PRECAUTION_DEG_PER_H, WARNING_DEG_PER_H],
        }

    def moment(
        self, token: str, frame: Span, criteria: Criteria
    ) -> dict[str, Any] | None:
        """Level, reasons and futures of a cell as the map shows it in one frame.

        That is the highest level of the frame, the newest row of equal ones; without
        any the newest of the half hour before. None: nothing was known.

        Args:
            token: Of the cell.
            frame: First and last step that the frame holds.
            criteria: Those of today, to draw the futures that gold has.
        """
        rows = self._rows(token, frame).to_pylist()
        if not rows:
            return None
        own = [row for row in rows if row["at"].timestamp() >= frame.from_s]
        row = max(own or rows[-1:], key=lambda row: (row["level"] or 0, row["at"]))
        latest = grid.latest_of(row)
        return {
            "latest": asdict(latest),
            "reasons": both(latest.reasons),
            "version": row["version"] or 1,
            "revised_because": row["revised_because"],
            "more": {name: row[name] for name in MORE},
            "futures": futures_of(latest, criteria, row),
        }

    def _rows(self, token: str, span: Span) -> pa.Table:
        """Rows of a cell by time, with those that stand into the span."""
        tables = Tables(self.tables)
        between = (_moment(span.begin_s), _moment(span.to_s))
        parts = [LEVELS.empty_table(), tables.of("levels", "cell", token, *between)]
        if span.is_then:
            parts.append(tables.of("revisions", "cell", token, *between))
        rows = pa.concat_tables(parts, promote_options="default")
        return told_then(rows).sort_by("at") if span.is_then else rows


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
