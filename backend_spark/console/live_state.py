"""What the pages show, kept in memory and renewed from the tables each second.

New rows of a Delta table, file by file as its log names them.

A merge writes files anew, so a row may come again: who takes rows from here puts
them in place by their key.

Where cells are, as the map draws them.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from backend_spark.console import level_grid, nodes
from backend_spark.console.level_grid import Grid
from backend_spark.console.nodes import Gateways, Nodes
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.schemas import LEVELS, NODES, SILVER
from spatial_mqtt.cells import Cell

log = logging.getLogger(__name__)

_MICRO: Final = 1_000_000


class Feed:
    """Rows of one table that were not given before.

    Args:
        path: Folder of the table; it need not be there yet.
        columns: Those wanted; one that a file lacks is empty.
        time: The column that says how old a row is.
    """

    def __init__(self, path: Path, columns: pa.Schema, time: str = "at") -> None:
        self._time = time
        self._path = path
        self._columns = columns
        self._table: DeltaTable | None = None
        self._version: int | None = None
        self._seen: frozenset[str] = frozenset()

    def take(self, since_s: float) -> pa.Table | None:
        """Rows from a moment on, of files not read yet; None: no news."""
        table = self._newest()
        if table is None or table.version() == self._version:
            return None
        version, files = table.version(), self._files(table, since_s)
        try:
            parts = [self._read(name, since_s) for name in files if not self._has(name)]
        except FileNotFoundError as error:
            # Swept away between the log and the read: the next version says what for.
            log.info("%s went while it was read; trying again", error.filename)
            return None
        self._version, self._seen = version, frozenset(files)
        return pa.concat_tables(parts) if parts else None

    def newest_s(self) -> float:
        """Unix time of the newest row, by the log's statistics; 0 without any."""
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

    def _has(self, name: str) -> bool:
        return name in self._seen

    def _newest(self) -> DeltaTable | None:
        path = str(self._path.absolute())
        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(path):
            self._table = DeltaTable(path)
        return self._table

    def _read(self, name: str, since_s: float) -> pa.Table:
        """Rows of one file; the schema casts the views that a merge writes."""
        since = pa.scalar(round(since_s * _MICRO), pa.timestamp("us", tz="UTC"))
        path = str(self._path / name)
        file = ds.dataset(path, schema=self._columns, format="parquet")
        return file.to_table(filter=pc.field(self._time) >= since)


