"""Silent cells: JMA's analyses raise the level of a cell whose nodes do not report.

The newest row of a cell is its present level. A row by the analyses therefore rests on
the newest row by readings, the base: it has the higher level of both, and where the
analyses fall again, one row has the level that the base has then. Without a higher
analysis there is no row, because the hold of a silent cell is computed on reading.

Rows by readings have nodes, rows by the analyses have none (`n_nodes`). Readings that
arrive later replace rows of their own time; the rows after them are made again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from backend_spark.analysed_rain.cells import AnalysedLevels, Row
from backend_spark.scoring.holds import (
    GRACE_S,
    LOW_HOLD_S,
    NO_LIMITS,
    UNKNOWN,
    HoldLimits,
    PresentLevel,
)
from backend_spark.scoring.observation import step_end_s
from backend_spark.tables.current import read_newest, sql_time
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.store import Folder, open_table
from slope_science.findings import LOWEST
from slope_science.reason_codes import ReasonCode
from slope_science.reason_text import render_english
from slope_science.reasons import Reason, reason_to_json

COLUMNS: Final = (
    *("cell", "at", "level", "state", "known_until", "n_nodes"),
    *("notice_level", "reasons", "reason_codes"),
)
GRACE: Final = timedelta(seconds=GRACE_S)
_MICRO: Final = 1_000_000
_NEVER: Final = datetime.fromtimestamp(0, UTC)

NO_READINGS: Final[Row] = {
    **dict.fromkeys(COLUMNS),
    "at": _NEVER,
    "state": UNKNOWN,
    "reasons": (),
    "reason_codes": (),
}
"""Base of a cell with a node of whose readings no row is known."""


@dataclass
class SilentCells:
    """Rows by the analyses of cells with nodes.

    Attributes:
        tables: Folder of the tables.
        limits: When holds of levels end.
    """

    tables: Folder
    limits: HoldLimits = NO_LIMITS
    _bases: dict[str, Row] | None = field(default=None, init=False)

    def reporting_cells(self, at_us: int) -> set[str]:
        """Cells whose newest row by readings is recent at a time, Unix microseconds."""
        newest = DeltaTables(self.tables).newest().select(["cell", "at", "n_nodes"])
        is_recent = pc.greater_equal(newest["at"], _time(at_us) - GRACE)
        by_readings = pc.greater(pc.fill_null(newest["n_nodes"], 0), 0)
        return set(newest.filter(pc.and_(is_recent, by_readings))["cell"].to_pylist())

    def rows(self, analysed: Iterable[Row], with_nodes: Collection[str]) -> list[Row]:
        """Rows of `levels` to write.

        Args:
            analysed: Rows by new analyses alone, sorted by cell and time.
            with_nodes: Cells with nodes; the rows of others stay as they are.
        """
        rows = list(analysed)
        last = self._newest({row["cell"] for row in rows} & {*with_nodes})
        bases = self._known_bases()
        found: list[Row] = []
        for analysis in rows:
            cell = analysis["cell"]
            if cell not in with_nodes:
                found.append(analysis)
                bases.setdefault(cell, NO_READINGS)
                continue
            newest = last.get(cell, NO_READINGS)
            base = bases.get(cell, newest)
            row = self._row_on(base, analysis, newest)
            if row is not None:
                found.append(row)
                bases[cell] = base
                last[cell] = max(newest, _with_times(row), key=_at)
        return found

    def with_analyses(self, earliest_us: Mapping[str, int]) -> dict[str, int]:
        """Those of some cells whose newest row was one by the analyses."""
        bases = self._known_bases()
        return {cell: us for cell, us in earliest_us.items() if cell in bases}

    def rows_after(
        self, earliest_us: Mapping[str, int], levels: AnalysedLevels
    ) -> list[Row]:
        """The rows by the analyses after the newest readings of cells, made again.

        Args:
            earliest_us: Cells of `with_analyses` whose readings were scored, and Unix
                microseconds of the first of these.
            levels: Levels by the analyses.
        """
        bases = self._known_bases()
        changed = self._newest_by_readings(earliest_us)
        bases.update(changed)
        for cell, row in self._newest(earliest_us).items():
            if row["n_nodes"]:
                del bases[cell]
        times_us = self._times_after({c: bases[c] for c in changed if c in bases})
        analysed = levels.rows(set().union(*times_us.values()), cells=times_us)
        return [
            _joined(row, bases[row["cell"]], self._present(bases[row["cell"]], row))
            for row in analysed
            if row["at"] in times_us[row["cell"]]
        ]

    def _row_on(self, base: Row, analysis: Row, newest: Row) -> Row | None:
        """A row by an analysis on the base; None if it states nothing new."""
        at = _time(analysis["at"])
        if at <= base["at"] or (newest is base and at - base["at"] <= GRACE):
            return None
        present = self._present(base, analysis)
        row = _joined(analysis, base, present)
        if _is_raised(analysis, base, present) or at <= newest["at"]:
            return row
        shown = PresentLevel.of_row(newest, at.timestamp(), self.limits)
        is_same = (shown.level, shown.state) == (present.level, present.state)
        is_same &= newest["notice_level"] == base["notice_level"]
        return None if is_same else row

    def _present(self, base: Row, analysis: Row) -> PresentLevel:
        """What the base is at the time of an analysis."""
        return PresentLevel.of_row(base, _time(analysis["at"]).timestamp(), self.limits)

    def _known_bases(self) -> dict[str, Row]:
        """Base of each cell whose newest row is one by the analyses."""
        if self._bases is None:
            tables = DeltaTables(self.tables)
            newest = tables.newest().select(["cell", "n_nodes"])
            without = pc.equal(pc.fill_null(newest["n_nodes"], 1), 0)
            cells = set(newest.filter(without)["cell"].to_pylist())
            ends = {
                row["cell"]: _time(step_end_s(row["at"].timestamp()) * _MICRO)
                for row in tables.nodes(["cell", "at"]).sort_by("at").to_pylist()
                if row["cell"] in cells and row["at"] is not None
            }
            steps = ", ".join(map(sql_time, sorted({*ends.values()})))
            known = self._by_readings(ends, f"at IN ({steps})")
            known |= self._held_by_readings(cells - known.keys())
            self._bases = dict.fromkeys(cells, NO_READINGS) | known
        return self._bases

    def _held_by_readings(self, cells: Collection[str]) -> dict[str, Row]:
        """The same of cells whose nodes have moved, or sent more than was scored.

        What is older than any hold, beside the newest row of all, is unknown anyway.
        """
        newest = self._newest(cells)
        if not newest:
            return {}
        hold = timedelta(seconds=max(self.limits.hold_s, LOW_HOLD_S))
        since = max(row["at"] for row in newest.values()) - hold
        return self._by_readings(newest, f"at >= {sql_time(since)}")

    def _newest_by_readings(self, since_us: Mapping[str, int]) -> dict[str, Row]:
        """The newest row by readings of each cell, if it is not before a time."""
        since = _time(min(since_us.values(), default=0))
        found = self._by_readings(since_us, f"at >= {sql_time(since)}")
        return {c: row for c, row in found.items() if row["at"] >= _time(since_us[c])}

    def _by_readings(self, cells: Collection[str], condition: str) -> dict[str, Row]:
        """The newest row by readings of each cell, of those that meet a condition."""
        levels = open_table(self.tables / "levels")
        rows = read_newest(levels, COLUMNS, cells, f"n_nodes > 0 AND {condition}")
        return {row["cell"]: row for row in rows}

    def _newest(self, cells: Collection[str]) -> dict[str, Row]:
        """The newest row of each cell."""
        newest = DeltaTables(self.tables).newest().select(COLUMNS)
        some = pc.is_in(newest["cell"], pa.array(sorted(cells), pa.string()))
        return {row["cell"]: row for row in newest.filter(some).to_pylist()}

    def _times_after(self, bases: Mapping[str, Row]) -> dict[str, set[int]]:
        """Times (Unix microseconds) of the rows of cells after their bases."""
        found: dict[str, set[int]] = {cell: set() for cell in bases}
        if not bases:
            return found
        is_wanted = ds.field("cell").isin(pa.array(sorted(bases), pa.string()))
        is_wanted &= ds.field("at") > min(base["at"] for base in bases.values())
        dataset = DeltaTables(self.tables).dataset("levels")
        for row in dataset.to_table(["cell", "at"], filter=is_wanted).to_pylist():
            if row["at"] > bases[row["cell"]]["at"]:
                found[row["cell"]].add(round(row["at"].timestamp()) * _MICRO)
        return found


def _joined(analysis: Row, base: Row, present: PresentLevel) -> Row:
    """A row by the analyses on what the base is at its time."""
    names = ("reasons", "reason_codes")
    level, held = analysis["level"] or LOWEST, present.level or LOWEST
    given = {name: [*(base[name] or ())] if held > LOWEST else [] for name in names}
    if not _is_raised(analysis, base, present):
        return analysis | _as_held(base, present)
    if level >= held:
        return analysis | {name: [*analysis[name], *given[name]] for name in names}
    both = {name: [*given[name], *analysis[name]] for name in names}
    return analysis | _as_held(base, present) | both | {"notice_level": level}


def _is_raised(analysis: Row, base: Row, present: PresentLevel) -> bool:
    """Whether an analysis has a higher level for notices than the base then has."""
    noticed = None if present.level is None else base["notice_level"] or present.level
    return (analysis["level"] or LOWEST) > (noticed or LOWEST)


def _as_held(base: Row, present: PresentLevel) -> Row:
    """Columns of the level that a base has."""
    known_s = present.known_until_s
    known_us = None if known_s is None else round(known_s * _MICRO)
    held = {"level": present.level, "state": present.state, "known_until": known_us}
    if present.level is not None:
        texts = {name: [*(base[name] or ())] for name in ("reasons", "reason_codes")}
        return held | texts | {"notice_level": base["notice_level"]}
    ended = []
    if base["level"] is not None and known_s is not None:
        level, until_s = base["level"], round(known_s)
        ended = [Reason(ReasonCode.HOLD_ENDED, level=level, known_until_s=until_s)]
    return held | {
        "reasons": list(map(render_english, ended)),
        "reason_codes": list(map(reason_to_json, ended)),
    }


def _with_times(row: Row) -> Row:
    """A row with its times as those of stored rows."""
    known = row["known_until"]
    until = None if known is None else _time(known)
    stored = {name: row.get(name) for name in COLUMNS}
    return stored | {"at": _time(row["at"]), "known_until": until}


def _at(row: Row) -> datetime:
    at: datetime = row["at"]
    return at


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / _MICRO, UTC)
