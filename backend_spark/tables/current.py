"""Newest level of each cell: the table ``current``, brought up to date from gold.

Gold has a row per cell and step, so that the newest ones would be found by reading all
of it. The table has one row per cell, and names the version of gold that it rests on.
Readers add what gold has gained since: the result never depends on when the table was
written, and is computed from all of gold if the table is missing, damaged, or of
another gold.

A file of gold is reduced to runs, rows of a cell that follow each other at the same
level. The newest run of a cell has its newest row, and begins when the level began.
Where runs do not settle that, because rows of several files interleave, the rows are
read.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from backend_spark.scoring.holds import HoldLimits, PresentLevel
from backend_spark.tables.delta_log import (
    GoldChanges,
    GoldFile,
    GoldVersion,
    all_files,
    changes_between,
    version_of,
)
from backend_spark.tables.schemas import CURRENT, LEVELS, UTC_TIME, cast_to_schema
from backend_spark.tables.store import (
    Folder,
    file_names,
    is_table,
    open_files,
    open_table,
)

log = logging.getLogger(__name__)

GOLD: Final = "levels"
GOLD_VERSION: Final = "version of levels"
GOLD_COMMITTED: Final = "commit time of levels"
"""App ids of the transactions in ``current`` that name a version of gold."""

SCAN_ROWS: Final = 131_072
"""Rows of gold in memory at a time."""

CELLS_AT_ONCE: Final = 200
LOOK_BACK_DAYS: Final = (3, 30, None)
"""How far before the newest row the begin of a run is searched, in turn."""

LOOK_BACK: Final = (timedelta(hours=1), timedelta(days=1), timedelta.max)
"""How far before a moment the newest row of a cell is searched, in turn."""

_MICRO: Final = 1_000_000
_NEVER: Final = int(np.iinfo(np.int64).min)
_PRIOR: Final = -1
"""File of a run that the table has, and that is not read from gold."""

_KEYS: Final = ("cell", "at", "level")
_RUN: Final = np.dtype([
    ("cell", np.int32),
    ("first", np.int64),
    ("last", np.int64),
    ("level", np.int8),
    ("file", np.int32),
    ("row", np.int64),
])
"""Run: number of the cell, times in microseconds, level (0: none), place of its end."""

Runs = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CurrentLevels:
    """Newest row of each cell.

    Attributes:
        rows: schemas.CURRENT, sorted by cell.
        gold: Version of gold that they rest on; None without a table.
        stored: Version that the table rests on; None if it cannot be used.
        is_stored: Whether the table has just these rows.
    """

    rows: pa.Table
    gold: GoldVersion | None
    stored: GoldVersion | None
    is_stored: bool


def read_current(tables: Folder) -> CurrentLevels:
    """Newest row of each cell, as of the newest version of gold.

    Args:
        tables: Folder of the tables.
    """
    path = tables / GOLD
    if not is_table(path):
        return CurrentLevels(CURRENT.empty_table(), None, None, is_stored=False)
    levels = open_table(path)
    gold = version_of(path, levels.version())
    prior, stored = _read_stored(tables, gold)
    if stored == gold:
        return CurrentLevels(prior, gold, stored, is_stored=True)
    changes = (
        None if stored is None else changes_between(path, stored.number, gold.number)
    )
    if changes is None:
        log.info("computing the newest level of each cell from all of gold")
        prior, changes = CURRENT.empty_table(), GoldChanges(all_files(levels))
    rows = prior
    if changes.trimmed_until is not None:
        rows = prior.filter(pc.greater_equal(prior["at"], changes.trimmed_until))
    if changes.files:
        rows = _Merge(levels, path, rows).add(changes.files)
    is_stored = stored is not None and rows is prior
    return CurrentLevels(rows, gold, stored, is_stored)


def present_rows(newest: pa.Table, now_s: float, limits: HoldLimits) -> pa.Table:
    """Rows with the level of a moment instead of that of their step.

    Args:
        newest: Newest row of each cell (schemas.CURRENT).
        now_s: The moment, Unix time.
        limits: When holds of levels end.

    Returns:
        The rows with level, state and known_until of the moment. Where the level
        differs, level_since and notice_level are null.
    """
    keys = newest.select(["at", "level", "state", "known_until"]).to_pylist()
    present = [PresentLevel.of_row(row, now_s, limits) for row in keys]
    known = [each.known_until_s for each in present]
    changed: dict[str, list[Any]] = {
        "level": [each.level for each in present],
        "state": [each.state for each in present],
        "known_until": [
            None if known_s is None else datetime.fromtimestamp(known_s, UTC)
            for known_s in known
        ],
    }
    is_same = [
        row["level"] == each.level for row, each in zip(keys, present, strict=True)
    ]
    for name in ("level_since", "notice_level"):
        stored = newest[name].to_pylist()
        changed[name] = [
            value if same else None for value, same in zip(stored, is_same, strict=True)
        ]
    columns = [
        pa.array(changed[field.name], field.type)
        if field.name in changed
        else newest[field.name]
        for field in CURRENT
    ]
    return pa.table(columns, schema=CURRENT)


def _read_stored(
    tables: Folder, gold: GoldVersion
) -> tuple[pa.Table, GoldVersion | None]:
    """Rows of the table, and the version of gold that they rest on."""
    path = tables / "current"
    try:
        if is_table(path):
            table = open_table(path)
            stored = _stored_version(tables / GOLD, table, gold)
            if stored is not None:
                return _read_rows(path, table), stored
    except (DeltaError, OSError, pa.ArrowInvalid) as error:
        # Damaged; or the log of gold was shortened since.
        log.warning("%s cannot be used, gold is read instead: %s", path, error)
    return CURRENT.empty_table(), None


def _stored_version(
    path: Folder, table: DeltaTable, gold: GoldVersion
) -> GoldVersion | None:
    """Version of gold that the table rests on; None if gold does not have it."""
    number, committed_ms = map(
        table.transaction_version, (GOLD_VERSION, GOLD_COMMITTED)
    )
    if number is None or number > gold.number:
        return None
    stored = version_of(path, number)
    return stored if stored.committed_ms == committed_ms else None


def _read_rows(path: Folder, table: DeltaTable) -> pa.Table:
    opened, names = open_files(path), file_names(table)
    files = [pq.ParquetFile(name, filesystem=opened).read() for name in names]
    rows = [cast_to_schema(each, CURRENT) for each in files]
    return pa.concat_tables([CURRENT.empty_table(), *rows])


class _Merge:
    """Adds files of gold to the newest rows of the cells.

    Args:
        levels: Opened gold.
        path: Its folder.
        prior: Newest rows before the files (schemas.CURRENT), sorted by cell.
    """

    def __init__(self, levels: DeltaTable, path: Folder, prior: pa.Table) -> None:
        self._levels, self._path, self._prior = levels, path, prior
        self._tokens: list[str] = prior["cell"].to_pylist()
        self._ids = {token: at for at, token in enumerate(self._tokens)}
        at = prior["at"].cast(pa.int64()).to_numpy()
        since = prior["level_since"].cast(pa.int64()).fill_null(0).to_numpy()
        level = prior["level"].fill_null(0).to_numpy()
        runs = np.zeros(prior.num_rows, _RUN)
        runs["cell"], runs["first"], runs["last"] = np.arange(len(runs)), since, at
        runs["level"], runs["file"] = level, _PRIOR
        self._known = runs

    def add(self, files: Sequence[GoldFile]) -> pa.Table:
        """Newest rows with the files."""
        found = np.zeros(0, _RUN)
        for number, file in enumerate(files):
            runs = [found, *self._runs_of(number, file)]
            found = _coalesce(np.concatenate(runs))
        newest, since, is_open = _resolve(
            np.concatenate([self._known, found]), len(self._tokens)
        )
        is_open |= self._contradicted(found, newest, since)
        touched = np.zeros(len(self._tokens), np.bool_)
        touched[found["cell"]] = True
        self._read_begins(newest, since, np.flatnonzero(is_open & touched))
        return self._assemble(newest, since, files)

    def _runs_of(self, number: int, file: GoldFile) -> Iterator[Runs]:
        """Runs of a file, a part of it at a time."""
        begin = 0
        with pq.ParquetFile(
            file.name, read_dictionary=["cell"], filesystem=open_files(self._path)
        ) as parquet:
            for batch in parquet.iter_batches(SCAN_ROWS, columns=list(_KEYS)):
                runs = self._runs_in(batch)
                runs["file"] = number
                runs["row"] += begin
                begin += batch.num_rows
                yield runs

    def _runs_in(self, batch: pa.RecordBatch) -> Runs:
        cells = batch["cell"]
        known = [self._number(token) for token in cells.dictionary.to_pylist()]
        cell = np.array(known, np.int32)[cells.indices.to_numpy()]
        at = batch["at"].cast(pa.int64()).to_numpy()
        level = batch["level"].fill_null(0).to_numpy().astype(np.int8)
        begins = np.ones(len(at), np.bool_)
        is_next = (cell[1:] == cell[:-1]) & (at[1:] > at[:-1])
        begins[1:] = ~(is_next & (level[1:] == level[:-1]))
        first = np.flatnonzero(begins)
        last = np.append(first[1:] - 1, len(at) - 1)[: len(first)]
        runs = np.zeros(len(first), _RUN)
        runs["cell"], runs["level"], runs["row"] = cell[first], level[first], last
        runs["first"], runs["last"] = at[first], at[last]
        return runs

    def _number(self, token: str) -> int:
        if token not in self._ids:
            self._ids[token] = len(self._tokens)
            self._tokens.append(token)
        return self._ids[token]

    def _contradicted(self, found: Runs, newest: Runs, since: Integers) -> Flags:
        """Cells whose known run is contradicted by new or changed rows in it."""
        wrong = np.zeros(len(newest), np.bool_)
        count = len(self._known)
        again = found[found["cell"] < count]
        before = self._known[again["cell"]]
        overlaps = (again["first"] <= before["last"]) & (
            again["last"] >= before["first"]
        )
        wrong[again["cell"][overlaps & (again["level"] != before["level"])]] = True
        is_same = newest["level"][:count] == self._known["level"]
        wrong[:count] |= is_same & (since[:count] < self._known["first"])
        return wrong

    def _read_begins(self, newest: Runs, since: Integers, cells: Integers) -> None:
        """Find the begins of the newest runs of some cells by their rows."""
        order = sorted(cells.tolist(), key=lambda cell: self._tokens[cell])
        for begin in range(0, len(order), CELLS_AT_ONCE):
            rest = order[begin : begin + CELLS_AT_ONCE]
            for days in LOOK_BACK_DAYS:
                rest = self._read_back(newest, since, rest, days) if rest else []

    def _read_back(
        self, newest: Runs, since: Integers, cells: list[int], days: int | None
    ) -> list[int]:
        """Find begins within some days; returns the cells that began before."""
        last = newest["last"][cells]
        reach_us = _NEVER if days is None else int(last.min()) - days * 86_400 * _MICRO
        rows = self._read_rows([self._tokens[cell] for cell in cells], reach_us)
        runs = _coalesce(self._runs_in(rows))
        _, begins, _ = _resolve(runs, len(self._tokens))
        earliest = np.full(len(self._tokens), np.iinfo(np.int64).max)
        np.minimum.at(earliest, runs["cell"], runs["first"])
        rest = []
        for cell in cells:
            if days is None or begins[cell] > earliest[cell]:
                since[cell] = begins[cell]
            else:
                rest.append(cell)
        return rest

    def _read_rows(self, tokens: list[str], reach_us: int) -> pa.RecordBatch:
        """Rows of some cells from a time on, sorted by cell and time."""
        where = _of_cells(tokens)
        if reach_us > 0:
            reach = datetime.fromtimestamp(reach_us // _MICRO, UTC)
            where += f" AND at >= {sql_time(reach)}"
        query = f"SELECT cell, at, level FROM t WHERE {where} ORDER BY cell, at"  # noqa: S608 - literals
        result = QueryBuilder().register("t", self._levels).execute(query)
        schema = pa.schema([LEVELS.field(name) for name in _KEYS])
        rows = cast_to_schema(pa.table(result.read_all()), schema).combine_chunks()
        cell = rows["cell"].combine_chunks().dictionary_encode()
        columns = [cell, *(rows[name].combine_chunks() for name in _KEYS[1:])]
        return pa.RecordBatch.from_arrays(columns, list(_KEYS))

    def _assemble(
        self, newest: Runs, since: Integers, files: Sequence[GoldFile]
    ) -> pa.Table:
        kept = newest["file"][: len(self._known)] == _PRIOR
        tables = [self._prior.filter(pa.array(kept)).select(LEVELS.names)]
        cells = [np.flatnonzero(kept)]
        latency = self._prior["latency_s"].filter(pa.array(kept)).to_pylist()
        for number in np.unique(newest["file"][newest["file"] != _PRIOR]).tolist():
            chosen = np.flatnonzero(newest["file"] == number)
            chosen = chosen[np.argsort(newest["row"][chosen])]
            rows = _take_rows(self._path, files[number].name, newest["row"][chosen])
            tables.append(rows)
            cells.append(chosen)
            latency += self._latency(rows, files[number], chosen)
        at = pa.array(since[np.concatenate(cells)]).cast(UTC_TIME)
        whole = pa.concat_tables(tables)
        whole = whole.append_column(CURRENT.field("level_since"), at)
        seconds = pa.array(latency, pa.float64())
        return whole.append_column(CURRENT.field("latency_s"), seconds).sort_by("cell")

    def _latency(
        self, rows: pa.Table, file: GoldFile, cells: Integers
    ) -> list[float | None]:
        """Seconds from the receipt of the last reading to gold, where known."""
        received = rows["latest_received"].cast(pa.int64()).to_pylist()
        at = rows["at"].cast(pa.int64()).to_pylist()
        found: list[float | None] = []
        for cell, us, at_us in zip(cells.tolist(), received, at, strict=True):
            if cell < len(self._known) and self._known["last"][cell] == at_us:
                found.append(self._prior["latency_s"][cell].as_py())
            elif us is None or file.written_ms is None:
                found.append(None)
            else:
                found.append(max(0.0, file.written_ms / 1000 - us / _MICRO))
        return found


def read_newest_before(
    path: Folder,
    columns: Sequence[str],
    cells: Iterable[str],
    between: tuple[datetime, datetime],
) -> list[dict[str, Any]]:
    """The newest row of each cell within two times, of cells that have later ones.

    The search goes back in growing windows, each for the cells that have no row in the
    ones before it: most have one in the last hour.

    Args:
        path: Folder of gold.
        columns: Columns to read, with `cell` and `at`.
        cells: Tokens of the cells.
        between: First and last time, with their zones.
    """
    levels, missing = open_table(path), set(cells)
    since, until = between
    rows, end = [], until
    for span in LOOK_BACK:
        begin = max(since, until - span) if span < until - since else since
        if missing:
            where = f"at >= {sql_time(begin)} AND at <= {sql_time(end)}"
            found = read_newest(levels, columns, missing, where)
            missing -= {row["cell"] for row in found}
            rows += found
        end = begin
    return rows


def read_newest(
    levels: DeltaTable,
    columns: Sequence[str],
    cells: Collection[str],
    condition: str,
) -> list[dict[str, Any]]:
    """The newest row of each cell that meets a condition; no other stays in memory.

    Args:
        levels: Opened gold.
        columns: Columns to read, with `cell` and `at`.
        cells: Tokens of the cells.
        condition: Condition in SQL; its times are those of `sql_time`.
    """
    if not cells:
        return []
    where = f"{_of_cells(sorted(cells))} AND {condition}"
    last = f"SELECT cell, max(at) AS at FROM t WHERE {where} GROUP BY cell"  # noqa: S608 - literals
    keys = (row for part in _ask(levels, last, _KEYS[:2]) for row in part.to_pylist())
    newest = {row["cell"]: row["at"] for row in keys if row["cell"] in cells}
    if not newest:
        return []
    there = {field.name for field in levels.schema().fields}
    known = ", ".join(f'"{name}"' for name in columns if name in there)
    steps = ", ".join(map(sql_time, sorted(set(newest.values()))))
    query = f"SELECT {known} FROM t WHERE {where} AND at IN ({steps})"  # noqa: S608 - literals
    return [
        row
        for part in _ask(levels, query, columns)
        for row in part.filter(_is_among(part, newest)).to_pylist()
    ]


def _ask(levels: DeltaTable, query: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of gold by SQL, a part at a time; columns newer than the table are null."""
    schema = pa.schema([LEVELS.field(name) for name in columns])
    for batch in QueryBuilder().register("t", levels).execute(query):
        part = pa.Table.from_batches([pa.record_batch(batch)])
        yield cast_to_schema(part, schema)


