"""Readers of Delta tables by pyarrow, without Spark: for analysts and for the scoring.

tables = open_tables("/var/lib/yamamori/backend")
tables.levels().to_pandas()
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from backend_spark.config import TABLES_FOLDER, BackendSection
from backend_spark.scoring.arrow import HISTORY_COLUMNS
from backend_spark.scoring.observation import RAIN
from backend_spark.tables.current import read_current, read_newest_before
from backend_spark.tables.schemas import NODES, SILVER, TABLES, UTC_TIME, cast_to_schema
from backend_spark.tables.store import (
    Folder,
    is_table,
    open_files,
    open_table,
    parse_folder,
    tables_folder,
)

_FILTER_COLUMNS: Final = ("cell", "at", "received_at", "batch_id")
"""Columns whose statistics exclude files; longer texts may be truncated there."""

_FILE_COLUMNS: Final = {"path"} | {
    f"{bound}.{name}"
    for bound in ("min", "max", "null_count")
    for name in _FILTER_COLUMNS
}

_TIME_ROUNDING: Final = timedelta(milliseconds=1)
"""Times in statistics have milliseconds."""

HISTORY_SCHEMA = pa.schema([SILVER.field(name) for name in HISTORY_COLUMNS])
ROW_LOCATION = (pa.field("file", pa.string()), pa.field("row", pa.int64()))
"""Location of a row: file within the table's folder, and number of the row in it."""


def open_dataset(table: DeltaTable, folder: Folder) -> ds.FileSystemDataset:
    """A Delta table, at the opened version, as a pyarrow dataset.

    For a column without statistics, ``to_pyarrow_dataset`` of delta-rs (1.6.6) declares
    minimum and maximum null, so that Arrow skips the whole file for any filter on that
    column (no row of a node, no level of 4 or more). Here only existing statistics
    exclude a file.

    Args:
        table: The opened table.
        folder: Its folder.
    """
    # That of delta-rs runs in Python, in threads of Arrow that outlive the
    # interpreter: one reader in four ended with "Aborted" after its work.
    file_system = open_files(folder)
    parquet = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
    )
    schema = pa.schema(table.schema().to_arrow(as_large_types=False))
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = [name for name in actions.column_names if name in _FILE_COLUMNS]
    fragments = [
        parquet.make_fragment(
            file["path"], file_system, partition_expression=_guarantee(file)
        )
        for file in actions.select(columns).to_pylist()
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, file_system)


def _guarantee(file: dict[str, Any]) -> pc.Expression:
    """Expression that is true for every row of a file, by its statistics."""
    guarantee = pc.scalar(True)
    for name in _FILTER_COLUMNS:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        # A null is in no range.
        if low is None or high is None or file.get(f"null_count.{name}") != 0:
            continue
        if not isinstance(high, str | int):
            low = pa.scalar(low, UTC_TIME)
            high = pa.scalar(high + _TIME_ROUNDING, UTC_TIME)
        guarantee &= (pc.field(name) >= low) & (pc.field(name) <= high)
    return guarantee


