"""The tables as analysts read them: pyarrow, without Spark.

tables = open_tables("/var/lib/yamamori/backend")
tables.levels().to_pandas()

A Delta table as a pyarrow dataset in which every filter finds its rows.

delta-rs's own ``to_pyarrow_dataset`` (1.6.6) says of a column without statistics that
it is at least and at most null, so that Arrow passes over the whole file for any
filter on that column: no row of a node, no level of 4 or more. Here a file says only
what its statistics say.

Rows of some cells out of a table, wherever batches and compactions left them.

Only files, and groups of rows in them, are opened whose statistics admit one of the
cells. The driver chooses the files, and whoever scores the cells reads them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
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
from pyarrow import fs

from backend_spark.config import TABLES_FOLDER
from backend_spark.scoring.arrow import HISTORY_COLUMNS
from backend_spark.tables.schemas import NODES, SILVER, TABLES, UTC_TIME, conform

KNOWN: Final = ("cell", "at", "received_at", "batch_id")
"""Columns by which a file can be ruled out. Longer texts may be cut in statistics."""

TOLD: Final = {"path"} | {
    f"{what}.{name}" for what in ("min", "max", "null_count") for name in KNOWN
}
"""Of what the log says of a file."""

ROUNDED: Final = timedelta(milliseconds=1)
"""Statistics tell times in milliseconds."""


def dataset_of(table: DeltaTable, folder: str) -> ds.FileSystemDataset:
    """Rows of a table at the version that was opened.

    Args:
        table: Opened.
        folder: Where its files are, as an absolute path.
    """
    # The default file system runs in Python, under threads of Arrow that outlive
    # the interpreter: one reader in four ended with "Aborted" after its work.
    here = fs.SubTreeFileSystem(folder, fs.LocalFileSystem())
    parquet = ds.ParquetFileFormat(
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
    )
    schema = pa.schema(table.schema().to_arrow(as_large_types=False))
    actions = pa.table(table.get_add_actions(flatten=True))
    wanted = [name for name in actions.column_names if name in TOLD]
    fragments = [
        parquet.make_fragment(file["path"], here, partition_expression=_says(file))
        for file in actions.select(wanted).to_pylist()
    ]
    return ds.FileSystemDataset(fragments, schema, parquet, here)


def _says(file: dict[str, Any]) -> pc.Expression:
    """What holds for every row of a file."""
    whole = pc.scalar(True)
    for part in _ranges(file):
        whole &= part
    return whole


def _ranges(file: dict[str, Any]) -> Iterator[pc.Expression]:
    for name in KNOWN:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        # A row without a value is in no range.
        if low is None or high is None or file.get(f"null_count.{name}") != 0:
            continue
        if isinstance(high, str | int):
            yield (pc.field(name) >= low) & (pc.field(name) <= high)
        else:
            yield (pc.field(name) >= _moment(low)) & (
                pc.field(name) <= _moment(high + ROUNDED)
            )


def _moment(value: Any) -> pa.Scalar:  # noqa: ANN401 - of pyarrow's own
    return pa.scalar(value, pa.timestamp("us", tz="UTC"))


@dataclass(frozen=True)
class Tables:
    """The Delta tables of one data folder; each call reads the newest version.

    Attributes:
        folder: Where the tables are.
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Folder of a table."""
        return self.folder / name

    def dataset(self, name: str, version: int | None = None) -> ds.Dataset:
        """A table as a pyarrow dataset; a table not made yet is an empty one.

        Columns that are newer than the table are null.

        Args:
            name: Of the table.
            version: The table as it was; None is the newest.
        """
        path = str(self.path(name).absolute())
        if not DeltaTable.is_deltatable(path):
            return ds.dataset(TABLES[name].empty_table())
        found = dataset_of(DeltaTable(path, version), path)
        there = set(found.schema.names)
        later = [field for field in TABLES[name] if field.name not in there]
        return found.replace_schema(pa.schema([*found.schema, *later]))

    def read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Rows of a table, whole or some columns of it."""
        wanted = TABLES[name].names if columns is None else columns
        return self.dataset(name).to_table(columns=wanted)

    def of(
        self,
        name: str,
        column: str,
        text: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> pa.Table:
        """Rows of one cell or node, by time.

        The dataset's own filter cannot compare texts: delta-rs writes views of
        strings when it merges, and Arrow has no equality for those.

        Args:
            name: Of the table.
            column: Such as cell or node.
            text: What it must be.
            since: The first moment, with its zone; None is the first there is.
            until: The last one; None is the last there is.
        """
        wanted = [f"{column} = {_literal(text)}"]
        wanted += [] if since is None else [f"at >= {_literal(since)}"]
        wanted += [] if until is None else [f"at <= {_literal(until)}"]
        return self._ask(name, f"t WHERE {' AND '.join(wanted)} ORDER BY at")

    def cell(
        self, token: str, since: datetime | None = None, until: datetime | None = None
    ) -> pa.Table:
        """Levels of one cell, by time; see `of`."""
        return self.of("levels", "cell", token, since, until)

    def sensor(
        self,
        node: str,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> pa.Table:
        """Readings of one sensor of a node, by time; see `of`."""
        rows = self.of("silver", "node", node, since, until)
        return rows.filter(pc.equal(rows["name"], name))

    def newest(self) -> pa.Table:
        """The newest level of each cell, by cell."""
        nth = "row_number() OVER (PARTITION BY cell ORDER BY at DESC) AS nth"
        rows = f"(SELECT *, {nth} FROM t) WHERE nth = 1 ORDER BY cell"  # noqa: S608 - no input
        return self._ask("levels", rows)

    def _ask(self, name: str, rows: str) -> pa.Table:
        """Rows of a table by SQL from FROM on, in which it is called t."""
        path = str(self.path(name).absolute())
        if not DeltaTable.is_deltatable(path):
            return TABLES[name].empty_table()
        table = DeltaTable(path)
        there = {field.name for field in table.schema().fields}
        schema = pa.schema([field for field in TABLES[name] if field.name in there])
        columns = ", ".join(f'"{column}"' for column in schema.names)
        query = f"SELECT {columns} FROM {rows}"  # noqa: S608 - the texts are literals
        found = QueryBuilder().register("t", table).execute(query)
        return pa.table(found.read_all()).cast(schema)

    def last_messages(self) -> pa.Table:
        """For each node of `messages` its cell, and when it last spoke."""
        path = str(self.path("messages").absolute())
        if not DeltaTable.is_deltatable(path):
            return NODES.empty_table()
        query = (
            "SELECT node, max(cell) AS cell, max(at) AS at, "
            "max(received_at) AS received_at FROM t WHERE at IS NOT NULL GROUP BY node"
        )
        found = QueryBuilder().register("t", DeltaTable(path)).execute(query)
        return pa.table(found.read_all())

    def bronze(self, columns: list[str] | None = None) -> pa.Table:
        """Messages as received."""
        return self.read("bronze", columns)

    def silver(self, columns: list[str] | None = None) -> pa.Table:
        """One row a reading."""
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
        """One row per message of priority 4 or 5, within a second of its coming."""
        return self.read("alerts", columns)

    def forecasts(self, columns: list[str] | None = None) -> pa.Table:
        """One row per interval of an official forecast of rain."""
        return self.read("forecasts", columns)

    def messages(self, columns: list[str] | None = None) -> pa.Table:
        """One row per message id."""
        return self.read("messages", columns)

    def nodes(self, columns: list[str] | None = None) -> pa.Table:
        """One row per node: when it last spoke, and what it told of itself."""
        return self.read("nodes", columns)


def open_tables(data: str | Path) -> Tables:
    """The tables of a data folder (``backend.data`` of the settings)."""
    return Tables(Path(data) / TABLES_FOLDER)


def _literal(value: str | datetime) -> str:
    """A value in SQL; a quotation mark in it stays one."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'"


HISTORY = pa.schema([SILVER.field(name) for name in HISTORY_COLUMNS])
PLACE = (pa.field("file", pa.string()), pa.field("row", pa.int64()))
"""Where a row is: its file within the table's folder, and its number there."""


@dataclass(frozen=True)
class CellRows:
    """Rows of some cells since some time.

    Attributes:
        path: Folder of the table.
        schema: Columns wanted; ``node_cell`` and ``at`` among them.
        cells: Tokens of the cells, ascending.
        since_us: Unix time of the earliest row wanted, in microseconds.
    """

    path: str
    schema: pa.Schema
    cells: Sequence[str]
    since_us: int

    def files(self) -> list[str]:
        """Files that may hold a wanted row, within the table's folder."""
        adds = pa.table(DeltaTable(self.path).get_add_actions(flatten=True))
        low, high = (_column(adds, f"{side}.cell") for side in ("min", "max"))
        return [
            path
            for path, least, most, last_us in zip(
                adds["path"].to_pylist(),
                low,
                high,
                _column(adds, "max.at"),
                strict=True,
            )
            if (last_us is None or last_us >= self.since_us)
            and self._may_hold(least, most)
        ]

    def read(self, files: Sequence[str]) -> pa.Table:
        """Wanted rows of such files, each with its place (`PLACE`)."""
        schema = pa.schema([*self.schema, *PLACE])
        tables = [rows for file in files for rows in self._of(file)]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _of(self, file: str) -> Iterator[pa.Table]:
        with pq.ParquetFile(Path(self.path) / file) as parquet:
            there = set(parquet.schema_arrow.names)
            columns = [name for name in self.schema.names if name in there]
            first = 0
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                if self._may_hold(*_cells_of(group)):
                    rows = parquet.read_row_group(number, columns=columns)
                    yield self._wanted(rows, file, first)
                first += group.num_rows

    def _wanted(self, rows: pa.Table, file: str, first: int) -> pa.Table:
        rows = conform(rows, self.schema)
        numbers = pa.array(np.arange(first, first + rows.num_rows))
        rows = rows.append_column(PLACE[0], pa.repeat(file, rows.num_rows))
        rows = rows.append_column(PLACE[1], numbers)
        since = pa.scalar(self.since_us, pa.int64()).cast(UTC_TIME)
        wanted = pc.is_in(rows["cell"], pa.array(self.cells, pa.string()))
        return rows.filter(pc.and_(wanted, pc.greater_equal(rows["at"], since)))

    def _may_hold(self, least: str | None, most: str | None) -> bool:
        """Whether a cell lies in a range; without statistics any may."""
        if least is None or most is None:
            return True
        at = bisect_left(self.cells, least)
        return at < len(self.cells) and self.cells[at] <= most


def _column(adds: pa.Table, name: str) -> list[Any]:
    if name not in adds.column_names:
        return [None] * adds.num_rows
    column = adds[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return list(column.to_pylist())


def _cells_of(group: pq.RowGroupMetaData) -> tuple[str | None, str | None]:
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "cell":
            told = column.statistics
            return (told.min, told.max) if told and told.has_min_max else (None, None)
    return None, None
