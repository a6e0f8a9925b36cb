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
    HoldLimits,
    PresentLevel,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import UTC_TIME
from backend_spark.tables.store import Folder
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


@dataclass
class SilentCells:
    """Rows by the analyses of cells with nodes.

    Attributes:
        tables: Folder of the tables.
        limits: When holds of levels end.
        raised: Cells whose newest row is one by the analyses; None: not read yet.
    """

    tables: Folder
    limits: HoldLimits = NO_LIMITS
    raised: set[str] | None = field(default=None, init=False)

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
        bases = self._bases(last)
        found: list[Row] = []
        for analysis in rows:
            cell, base = analysis["cell"], bases.get(analysis["cell"])
            if base is not None and _time(analysis["at"]) - base["at"] <= GRACE:
                continue
            present = self._present(base, analysis)
            row = _joined(analysis, base, present)
            if not self._is_needed(row, last.get(cell), present):
                continue
            found.append(row)
            if cell in last:
                last[cell] = max(last[cell], _with_times(row), key=_at)
        self._known_raised().update({row["cell"] for row in found} & {*with_nodes})
        return found

    def rows_after(self, cells: Iterable[str], levels: AnalysedLevels) -> list[Row]:
        """The rows by the analyses after the newest readings of cells, made again.

        Args:
            cells: Cells whose readings were scored.
            levels: Levels by the analyses.
        """
        known = self._known_raised()
        touched = known.intersection(cells)
        if not touched:
            return []
        newest = self._newest(touched)
        ended = {cell for cell, row in newest.items() if row["n_nodes"]}
        known -= ended
        bases = self._bases(newest)
        times_us = self._times_after(bases, touched - ended)
        analysed = levels.rows(set().union(*times_us.values()), cells=times_us)
        return [
            _joined(row, base, self._present(base, row))
            for row in analysed
            if row["at"] in times_us[row["cell"]]
            for base in (bases.get(row["cell"]),)
        ]

    def _known_raised(self) -> set[str]:
        if self.raised is None:
            newest = DeltaTables(self.tables).newest().select(["cell", "n_nodes"])
            without = pc.equal(pc.fill_null(newest["n_nodes"], 1), 0)
            self.raised = set(newest.filter(without)["cell"].to_pylist())
        return self.raised

    def _present(self, base: Row | None, analysis: Row) -> PresentLevel | None:
        """What the base is at the time of an analysis; None without one."""
        if base is None:
            return None
        return PresentLevel.of_row(base, _time(analysis["at"]).timestamp(), self.limits)

    def _is_needed(
        self, row: Row, last: Row | None, present: PresentLevel | None
    ) -> bool:
        """Whether a row states what the newest of its cell does not."""
        at = _time(row["at"])
        if last is None or present is None or at <= last["at"]:
            return True
        shown = PresentLevel.of_row(last, at.timestamp(), self.limits)
        is_raised = row["level"] != present.level
        return is_raised or (shown.level, shown.state) != (present.level, present.state)

    def _newest(self, cells: Collection[str]) -> dict[str, Row]:
        """The newest row of each cell."""
        newest = DeltaTables(self.tables).newest().select(COLUMNS)
        some = pc.is_in(newest["cell"], pa.array(sorted(cells), pa.string()))
        return {row["cell"]: row for row in newest.filter(some).to_pylist()}

    def _bases(self, newest: Mapping[str, Row]) -> dict[str, Row]:
        """The newest row by readings of each cell, as far back as a hold may last."""
        found = {cell: row for cell, row in newest.items() if row["n_nodes"] != 0}
        rest = sorted(newest.keys() - found)
        if not rest:
            return found
        oldest = min(newest[cell]["at"] for cell in rest)
        since = oldest - timedelta(seconds=max(self.limits.hold_s, LOW_HOLD_S))
        is_wanted = (
            ds.field("cell").isin(pa.array(rest, pa.string()))
            & (ds.field("at") >= since)
            & (ds.field("n_nodes") > 0)
        )
        dataset = DeltaTables(self.tables).dataset("levels")
        keys = dataset.to_table(["cell", "at"], filter=is_wanted)
        times = keys.group_by("cell").aggregate([("at", "max")]).to_pylist()
        ends = {row["cell"]: row["at_max"] for row in times}
        is_end = ds.field("at").isin(pa.array(sorted({*ends.values()}), UTC_TIME))
        rows = dataset.to_table(list(COLUMNS), filter=is_wanted & is_end).to_pylist()
        return found | {r["cell"]: r for r in rows if r["at"] == ends[r["cell"]]}

    def _times_after(
        self, bases: Mapping[str, Row], cells: Collection[str]
    ) -> dict[str, set[int]]:
        """Times (Unix microseconds) of the rows of cells after their bases."""
        is_wanted = ds.field("cell").isin(pa.array(sorted(cells), pa.string()))
        is_wanted &= ds.field("n_nodes") == 0
        since = [bases[cell]["at"] for cell in cells if cell in bases]
        if since:
            is_wanted &= ds.field("at") > min(since)
        dataset = DeltaTables(self.tables).dataset("levels")
        rows = dataset.to_table(["cell", "at"], filter=is_wanted).to_pylist()
        found: dict[str, set[int]] = {cell: set() for cell in cells}
        for row in rows:
            base = bases.get(row["cell"])
            if base is None or row["at"] > base["at"]:
                found[row["cell"]].add(round(row["at"].timestamp()) * _MICRO)
        return found


def _joined(analysis: Row, base: Row | None, present: PresentLevel | None) -> Row:
    """A row by the analyses on what the base is at its time."""
    if base is None or present is None:
        return analysis
    names = ("reasons", "reason_codes")
    given = {name: base[name] or [] for name in names}
    if (analysis["level"] or LOWEST) > (present.level or LOWEST):
        has_more = present.level is not None and present.level > LOWEST
        more = given if has_more else {name: [] for name in names}
        return analysis | {name: [*analysis[name], *more[name]] for name in names}
    known_s = present.known_until_s
    known_us = None if known_s is None else round(known_s * _MICRO)
    held = {"level": present.level, "state": present.state, "known_until": known_us}
    if present.level is not None:
        return analysis | held | given | {"notice_level": base["notice_level"]}
    ended = []
    if base["level"] is not None and known_s is not None:
        level, until_s = base["level"], round(known_s)
        ended = [Reason(ReasonCode.HOLD_ENDED, level=level, known_until_s=until_s)]
    texts = list(map(render_english, ended)), list(map(reason_to_json, ended))
    return analysis | held | dict(zip(names, texts, strict=True))


def _with_times(row: Row) -> Row:
    """A row with its times as those of stored rows."""
    known = row["known_until"]
    until = None if known is None else _time(known)
    return row | {"at": _time(row["at"]), "known_until": until}


def _at(row: Row) -> datetime:
    at: datetime = row["at"]
    return at


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / _MICRO, UTC)