@dataclass(frozen=True)
class DeltaTables:
    """Delta tables of a data folder; each call reads the newest version.

    Attributes:
        folder: Folder of the tables.
    """

    folder: Folder

    def path(self, name: str) -> Folder:
        """Folder of a table."""
        return self.folder / name

    def dataset(self, name: str, version: int | None = None) -> ds.Dataset:
        """A table as a pyarrow dataset; empty if the table does not exist yet.

        Columns that are newer than the table are null.

        Args:
            name: Name of the table.
            version: Version to read; None is the newest.
        """
        path = self.path(name)
        if not is_table(path):
            return ds.dataset(TABLES[name].empty_table())
        found = open_dataset(open_table(path, version), path)
        there = set(found.schema.names)
        later = [field for field in TABLES[name] if field.name not in there]
        return found.replace_schema(pa.schema([*found.schema, *later]))

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Rows of a table, with all columns or some."""
        columns = TABLES[name].names if columns is None else columns
        return self.dataset(name).to_table(columns=columns)

    def of(
        self,
        name: str,
        column: str,
        text: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        columns: Collection[str] = (),
    ) -> pa.Table:
        """Rows of one cell or node, sorted by time.

        A filter of the dataset cannot compare texts: delta-rs writes string views when
        it merges, and Arrow has no equality for those.

        Args:
            name: Name of the table.
            column: Column such as ``cell`` or ``node``.
            text: Value of the column.
            since: First time, with a zone; None: from the first row.
            until: Last time, with a zone; None: to the last row.
            columns: Columns to read, if the table has them; none: all.
        """
        conditions = [f"{column} = {sql_literal(text)}"]
        conditions += [] if since is None else [f"at >= {sql_literal(since)}"]
        conditions += [] if until is None else [f"at <= {sql_literal(until)}"]
        rows = f"t WHERE {' AND '.join(conditions)} ORDER BY at"
        return self._query(name, rows, columns)

    def cell(
        self, token: str, since: datetime | None = None, until: datetime | None = None
    ) -> pa.Table:
        """Levels of one cell, sorted by time; times as in `of`."""
        return self.of("levels", "cell", token, since, until)

    def sensor(
        self,
        node: str,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> pa.Table:
        """Readings of one sensor of a node, sorted by time; times as in `of`."""
        rows = self.of("silver", "node", node, since, until)
        return rows.filter(pc.equal(rows["name"], name))

    def select(
        self,
        name: str,
        columns: Sequence[str],
        conditions: Sequence[str],
        order: str,
        limit: tuple[int, int],
    ) -> pa.Table:
        """The first rows of a table in an order; no more than these are in memory.

        Args:
            name: Name of the table.
            columns: Columns to read; one that is newer than the table is null.
            conditions: Conditions in SQL, all of which hold; values by `sql_literal`.
            order: Columns to sort by, in SQL.
            limit: Number of rows, and of rows to leave out before them.
        """
        schema = pa.schema([TABLES[name].field(column) for column in columns])
        path = self.path(name)
        if not is_table(path):
            return schema.empty_table()
        table = open_table(path)
        present = {field.name for field in table.schema().fields}
        known = ", ".join(f'"{column}"' for column in columns if column in present)
        where = " AND ".join(["TRUE", *conditions])
        query = (
            f"SELECT {known} FROM t WHERE {where} ORDER BY {order}"  # noqa: S608 - values are literals
            f" LIMIT {limit[0]} OFFSET {limit[1]}"
        )
        result = QueryBuilder().register("t", table).execute(query)
        return cast_to_schema(pa.table(result.read_all()), schema)

    def distinct(
        self, name: str, columns: Sequence[str], conditions: Sequence[str]
    ) -> pa.Table:
        """Different values of some columns; the rows themselves are never in memory.

        Args:
            name: Name of the table.
            columns: Columns to read, in the order of the table.
            conditions: As in `select`.
        """
        where = " AND ".join(["TRUE", *conditions])
        return self._query(
            name, f"t WHERE {where} GROUP BY {', '.join(columns)}", columns
        )

    def count(self, name: str, conditions: Sequence[str]) -> int:
        """Number of rows with some conditions, which are as in `select`."""
        path = self.path(name)
        if not is_table(path):
            return 0
        where = " AND ".join(["TRUE", *conditions])
        query = f"SELECT count(*) AS n FROM t WHERE {where}"  # noqa: S608 - values are literals
        result = QueryBuilder().register("t", open_table(path)).execute(query)
        return int(pa.table(result.read_all())["n"][0].as_py())

    def extent(
        self, name: str, begin: datetime | None = None, end: datetime | None = None
    ) -> tuple[datetime, datetime, int] | None:
        """First and last time of a table, and rows of the files between two times.

        By the statistics in the log, without reading a file; None without rows.
        """
        path = self.path(name)
        if not is_table(path):
            return None
        actions = pa.table(open_table(path).get_add_actions(flatten=True))
        parts = [
            (low, high + _TIME_ROUNDING, rows)
            for low, high, rows in zip(
                *(
                    _values(actions, each)
                    for each in ("min.at", "max.at", "num_records")
                ),
                strict=True,
            )
            if low is not None and high is not None
        ]
        if not parts:
            return None
        first, last = min(part[0] for part in parts), max(part[1] for part in parts)
        rows = sum(
            count or 0
            for low, high, count in parts
            if (begin is None or high >= begin) and (end is None or low <= end)
        )
        return first, last, rows

    def newest(self) -> pa.Table:
        """Newest level of each cell, sorted by cell, as of the newest gold.

        Columns are those of ``current``: `read` gives that table as the last pass wrote
        it, this adds what gold has gained since.
        """
        return read_current(self.folder).rows

    def newest_levels(
        self,
        columns: Sequence[str],
        since: datetime,
        until: datetime,
        cells: Iterable[str] | None = None,
        *,
        with_silent: bool = False,
    ) -> list[dict[str, Any]]:
        """The newest row of each cell within two times, sorted by cell.

        Args:
            columns: Columns to read, with `cell` and `at`.
            since: First time, with its zone.
            until: Last time.
            cells: Cells to read; None for all.
            with_silent: Whether cells that have no row since the first time are
                included, with their newest row.
        """
        newest = self.newest()
        if cells is not None:
            wanted = pa.array(list(cells), pa.string())
            newest = newest.filter(pc.is_in(newest["cell"], wanted))
        at = newest["at"]
        is_within = pc.less_equal(at, until)
        if not with_silent:
            is_within = pc.and_(is_within, pc.greater_equal(at, since))
        rows = list(newest.filter(is_within).select(list(columns)).to_pylist())
        later = newest.filter(pc.greater(at, until))["cell"].to_pylist()
        if later:
            path = self.path("levels")
            rows += read_newest_before(path, columns, later, (since, until))
        return sorted(rows, key=lambda row: str(row["cell"]))

    def level_begins(
        self, levels: Mapping[str, int], until: datetime
    ) -> dict[str, datetime]:
        """First time of the last run of rows at a level, by cell.

        Args:
            levels: 1 to 5, by cell; cells whose newest row has another level, or whose
                run begins later, are left out.
            until: Last time.
        """
        newest = self.newest().select(["cell", "level", "level_since"])
        rows = newest.filter(pc.is_in(newest["cell"], pa.array(levels, pa.string())))
        return {
            row["cell"]: row["level_since"]
            for row in rows.to_pylist()
            if row["level"] == levels[row["cell"]] and row["level_since"] <= until
        }

    def _query(self, name: str, rows: str, wanted: Collection[str] = ()) -> pa.Table:
        """Rows of a table by SQL; `rows` follows FROM and names the table ``t``."""
        path = self.path(name)
        if not is_table(path):
            return TABLES[name].empty_table()
        table = open_table(path)
        present = {field.name for field in table.schema().fields}
        present &= set(wanted or present)
        schema = pa.schema([field for field in TABLES[name] if field.name in present])
        columns = ", ".join(f'"{column}"' for column in schema.names)
        query = f"SELECT {columns} FROM {rows}"  # noqa: S608 - the texts are literals
        result = QueryBuilder().register("t", table).execute(query)
        return pa.table(result.read_all()).cast(schema)

    def last_messages(self) -> pa.Table:
        """Cell and time of the last message of each node, from ``messages``."""
        path = self.path("messages")
        if not is_table(path):
            return NODES.empty_table()
        query = (
            "SELECT node, max(cell) AS cell, max(at) AS at, "
            "max(received_at) AS received_at FROM t WHERE at IS NOT NULL GROUP BY node"
        )
        result = QueryBuilder().register("t", open_table(path)).execute(query)
        return pa.table(result.read_all())

    def bronze(self, columns: list[str] | None = None) -> pa.Table:
        """Messages as received."""
        return self.read("bronze", columns)

    def silver(self, columns: list[str] | None = None) -> pa.Table:
        """One row per reading."""
        return self.read("silver", columns)

    def rejected(self, columns: list[str] | None = None) -> pa.Table:
        """Packs that do not decode, and why."""
        return self.read("rejected", columns)

    def levels(self, columns: list[str] | None = None) -> pa.Table:
        """One row per cell and 10-minute step."""
        return self.read("levels", columns)

    def sensors(self, columns: list[str] | None = None) -> pa.Table:
        """One row per moving sensor and 10-minute step."""
        return self.read("sensors", columns)

    def revisions(self, columns: list[str] | None = None) -> pa.Table:
        """Rows of levels as they stood before late data revised them."""
        return self.read("revisions", columns)

    def alerts(self, columns: list[str] | None = None) -> pa.Table:
        """One row per urgent message, within a second of its receipt."""
        return self.read("alerts", columns)

    def forecasts(self, columns: list[str] | None = None) -> pa.Table:
        """One row per interval of an official forecast of rain."""
        return self.read("forecasts", columns)

    def analyses(self, columns: list[str] | None = None) -> pa.Table:
        """One row per mesh, time and issue of an analysis by JMA."""
        return self.read("analyses", columns)

    def messages(self, columns: list[str] | None = None) -> pa.Table:
        """One row per message id."""
        return self.read("messages", columns)

    def nodes(self, columns: list[str] | None = None) -> pa.Table:
        """One row per node: its last message, and its last report of itself."""
        return self.read("nodes", columns)


def read_transactions(table: DeltaTable, apps: Iterable[str]) -> dict[str, int]:
    """Version that a table has of each application; without those that it lacks."""
    versions = ((app, table.transaction_version(app)) for app in sorted(apps))
    return {app: version for app, version in versions if version is not None}


def open_tables(data: str | Path | BackendSection) -> DeltaTables:
    """Open the tables of a backend.

    Args:
        data: The data folder (``backend.data`` of the settings), a URL of tables
            (``backend.tables``), or the section ``[backend]`` with both.

    Raises:
        FieldError: The URL is not one of tables, or the environment does not fit it.
        SettingsError: The same, for the URL in a section.
    """
    if isinstance(data, BackendSection):
        return DeltaTables(tables_folder(data))
    if isinstance(data, str) and "://" in data:
        return DeltaTables(parse_folder(data))
    return DeltaTables(Path(data) / TABLES_FOLDER)


def sql_literal(value: str | datetime) -> str:
    """SQL literal of a value, with quotation marks escaped."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'"