def _is_among(rows: pa.Table, newest: dict[str, datetime]) -> pa.Array:
    pairs = zip(rows["cell"].to_pylist(), rows["at"].to_pylist(), strict=True)
    return pa.array([newest.get(cell) == at for cell, at in pairs], pa.bool_())


def _of_cells(tokens: Sequence[str]) -> str:
    """Condition in SQL that sorted tokens meet; of many, others between them do too."""
    texts = ["'" + token.replace("'", "''") + "'" for token in tokens]
    # The bounds exclude row groups, as a long list does not.
    bounds = f"cell >= {texts[0]} AND cell <= {texts[-1]}"
    few = f" AND cell IN ({', '.join(texts)})"
    return bounds + few * (len(texts) <= CELLS_AT_ONCE)


def sql_time(at: datetime) -> str:
    """A time as a literal in SQL."""
    return f"TIMESTAMP '{at.isoformat()}'"


def _coalesce(runs: Runs) -> Runs:
    """Join runs of a cell and level between which no run of another level is known."""
    if not len(runs):
        return runs
    runs = runs[np.lexsort((runs["first"], runs["cell"]))]
    begins = np.ones(len(runs), np.bool_)
    begins[1:] = (runs["cell"][1:] != runs["cell"][:-1]) | (
        runs["level"][1:] != runs["level"][:-1]
    )
    group = np.cumsum(begins) - 1
    by_end = np.lexsort((runs["last"], group))
    ends = np.append(np.flatnonzero(begins)[1:] - 1, len(runs) - 1)
    joined: Runs = runs[by_end[ends]]
    joined["first"] = runs["first"][begins]
    return joined


