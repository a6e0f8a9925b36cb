"""Executor-side part of a scoring pass: reads, scores and compares shares of cells.

A task reads the hot states of its cells and the readings since then. Cells without a
usable hot state are scored from their saved state. It compares the new rows with the
stored ones, writes the files of rows that are in no table, and returns their names;
only rows that replace others, changed flags and saved states return to the driver.

Rows of some cells at a time are compared with the stored ones of these cells only. Few
rows wait for the next ones of about the same time, because a comparison reads whole row
groups, however few of their rows it needs. A file is written when the new rows fill two
row groups, and at the end.
"""

import gc
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.criteria.cell_rules import CellRuleProvider
from backend_spark.scoring.arrow import (
    HotScorer,
    ScoreCollector,
    Scorer,
    read_observations,
    table_to_ipc,
)
from backend_spark.scoring.decode import filter_received, has_plausible_time
from backend_spark.scoring.observation import Observation
from backend_spark.scoring.rain import SPREAD_S
from backend_spark.scoring.reviews import ReadingReview, ReadingReviews
from backend_spark.scoring.revisions import NewReadings, revise_rows
from backend_spark.scoring.rules import CellRules
from backend_spark.scoring.saved_states import REREAD_S, decode_head
from backend_spark.scoring.surrounding_rain import CellDistances, find_nearby_cells
from backend_spark.streaming.hot_files import read_hot_states, write_hot_states
from backend_spark.tables.delta_writer import (
    ROW_GROUP_ROWS,
    StoredCellStates,
    read_cell_states,
    write_file,
)
from backend_spark.tables.reader import HISTORY_SCHEMA, CellRowReader, FileRange
from backend_spark.tables.schemas import LEVEL_KEY, SENSOR_KEY, TABLES
from backend_spark.tables.store import Folder
from service_runtime.decoding import decode_msgpack

HOT_FOLDER: Final = ".hot"
COLD_AT_ONCE: Final = 60
"""Cells whose history is in memory at a time."""

RECENT_S: Final = 4 * 86_400
"""Age since when most passes read; a cell that needs more is scored by itself, so that
one late reading does not bring months of its neighbours into memory."""

SHARE_RESULT: Final = pa.schema([
    pa.field("kind", pa.string()),
    pa.field("data", pa.binary()),
])
"""Results of a share: ``file``, ``changed`` or ``superseded`` and a table's name, with
a file as JSON or rows as an Arrow stream; ``flags``, ``memories`` and ``stale`` with
rows; ``hot`` with the file of hot states and its cells as JSON."""

_MICRO: Final = 1_000_000