FileRange = tuple[str, str | None, str | None, int | None]
"""Name of a file, its lowest and highest cell, and its latest time in microseconds."""

ROWS_AT_ONCE: Final = 8_192
"""Rows of a row group that are decoded at a time: a row group that delta-rs has merged
may have a million, and a row of gold takes half a kilobyte."""


@dataclass(frozen=True)
class CellRowReader:
    """Reader of the rows of some cells from a given time.

    It opens only files, and row groups in them, whose statistics admit one of the
    cells. The driver selects the files, the executors read them.

    Attributes:
        path: Folder of the table.
        schema: Columns to read, among them ``cell`` and ``at``.
        cells: Tokens of the cells, ascending.
        since_us: Unix time of the earliest row, in microseconds.
        rain_only: Cells of which only the reports of rain gauges are read, of silver.
    """

    path: Folder
    schema: pa.Schema
    cells: Sequence[str]
    since_us: int
    rain_only: Collection[str] = ()

    def list_files(self, known: Iterable[FileRange] | None = None) -> list[str]:
        """Names of the files that may contain such rows.

        Args:
            known: Files of the table; None for those of its newest version.
        """
        if known is None:
            known = list_ranges(open_table(self.path))
        return [
            path
            for path, low, high, last_us in known
            if (last_us is None or last_us >= self.since_us)
            and self._may_contain(low, high)
        ]

    def read(self, files: Sequence[str]) -> pa.Table:
        """Read the rows from files, each with its location (`ROW_LOCATION`)."""
        schema = pa.schema([*self.schema, *ROW_LOCATION])
        tables = [rows for file in files for rows in self._read_file(file)]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _read_file(self, file: str) -> Iterator[pa.Table]:
        with pq.ParquetFile(file, filesystem=open_files(self.path)) as parquet:
            present = set(parquet.schema_arrow.names)
            columns = [name for name in self.schema.names if name in present]
            first = 0
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                if not self._may_contain(*_cell_range(group)):
                    first += group.num_rows
                    continue
                for batch in parquet.iter_batches(
                    ROWS_AT_ONCE, [number], columns, use_threads=False
                ):
                    rows = pa.Table.from_batches([batch])
                    yield from self._select(rows, file, first)
                    first += batch.num_rows

    def _select(self, rows: pa.Table, file: str, first: int) -> Iterator[pa.Table]:
        """The wanted rows of a part of a file; yields nothing if there are none."""
        rows = cast_to_schema(rows, self.schema)
        since = pa.scalar(self.since_us, pa.int64()).cast(UTC_TIME)
        wanted = pc.and_(
            pc.is_in(rows["cell"], pa.array(self.cells, pa.string())),
            pc.greater_equal(rows["at"], since),
        )
        if self.rain_only:
            others = pa.array(sorted(self.rain_only), pa.string())
            is_whole = pc.invert(pc.is_in(rows["cell"], others))
            wanted = pc.and_(wanted, pc.or_(is_whole, pc.equal(rows["name"], RAIN)))
        places = np.flatnonzero(wanted.to_numpy())
        if not places.size:
            return
        rows = rows.filter(wanted)
        rows = rows.append_column(ROW_LOCATION[0], pa.repeat(file, rows.num_rows))
        yield rows.append_column(ROW_LOCATION[1], pa.array(places + first))

    def _may_contain(self, low: str | None, high: str | None) -> bool:
        """Whether a cell lies in a range; True without statistics."""
        if low is None or high is None:
            return True
        at = bisect_left(self.cells, low)
        return at < len(self.cells) and self.cells[at] <= high


def list_ranges(table: DeltaTable) -> list[FileRange]:
    """Files of an opened table, with the ranges of their rows."""
    adds = pa.table(table.get_add_actions(flatten=True))
    names = ("path", "min.cell", "max.cell", "max.at")
    return list(zip(*(_column(adds, name) for name in names), strict=True))


def _values(adds: pa.Table, name: str) -> list[Any]:
    present = name in adds.column_names
    return list(adds[name].to_pylist()) if present else [None] * adds.num_rows


def _column(adds: pa.Table, name: str) -> list[Any]:
    if name not in adds.column_names:
        return [None] * adds.num_rows
    column = adds[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return list(column.to_pylist())


def _cell_range(group: pq.RowGroupMetaData) -> tuple[str | None, str | None]:
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "cell":
            stats = column.statistics
            return (
                (stats.min, stats.max) if stats and stats.has_min_max else (None,) * 2
            )
    return None, None