class Corners:
    """Corners of cells, computed once each."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def of(self, tokens: Iterable[str]) -> list[list[int]]:
        """Corners of each cell as millionths of a degree, lon before lat."""
        return [self._known.get(token) or self._find(token) for token in tokens]

    def _find(self, token: str) -> list[int]:
        found = [
            round(degrees * 1e6)
            for latitude, longitude in Cell.from_token(token).corners()
            for degrees in (longitude, latitude)
        ]
        self._known[token] = found
        return found


SILVER_HOURS: Final = 6
"""How far back the first look at readings goes; who was silent since is in the table
of nodes."""

AHEAD_S: Final = 2 * STEP_S
"""Levels are known at the end of their step, which may be a little ahead."""

Clock = Callable[[], float]


def _columns(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    """Columns of a table; those that are not in it yet are numbers of QARTOD."""
    there = schema.names
    fields = [
        schema.field(name) if name in there else pa.field(name, pa.int32())
        for name in names
    ]
    return pa.schema(fields)


@dataclass
class Board:
    """Cells and nodes as they are now.

    Attributes:
        tables: Folder of the tables.
        clock: Unix time.
        exercise: Whether the newest data are the present.
        version: Grows with every change.
        geometry: Grows with every new cell.
        read_s: When the tables were last read.
        alerts: How many wait for somebody; None before the first count.
    """

    tables: Path
    clock: Clock
    exercise: bool = False
    version: int = 0
    geometry: int = 0
    read_s: float = 0.0
    alerts: int | None = None
    grid: Grid = field(default_factory=Grid)
    nodes: Nodes = field(default_factory=Nodes)
    gateways: Gateways = field(default_factory=Gateways)

    def __post_init__(self) -> None:
        """Open the feeds."""
        self.lock = threading.Lock()
        self._newest_s = 0.0
        self._cells_said = self._nodes_said = b""
        self._told: tuple[object, dict[str, Any]] = (None, {})
        self._corners = Corners()
        levels = _columns(LEVELS, level_grid.COLUMNS)
        self._levels = Feed(self.tables / "levels", levels)
        self._spoke = Feed(self.tables / "nodes", NODES)
        self._silver = Feed(self.tables / "silver", _columns(SILVER, nodes.COLUMNS))

    def refresh(self) -> None:
        """Take what is new in the tables."""
        now_s = self.clock()
        present_s = self._levels.newest_s() if self.exercise else now_s
        rows = self._levels.take(present_s - level_grid.HOURS * 3600 - STEP_S)
        readings = self._silver.take(present_s - SILVER_HOURS * 3600)
        # Once: whoever speaks from now on is in silver.
        spoke = None if self.nodes.by_id else self._spoke.take(0.0)
        with self.lock:
            cells = len(self.grid.tokens)
            changed = self._take_levels(rows, now_s)
            if readings is not None:
                self.nodes.put(readings)
                changed = True
            if spoke is not None:
                self.nodes.meet(spoke)
                changed = True
            self.version += changed
            self.geometry += len(self.grid.tokens) != cells
            self.read_s = now_s
        if changed:
            self._prepare()

    def now_s(self) -> float:
        """The present: of the clock, or of the newest data in an exercise."""
        return float(self.grid.end_s) if self.exercise else self.clock()

    def _take_levels(self, rows: pa.Table | None, now_s: float) -> bool:
        if rows is not None and rows.num_rows:
            newest = rows["at"].cast(pa.int64()).to_numpy().max() / 1_000_000
            self._newest_s = max(self._newest_s, newest)
        end_s = self._newest_s if self.exercise else now_s + AHEAD_S
        end = int(end_s // STEP_S * STEP_S)
        moved = end > self.grid.end_s
        self.grid.advance(end)
        if rows is not None:
            self.grid.put(rows)
        return moved or rows is not None

    def present_step_s(self) -> int:
        """End of the step whose levels are the present ones."""
        if self.exercise:
            return self.grid.end_s
        return int(self.clock() // STEP_S * STEP_S)

    def _prepare(self) -> None:
        """Compute beforehand what the first page would wait for."""
        self._cells_said = msgspec.json.encode(self.cells())
        self._nodes_said = msgspec.json.encode(self.node_list())

    def cells_said(self) -> bytes:
        """`cells` as JSON."""
        return self._cells_said or msgspec.json.encode(self.cells())

    def nodes_said(self) -> bytes:
        """`node_list` as JSON, of the last change."""
        return self._nodes_said or msgspec.json.encode(self.node_list())

    def cells(self) -> dict[str, Any]:
        """Where the cells are: corners as millionths of a degree, lon before lat."""
        with self.lock:
            tokens, version = list(self.grid.tokens), self.geometry
        corners = self._corners.of(tokens)
        return {"geometry": version, "tokens": tokens, "corners": corners}

    def now(self) -> dict[str, Any]:
        """The present level of each cell, in the order of `cells`.

        Computed once a second, however many pages ask.
        """
        key = (self.version, int(self.clock()), self.alerts)
        known, told = self._told
        if key != known:
            told = self._now()
            self._told = (key, told)
        return told

    def _now(self) -> dict[str, Any]:
        with self.lock:
            at_s = self.present_step_s()
            shown = self.grid.shown(max(at_s, self.grid.begin_s))
            ahead = self.grid.shown(self.grid.end_s)
            levels = shown if self.exercise else _newer(ahead, shown)
            latest = self.grid.latest
            return {
                "version": self.version,
                "geometry": self.geometry,
                "now_s": self.now_s(),
                "read_s": self.read_s,
                "at_s": at_s,
                "begin_s": self.grid.begin_s,
                "end_s": self.grid.end_s,
                "step_s": STEP_S,
                "exercise": self.exercise,
                "newest_s": max((row.at_s for row in latest), default=None),
                "levels": levels.tolist(),
                "flags": [row.flags for row in latest],
                "seen_s": [row.at_s for row in latest],
                "nodes": self._node_counts(),
                "alerts": self.alerts or 0,
            }

    def history(self) -> tuple[int, bytes]:
        """First column's time, and the levels of all cells, row by row."""
        with self.lock:
            return self.grid.begin_s, self.grid.levels.tobytes()

    def node_list(self) -> dict[str, Any]:
        """Every node with its place and state, as columns."""
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

    def gateway_list(self) -> list[dict[str, Any]]:
        """Every gateway with its state, its areas and how many nodes use it."""
        with self.lock:
            return self.gateways.rows(self.nodes.by_id.values(), self.now_s())

    def _node_counts(self) -> dict[str, int]:
        now_s = self.now_s()
        counts: dict[str, int] = {}
        for node in self.nodes.by_id.values():
            state = node.state(now_s)
            counts[state] = counts.get(state, 0) + 1
        return counts


def _newer(ahead: level_grid.Bytes, shown: level_grid.Bytes) -> level_grid.Bytes:
    """Levels of the step in hand, where they are known already."""
    newer: level_grid.Bytes = shown.copy()
    newer[ahead != level_grid.MISSING] = ahead[ahead != level_grid.MISSING]
    return newer
