"""Live state of the console: cells and nodes in memory, renewed from the tables.

`TableFeed` reads the files that a Delta table has gained. A merge rewrites files, so a
row may be read again; the state stores rows by key.
"""

import logging
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from backend_spark.console import level_grid, nodes
from backend_spark.console.events import OpenEvents
from backend_spark.console.http import Packed
from backend_spark.console.level_grid import (
    LatestRow,
    LevelGrid,
    LevelRuns,
    last_readings,
    margin_mm,
    severity,
    silent_rows,
)
from backend_spark.console.nodes import GatewayList, NodeStates
from backend_spark.scoring.holds import HELD, NO_LIMITS, HoldLimits, PresentLevel
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, NODES, SILVER, UTC_TIME
from backend_spark.tables.store import Folder, is_table, open_files, open_table
from slope_science.levels import (
    ADVISORY,
    DEFAULT_CRITERIA,
    EMERGENCY,
    WARNING,
    Criteria,
)
from spatial_mqtt.cells import Cell

log = logging.getLogger(__name__)

_MICRO: Final = 1_000_000

JUMP_S: Final = 3600.0
"""A clock that jumps by more was wrong: what was read by it is read again."""


class TableFeed:
    """Reads the new rows of one table.

    After a jump of the clock (`JUMP_S`) all rows are unread again: some were passed
    over as too old, or as later than the present.

    Args:
        path: Folder of the table, which may not exist yet.
        columns: Columns to read; one that a file lacks is null.
        time: Column with the time of a row.
    """

    def __init__(self, path: Folder, columns: pa.Schema, time: str = "at") -> None:
        self._time = time
        self._path = path
        self._columns = columns
        self._table: DeltaTable | None = None
        self._version: int | None = None
        self._seen: frozenset[str] = frozenset()
        self._unread: list[str] = []
        self._since_s = 0.0

    def read_new(self, since_s: float) -> pa.Table | None:
        """Rows of unread files from a Unix time on; None if the table is unchanged."""
        parts = list(self.read_parts(since_s, self._columns))
        return pa.concat_tables(parts) if parts else None

    def read_parts(self, since_s: float, columns: pa.Schema) -> Iterator[pa.Table]:
        """Rows of unread files in parts, which are not in memory together.

        Args:
            since_s: Unix time of the first row.
            columns: Columns to read; text of a dictionary type is read as dictionaries.
        """
        if abs(since_s - self._since_s) > JUMP_S:
            self._version, self._seen = None, frozenset()
        self._since_s = since_s
        table = self._newest()
        if table is None or table.version() == self._version:
            return
        version, files = table.version(), self._files(table, since_s)
        self._unread = [name for name in files if name not in self._seen]
        try:
            for name in self._unread:
                yield from self._read(name, self._is_since(since_s), columns)
        except FileNotFoundError as error:
            # Compacted between reading the log and the file: read the next version.
            log.info("%s was removed while being read; retrying", error.filename)
            return
        self._version, self._seen = version, frozenset(files)

    def read_again(
        self, wanted: pc.Expression, columns: pa.Schema | None = None
    ) -> Iterator[pa.Table]:
        """Some rows of the files that `read_parts` has just read."""
        try:
            for name in self._unread:
                yield from self._read(name, wanted, columns or self._columns)
        except FileNotFoundError as error:
            log.info("%s was removed while being read; retrying", error.filename)
            self._version = None

    def newest_s(self) -> float:
        """Unix time of the newest row, by the statistics in the log; 0 without any."""
        table = self._newest()
        if table is None:
            return 0.0
        return max((last or 0.0 for _, last in self._lasts(table)), default=0.0)

    def _files(self, table: DeltaTable, since_s: float) -> list[str]:
        """Files of the newest version that can hold rows from a moment on."""
        lasts = self._lasts(table)
        return [name for name, last in lasts if last is None or last >= since_s]

    def _lasts(self, table: DeltaTable) -> list[tuple[str, float | None]]:
        actions = pa.table(table.get_add_actions(flatten=True))
        names = actions["path"].to_pylist()
        column = f"max.{self._time}"
        if column not in actions.column_names:
            return [(name, None) for name in names]
        ends = actions[column].to_pylist()
        lasts = [None if end is None else end.timestamp() for end in ends]
        return list(zip(names, lasts, strict=True))

    def _newest(self) -> DeltaTable | None:
        if self._table is not None:
            self._table.update_incremental()
        elif is_table(self._path):
            self._table = open_table(self._path)
        return self._table

    def _is_since(self, since_s: float) -> pc.Expression:
        since = pa.scalar(round(since_s * _MICRO), pa.timestamp("us", tz="UTC"))
        return pc.field(self._time) >= since

    def _read(
        self, name: str, wanted: pc.Expression, columns: pa.Schema
    ) -> Iterator[pa.Table]:
        """Rows of one file; the schema casts the view types that a merge writes."""
        files = open_files(self._path)
        file = ds.dataset(name, schema=columns, format="parquet", filesystem=files)
        for batch in file.to_batches(filter=wanted, batch_readahead=2):
            if batch.num_rows:
                yield pa.table(batch)
        # The freed rows of all files together would be a tenth of the memory.
        pa.default_memory_pool().release_unused()