@dataclass(frozen=True)
class CellShare:
    """Cells of a task.

    Attributes:
        earliest_us: For each cell the Unix time, in microseconds, of its earliest new
            reading.
        news: For each cell the messages of its nodes, as causes of revisions.
        occupied: Cells with a node, at least those near the share's.
        others_us: As `earliest_us`, for cells near the share's.
        hot: Files of the hot states of these cells.
        reviews: Reviews of readings of these cells.
    """

    earliest_us: dict[str, int]
    news: dict[str, list[NewReadings]]
    occupied: list[str]
    others_us: dict[str, int] = field(default_factory=dict)
    hot: dict[str, str] = field(default_factory=dict)
    reviews: list[ReadingReview] = field(default_factory=list)

    def encode(self) -> bytes:
        """Encode it for an executor."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "CellShare":
        """Decode what `encode` gives."""
        return decode_msgpack(data, cls)


REVISION_TABLES: Final = {"levels": "revisions", "sensors": "sensor_revisions"}
"""Tables of the rows that a revision replaces."""

ROW_KEYS: Final = {"levels": LEVEL_KEY, "sensors": SENSOR_KEY}
"""Keys of the rows of gold."""

FILE_ROWS: Final = 2 * ROW_GROUP_ROWS
"""New rows in memory above which they are written to a file."""

JOINED_ROWS: Final = 2_048
"""Most new rows of a table that are compared together with the ones before."""

JOINED_US: Final = 6 * 3600 * 1_000_000
"""Longest time between the earliest of both: all stored rows since then are read."""

ShareResult = dict[str, object]
"""Row of `SHARE_RESULT`."""


class GoldRows:
    """Rows of gold of a share of cells.

    Args:
        tables: Folder of the tables.
        files: Files of the tables to compare with.
        news: For each cell the messages of its nodes, as causes of revisions.
    """

    def __init__(
        self,
        tables: Folder,
        files: Mapping[str, Sequence[FileRange]],
        news: Mapping[str, Sequence[NewReadings]],
    ) -> None:
        self._tables = tables
        self._files = files
        self._news = news
        self._fresh: dict[str, list[pa.Table]] = {name: [] for name in ROW_KEYS}
        self._waiting: dict[str, pa.Table] = {}

    def compare(self, scored: Mapping[str, pa.Table]) -> Iterator[ShareResult]:
        """Compare rows of some cells with the stored ones, or keep them for the next.

        Args:
            scored: Rows by table.

        Yields:
            Rows that replace others, and these; a file if there are many new rows.
        """
        for table in ROW_KEYS:
            rows, waiting = scored[table], self._waiting.get(table)
            if not rows.num_rows:
                continue
            if waiting is not None and _can_join(waiting, rows):
                rows = pa.concat_tables([waiting, rows])
            elif waiting is not None:
                yield from self._compare(table, waiting)
            self._waiting[table] = rows

    def _compare(self, table: str, rows: pa.Table) -> Iterator[ShareResult]:
        since_us = _earliest_us(rows)
        cells = sorted(pc.unique(rows["cell"]).to_pylist())
        path = self._tables / table
        reader = CellRowReader(path, TABLES[table], cells, since_us)
        files = reader.list_files(self._files[table])
        old = reader.read(files).select(TABLES[table].names)
        past = TABLES[REVISION_TABLES[table]]
        revision = revise_rows(rows, old, ROW_KEYS[table], self._news, past)
        for kind in ("changed", "superseded"):
            each = getattr(revision, kind)
            if each.num_rows:
                yield {"kind": f"{kind} {table}", "data": table_to_ipc(each)}
        fresh = self._fresh[table]
        fresh.append(revision.fresh)
        if sum(part.num_rows for part in fresh) >= FILE_ROWS:
            yield from self._write(table)

    def write(self) -> Iterator[ShareResult]:
        """Compare the rows that wait, and write the files of the other new rows."""
        for table in ROW_KEYS:
            waiting = self._waiting.pop(table, None)
            if waiting is not None:
                yield from self._compare(table, waiting)
            yield from self._write(table)

    def _write(self, table: str) -> Iterator[ShareResult]:
        rows = pa.concat_tables([TABLES[table].empty_table(), *self._fresh[table]])
        self._fresh[table] = []
        if rows.num_rows:
            part = write_file(self._tables / table, rows, TABLES[table])
            data = json.dumps(asdict(part)).encode()
            yield {"kind": f"file {table}", "data": data}


def _can_join(rows: pa.Table, more: pa.Table) -> bool:
    """Whether new rows of different cells are compared together."""
    is_near = abs(_earliest_us(rows) - _earliest_us(more)) <= JOINED_US
    return is_near and rows.num_rows + more.num_rows <= JOINED_ROWS


def _earliest_us(rows: pa.Table) -> int:
    return int(pc.min(rows["at"].cast(pa.int64())).as_py())


@dataclass(frozen=True)
class ShareWorker:
    """Scores shares of cells.

    Attributes:
        tables: Folder of the tables.
        hot: Folder of the hot states.
        rules: Rules of cells.
        horizon_s: Age from which readings are not scored.
        max_ahead_s: Readings dated further after their receipt are not scored.
        nearby_km: Radius in which the gauges of other cells are compared.
        files: Files of the tables to read. The driver lists them: delta-rs keeps memory
            in each process that opens a table of many files.
        until_us: Unix time, in microseconds; rows received later are ignored. None uses
            all rows.
    """

    tables: Folder
    hot: Path
    rules: CellRuleProvider
    horizon_s: int
    max_ahead_s: int
    nearby_km: float
    files: Mapping[str, Sequence[FileRange]]
    until_us: int | None = None

    def process(self, share: CellShare) -> Iterator[pa.Table]:
        """Score a share of cells, some of them at a time.

        Shape:
            out: SHARE_RESULT.
        """
        with _without_collection():
            for results in self._process(share):
                yield pa.Table.from_pylist(list(results), schema=SHARE_RESULT)

    def _process(self, share: CellShare) -> Iterator[Iterable[ShareResult]]:
        cells = sorted(share.earliest_us)
        rules = self.rules.rules_of(cells)
        around = find_nearby_cells(cells, share.occupied, self.nearby_km)
        gold = GoldRows(self.tables, self.files, share.news)
        found = ScoreCollector()
        done = self._score_hot(share, (rules, around), found)
        yield gold.compare(found.pop_gold())
        cold = [cell for cell in cells if cell not in done]
        touched = {cell: share.earliest_us[cell] for cell in cold}
        states = self.files["memories"]
        stored = read_cell_states(self.tables / "memories", touched, states)
        for some in self._cold_chunks(cold, touched, stored):
            self._score_cold(share, some, (rules, around, stored), found)
            yield gold.compare(found.pop_gold())
        yield gold.write()
        yield _changed_states(found.tables(), stored)
        yield self._hot_files(found.hot)

    def _score_hot(
        self,
        share: CellShare,
        known: tuple[Mapping[str, CellRules], Mapping[str, CellDistances]],
        into: ScoreCollector,
    ) -> set[str]:
        """Score cells from hot states; returns those for which these held."""
        rules, around = known
        needed = share.earliest_us.keys() | {
            token for each in around.values() for _, token in each
        }
        files = {cell: share.hot[cell] for cell in needed & share.hot.keys()}
        bodies = read_hot_states(self.hot, files)
        heads = {cell: decode_head(body) for cell, body in bodies.items()}
        cells = [
            cell
            for cell in sorted(share.earliest_us.keys() & heads.keys())
            if heads[cell].holds_for(
                cell,
                share.earliest_us[cell] / _MICRO,
                rules[cell].digest(heads[cell].at_s),
            )
        ]
        if not cells:
            return set()
        since_s = min(heads[cell].at_s for cell in cells)
        others = {token for cell in cells for _, token in around[cell]} - set(cells)
        touched = {**share.others_us, **share.earliest_us}
        usable = {
            token
            for token in others & heads.keys()
            if since_s <= heads[token].at_s
            and touched.get(token, heads[token].at_s * _MICRO + 1)
            > heads[token].at_s * _MICRO
        }
        first_us = min(share.earliest_us[cell] for cell in cells)
        scorer = HotScorer(
            {cell: rules[cell] for cell in cells},
            share.earliest_us,
            bodies,
            {token: heads[token] for token in usable | set(cells)},
            {cell: around[cell] for cell in cells},
            self._read_rain(share, sorted(others - usable), first_us / _MICRO),
            ReadingReviews(share.reviews),
        )
        history = self._read_silver(sorted(scorer.heads), since_s, whole=cells)
        return set(cells) - set(scorer.collect(history, into))

    def _score_cold(
        self,
        share: CellShare,
        cells: Sequence[str],
        known: tuple[
            Mapping[str, CellRules], Mapping[str, CellDistances], StoredCellStates
        ],
        into: ScoreCollector,
    ) -> None:
        """Score cells from saved states."""
        rules, around, stored = known
        touched = {cell: share.earliest_us[cell] for cell in cells}
        scorer = Scorer(
            {cell: rules[cell] for cell in cells},
            self.horizon_s,
            touched,
            {cell: stored.valid[cell][1] for cell in cells if cell in stored.valid},
            {cell: around[cell] for cell in cells},
            makes_hot=True,
            reviews=ReadingReviews(share.reviews),
        )
        since_s = min(self._since_s(cell, touched, stored) for cell in cells)
        history = self._read_silver(sorted(scorer.cells), since_s, whole=cells)
        scorer.collect(history, into)

    def _cold_chunks(
        self,
        cells: Sequence[str],
        touched: Mapping[str, int],
        stored: StoredCellStates,
    ) -> Iterator[Sequence[str]]:
        """Cells to score at once; one that needs months of readings is by itself.

        So is a cell that has states, but none of the last days that is valid.
        """
        newest_s = stored.newest_s()
        late = {
            cell
            for cell in newest_s.keys() & touched.keys()
            if self._since_s(cell, touched, stored) < newest_s[cell] - RECENT_S
        }
        usual = [cell for cell in cells if cell not in late]
        for first in range(0, len(usual), COLD_AT_ONCE):
            yield usual[first : first + COLD_AT_ONCE]
        for cell in sorted(late):
            yield [cell]

    def _since_s(
        self, cell: str, touched: Mapping[str, int], stored: StoredCellStates
    ) -> float:
        """Unix time of the first reading needed to score from the saved state."""
        if cell in stored.valid:
            return stored.valid[cell][0] - REREAD_S
        return touched[cell] / _MICRO - self.horizon_s

    def _read_silver(
        self,
        cells: Sequence[str],
        since_s: float,
        *,
        whole: Collection[str] | None = None,
    ) -> pa.Table:
        """Readings of some cells since a time, with their locations.

        Args:
            cells: Tokens of the cells, ascending.
            since_s: Unix time.
            whole: Those of which not only the rain is read; None for all.
        """
        since_us, path = round(since_s * _MICRO), self.tables / "silver"
        rain_only = set() if whole is None else {*cells}.difference(whole)
        reader = CellRowReader(path, HISTORY_SCHEMA, cells, since_us, rain_only)
        rows = reader.read(reader.list_files(self.files["silver"]))
        rows = rows.filter(has_plausible_time(rows, self.max_ahead_s, self.horizon_s))
        return rows if self.until_us is None else filter_received(rows, self.until_us)

    def _read_rain(
        self, share: CellShare, cells: Sequence[str], touched_s: float
    ) -> dict[str, list[Observation]]:
        """Rain of some cells in the day before new readings."""
        if not cells:
            return {}
        rows = self._read_silver(cells, touched_s - REREAD_S - SPREAD_S, whole=())
        rain: dict[str, list[Observation]] = {}
        tokens = rows["cell"].to_pylist()
        known = ReadingReviews(share.reviews).mark(read_observations(rows))
        for token, o in zip(tokens, known, strict=True):
            rain.setdefault(token, []).append(o)
        return rain

    def _hot_files(self, states: Mapping[str, bytes | None]) -> Iterator[ShareResult]:
        """Write the hot states of a share."""
        bodies = {cell: body for cell, body in states.items() if body is not None}
        gone = [cell for cell, body in states.items() if body is None]
        if bodies:
            file = write_hot_states(self.hot, bodies)
            yield {"kind": "hot", "data": json.dumps([file, list(bodies)]).encode()}
        if gone:
            yield {"kind": "hot", "data": json.dumps([None, gone]).encode()}


@contextmanager
def _without_collection() -> Iterator[None]:
    """Without searches for reference cycles, which visit each reading many times."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        # Otherwise each share leaves more free memory to the process than the last.
        pa.default_memory_pool().release_unused()


def _changed_states(
    scored: Mapping[str, pa.Table], stored: StoredCellStates
) -> Iterator[ShareResult]:
    """Changed flags, new states, and those that are no longer valid."""
    stale = stored.stale(scored["memories"])
    for kind, rows in (*scored.items(), ("stale", stale)):
        if rows.num_rows:
            yield {"kind": kind, "data": table_to_ipc(rows)}


def collect_shares(results: pa.Table, kind: str, schema: pa.Schema) -> pa.Table:
    """Rows of one kind from the results of all shares."""
    parts = [
        pa.ipc.open_stream(data.as_buffer()).read_all()
        for data in results_of(results, kind)
    ]
    return pa.concat_tables([schema.empty_table(), *parts])


def results_of(results: pa.Table, kind: str) -> pa.ChunkedArray:
    """Data of one kind."""
    return results.filter(pc.equal(results["kind"], kind))["data"]