def _resolve(runs: Runs, count: int) -> tuple[Runs, Integers, Flags]:
    """Newest run of each cell, its begin, and whether that is open.

    Of two runs that end at the same time, that of the later file counts.

    Args:
        runs: Runs; of a cell without any, the result has no meaning.
        count: Number of cells.
    """
    order = np.lexsort((runs["file"], runs["last"], runs["cell"]))
    newest = np.zeros(count, _RUN)
    newest[runs["cell"][order]] = runs[order]  # the last of each cell stays
    is_other = runs["level"] != newest["level"][runs["cell"]]
    broken = np.full(count, _NEVER)
    np.maximum.at(broken, runs["cell"][is_other], runs["last"][is_other])
    same = runs[~is_other]
    is_after = same["first"] > broken[same["cell"]]
    since = newest["last"].copy()
    np.minimum.at(since, same["cell"][is_after], same["first"][is_after])
    is_open = np.zeros(count, np.bool_)
    spans = ~is_after & (same["last"] > broken[same["cell"]])
    is_open[same["cell"][spans]] = True
    return newest, since, is_open


def _take_rows(path: Folder, file: str, numbers: Integers) -> pa.Table:
    """Rows of a file of gold by their numbers, ascending."""
    tables, first = [], 0
    with pq.ParquetFile(file, filesystem=open_files(path)) as parquet:
        for group in range(parquet.num_row_groups):
            end = first + parquet.metadata.row_group(group).num_rows
            begin, stop = np.searchsorted(numbers, (first, end))
            if begin < stop:
                rows = cast_to_schema(parquet.read_row_group(group), LEVELS)
                tables.append(rows.take(pa.array(numbers[begin:stop] - first)))
            first = end
    return pa.concat_tables(tables)