class CellCorners:
    """Corners of cells, computed once each; several threads may use it."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def of(self, tokens: Iterable[str]) -> list[list[int]]:
        """Corners of each cell in microdegrees, longitude first."""
        return [self._known.get(token) or self._compute(token) for token in tokens]

    def _compute(self, token: str) -> list[int]:
        found = [
            round(degrees * 1e6)
            for latitude, longitude in Cell.from_token(token).corners()
            for degrees in (longitude, latitude)
        ]
        self._known[token] = found
        return found


SILVER_HOURS: Final = 6
"""Age limit of the first read of silver; older nodes are in the node table."""

SILVER_ROWS: Final = 300_000
"""Rows of silver in memory at a time, besides the newest of each node and name."""

AHEAD_S: Final = 2 * STEP_S
"""A level belongs to the end of its step, which may be this far in the future."""

STALE_S: Final = 1800
"""Age of the newest level from which the present is not judged."""

Clock = Callable[[], float]
CriteriaOfCell = Callable[[str], Criteria]


def is_judged(snapshot: dict[str, Any]) -> bool:
    """Whether any cell is judged at the time of `LiveState.snapshot`."""
    newest_s = snapshot["newest_s"]
    if newest_s is None or snapshot["now_s"] - newest_s > STALE_S:
        return False
    return any(1 <= level <= EMERGENCY for level in snapshot["levels"])


def _default_criteria(_cell: str) -> Criteria:
    return DEFAULT_CRITERIA


def _columns(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    """Schema of some columns; those missing in the table are QARTOD flags."""
    known = schema.names
    fields = [
        schema.field(name) if name in known else pa.field(name, pa.int32())
        for name in names
    ]
    return pa.schema(fields)


_SILVER: Final = _columns(SILVER, nodes.SILVER_COLUMNS)
_ENDED_COLUMNS: Final = _columns(LEVELS, level_grid.ENDED_COLUMNS)
_ARRAY_COLUMNS: Final = _columns(LEVELS, level_grid.ARRAY_COLUMNS)
"""Columns for the arrays; the others are read of the newest row of each cell."""


@dataclass
class LiveState:
    """Present state of cells, nodes and gateways.

    One thread refreshes it; several threads read it, those that use `grid` or `nodes`
    under `lock`.

    Attributes:
        tables: Folder of the tables.
        clock: Unix time.
        exercise: Whether the time of the newest data is taken as the present.
        limits: When holds of levels end.
        version: Incremented with every change.
        geometry: Checksum of the cells in their order, also over restarts.
        read_s: Unix time of the last reading of the tables.
        events: Summary of the open events.
        grid: Levels of the last 72 hours.
        nodes: Nodes by id.
        gateways: Gateways that the Managers list.
        criteria: Gives a function from a cell to its criteria.
        lock: Guards `grid` and `nodes`.
        unsaved: What the console cannot save, because its disk is full.
        corners: Corners of cells.
    """

    tables: Folder
    clock: Clock
    exercise: bool = False
    limits: HoldLimits = NO_LIMITS
    version: int = 0
    geometry: int = 0
    read_s: float = 0.0
    events: OpenEvents = field(default_factory=OpenEvents)
    grid: LevelGrid = field(default_factory=LevelGrid)
    nodes: NodeStates = field(default_factory=NodeStates)
    gateways: GatewayList = field(default_factory=GatewayList)
    criteria: Callable[[], CriteriaOfCell] = lambda: _default_criteria

    def __post_init__(self) -> None:
        """Open the feeds."""
        self.unsaved: set[str] = set()
        self.lock = threading.Lock()
        self.corners = CellCorners()
        self._newest_s = 0.0
        self._cells = 0
        self._runs = LevelRuns(DeltaTables(self.tables))
        self._runs_of: object = None
        self._before: dict[str, int] = {}
        self._nodes_json = b""
        self._cells_json: tuple[int, Packed | None] = (-1, None)
        self._cached_now: tuple[object, dict[str, Any]] = (None, {})
        levels = _columns(LEVELS, level_grid.COLUMNS)
        self._levels = TableFeed(self.tables / "levels", levels)
        self._node_table = TableFeed(self.tables / "nodes", NODES)
        self._silver = TableFeed(self.tables / "silver", _SILVER)

    def refresh(self) -> None:
        """Read new rows of the tables."""
        now_s = self.clock()
        present_s = self._levels.newest_s() if self.exercise else now_s
        since_s = present_s - level_grid.HOURS * 3600 - STEP_S
        # The node table once only: later readings of these nodes are in silver.
        is_first = not self.nodes.by_id
        changed = self._take_readings(present_s - SILVER_HOURS * 3600)
        summaries = self._node_table.read_new(0.0) if is_first else None
        is_new_pass = self._take_levels(since_s, now_s)
        changed |= is_new_pass
        with self.lock:
            if summaries is not None:
                self.nodes.add_summaries(summaries)
                changed = True
            self.version += changed
            self.read_s = now_s
        if self._runs_of is None or summaries is not None:
            self._remember_silent()
        if changed or self._runs_of is None:
            # Encoded here, so that the first page does not wait for it.
            self.cells_json()
            self._nodes_json = msgspec.json.encode(self.node_list())
            with self.lock:
                self._update_runs(self._shown_levels()[0])
        self._runs.read_older(self.grid.end_s)
        if is_new_pass:
            # By malloc_trim: what the pass and the pages before it have freed.
            pa.default_memory_pool().release_unused()

    def _take_readings(self, since_s: float) -> bool:
        """Add new readings to the nodes; whether there are any."""
        readings = self._newest_readings(since_s)
        if readings is None:
            return False
        with self.lock:
            self.nodes.add_readings(readings)
        return True

    def _newest_readings(self, since_s: float) -> pa.Table | None:
        """Newest unread reading of each node and name; None without any.

        The hours of the first read are never in memory together.
        """
        newest: list[pa.Table] = []
        rows = 0
        for part in self._silver.read_parts(since_s, _SILVER):
            newest.append(part)
            rows += part.num_rows
            if rows >= SILVER_ROWS:
                newest, rows = [nodes.newest_readings(pa.concat_tables(newest))], 0
        return pa.concat_tables(newest) if newest else None

    def _remember_silent(self) -> None:
        """Add the cells that have been silent since before the grid begins."""
        last_s = last_readings(self.nodes.by_id.values())
        newest_s = self._levels.newest_s()
        rows = silent_rows(self._runs.tables, self.grid, last_s, newest_s)
        with self.lock:
            self.grid.remember(rows)
            self._count_cells()

    def _update_runs(self, shown: level_grid.Bytes) -> None:
        key = self.version, self.grid.end_s, shown.tobytes()
        if key != self._runs_of:
            self._runs.update(self.grid, shown)
            self._runs_of = key

    def now_s(self) -> float:
        """Unix time of the present: of the newest data in an exercise."""
        return float(self.grid.end_s) if self.exercise else self.clock()

    def _take_levels(self, since_s: float, now_s: float) -> bool:
        """Read new levels into the grid; whether anything has changed."""
        changed = False
        newest: dict[str, int] = {}
        not_judged = 0
        for rows in self._levels.read_parts(since_s, _ARRAY_COLUMNS):
            last = rows["at"].cast(pa.int64()).to_numpy().max() / _MICRO
            self._newest_s = max(self._newest_s, last)
            with self.lock:
                self._advance(now_s)
                changed |= self.grid.store(rows, newest)
                self._count_cells()
            not_judged += rows["level"].null_count
        if not_judged:
            wanted = pc.field("level").is_null()
            for rows in self._levels.read_again(wanted, _ENDED_COLUMNS):
                with self.lock:
                    self.grid.store_ended(rows)
        if newest:
            times = pa.array(sorted(set(newest.values())), pa.int64())
            wanted = pc.field("at").isin(times.cast(UTC_TIME))
            for rows in self._levels.read_again(wanted):
                with self.lock:
                    self.grid.renew(rows)
        with self.lock:
            return self._advance(now_s) or changed

    def _advance(self, now_s: float) -> bool:
        """Move the grid to the present, back only after the clock was set back."""
        end_s = self._newest_s if self.exercise else now_s + AHEAD_S
        end = int(end_s // STEP_S * STEP_S)
        moved = end > self.grid.end_s or end < self.grid.end_s - JUMP_S
        if moved:
            self.grid.move(end)
        return moved

    def _count_cells(self) -> None:
        """Change `geometry` if there are more cells."""
        if len(self.grid.tokens) != self._cells:
            self._cells = len(self.grid.tokens)
            self.geometry = zlib.crc32(" ".join(self.grid.tokens).encode())

    def present_step_s(self) -> int:
        """End of the step with the current levels."""
        if self.exercise:
            return self.grid.end_s
        return int(self.clock() // STEP_S * STEP_S)

    def cells_json(self) -> Packed:
        """`cells` as JSON, encoded once for each `geometry`."""
        geometry, encoded = self._cells_json
        if encoded is None or geometry != self.geometry:
            cells = self.cells()
            content = msgspec.json.encode(cells)
            encoded = Packed(content, "application/json", is_kept=False)
            self._cells_json = cells["geometry"], encoded
        return encoded

    def nodes_json(self) -> bytes:
        """`node_list` as JSON, as of the last change."""
        return self._nodes_json or msgspec.json.encode(self.node_list())

    def cells(self) -> dict[str, Any]:
        """Tokens of the cells, and their corners in microdegrees, longitude first."""
        with self.lock:
            tokens, version = list(self.grid.tokens), self.geometry
        corners = self.corners.of(tokens)
        return {"geometry": version, "tokens": tokens, "corners": corners}

    def snapshot(self) -> dict[str, Any]:
        """Present level of each cell, in the order of `cells`.

        Computed once a second at most, for all pages together.
        """
        key = (self.version, int(self.clock()), self.events)
        cached_key, now = self._cached_now
        if key != cached_key:
            now = self._now()
            self._cached_now = (key, now)
        return now

    def _now(self) -> dict[str, Any]:
        criteria = self.criteria()
        with self.lock:
            levels, present = self._shown_levels()
            self._update_runs(levels)
            tokens, latest, now_s = self.grid.tokens, self.grid.latest, self.now_s()
            margins = [
                margin_mm(row, severity(level)[0], criteria(token))
                if severity(level)[0] >= ADVISORY
                else None
                for level, row, token in zip(
                    levels.tolist(), latest, tokens, strict=True
                )
            ]
            return {
                "version": self.version,
                "geometry": self.geometry,
                "now_s": now_s,
                "read_s": self.read_s,
                "at_s": self.present_step_s(),
                "begin_s": self.grid.begin_s,
                "end_s": self.grid.end_s,
                "step_s": STEP_S,
                "exercise": self.exercise,
                "newest_s": max((row.at_s for row in latest), default=None),
                "levels": levels.tolist(),
                "flags": [row.flags for row in latest],
                "seen_s": [row.at_s for row in latest],
                "known_s": [each.known_until_s or 0 for each in present],
                "since_s": list(map(self._runs.begin_s, tokens)),
                "margin_mm": margins,
                "causes": [" ".join(row.causes) for row in latest],
                "nodes": Counter(n.state(now_s) for n in self.nodes.by_id.values()),
                "events": self.events,
                "unsaved": bool(self.unsaved),
            }

    def present_levels(self) -> list[PresentLevel]:
        """Level and state of each cell; unlike on the map, unknown after a hold."""
        with self.lock:
            return self._present_levels()

    def _present_levels(self) -> list[PresentLevel]:
        now_s = self.now_s()
        return [row.present(now_s, self.limits) for row in self.grid.latest]

    def _shown_levels(self) -> tuple[level_grid.Bytes, list[PresentLevel]]:
        """Level of each cell as the map shows it, and its state."""
        at_s = self.present_step_s()
        shown = self.grid.levels_at(max(at_s, self.grid.begin_s))
        ahead = self.grid.levels_at(self.grid.end_s)
        levels = shown if self.exercise else _newer(ahead, shown)
        present = self._present_levels()
        _show_held(levels, present, self.grid.latest)
        return levels, present

    def level_history(self) -> tuple[int, bytes]:
        """Unix time of the first column, and the levels of all cells, row by row.

        A cell without a row in the first column has the level there that is held since.
        """
        with self.lock:
            begin_s, tokens = self.grid.begin_s, list(self.grid.tokens)
            levels = self.grid.held_levels()
        rows = np.flatnonzero(levels[:, 0] == level_grid.MISSING)
        silent = [tokens[row] for row in rows.tolist()]
        # Rows before the grid are read once for each silence.
        known = {cell: self._before[cell] for cell in silent if cell in self._before}
        unknown = [cell for cell in silent if cell not in known]
        if unknown:
            tables = self._runs.tables
            known |= level_grid.levels_before(tables, begin_s - STEP_S, unknown)
        self._before = known
        for row, cell in zip(rows.tolist(), silent, strict=True):
            if known[cell] >= WARNING:
                levels[row, 0] = known[cell] + level_grid.HELD_OFFSET
        return begin_s, levels.tobytes()

    def node_list(self) -> dict[str, Any]:
        """Place and state of every node, as columns."""
        with self.lock:
            now_s = self.now_s()
            rows = [node for node in self.nodes.by_id.values() if node.place()]
            places = [node.place() or (0.0, 0.0) for node in rows]
            return {
                "id": [node.id for node in rows],
                "latitude": [round(place[0], 6) for place in places],
                "longitude": [round(place[1], 6) for place in places],
                "cell": [node.cell for node in rows],
                "state": [node.state(now_s) for node in rows],
                "at_s": [node.at_s for node in rows],
            }

    def health_table(self, part: str = "") -> dict[str, Any]:
        """Rows of the worst nodes, and of all gateways.

        Args:
            part: Part of the ids of the nodes, in any case; empty for all nodes.

        Returns:
            ``rows`` are those of `NodeStates.worst_rows`; ``all`` is the number of all
            nodes.
        """
        with self.lock:
            now_s = self.now_s()
            rows = self.nodes.worst_rows(part, now_s)
        return {
            "now_s": now_s,
            "rows": rows,
            "all": len(self.nodes.by_id),
            "gateways": self.gateway_rows(),
            "managers": {
                "listed_s": self.gateways.listed_at_s,
                "problem": self.gateways.problem,
            },
        }

    def gateway_rows(self) -> list[dict[str, Any]]:
        """State and areas of every gateway, and how many nodes use it."""
        with self.lock:
            return self.gateways.rows(self.nodes.by_id.values(), self.now_s())

    def cells_with_nodes(self, cell: str) -> list[str]:
        """Cells that have nodes, and one more."""
        with self.lock:
            cells = {node.cell for node in self.nodes.by_id.values() if node.cell}
        return sorted(cells | {cell})


def _newer(ahead: level_grid.Bytes, shown: level_grid.Bytes) -> level_grid.Bytes:
    """Levels shown, replaced by those of the current step where they are known."""
    newer: level_grid.Bytes = shown.copy()
    newer[ahead != level_grid.MISSING] = ahead[ahead != level_grid.MISSING]
    return newer


def _show_held(
    levels: level_grid.Bytes,
    present: Sequence[PresentLevel],
    latest: Sequence[LatestRow],
) -> None:
    """Show the last level of cells without a judgement, if a criterion was reached.

    Level 3 and more are shown until there is another judgement, also after the hold for
    notices has ended: without data the danger may still exist.
    """
    for row, each in enumerate(present):
        if levels[row] not in {level_grid.MISSING, level_grid.NO_JUDGEMENT}:
            continue
        last = latest[row].last_level or 0
        is_held = each.state == HELD and levels[row] == level_grid.MISSING
        if last >= WARNING or (is_held and last >= ADVISORY):
            levels[row] = last + level_grid.HELD_OFFSET
