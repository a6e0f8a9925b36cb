"""Appending to a Delta table from the executors: ``format("yamamori_delta")``.

Every task writes one Parquet file; the driver makes one commit of all of them.
Files of a failed try are invisible to readers, and `vacuum` removes them.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from backend_spark.durability import fsync_file, fsync_folder
from backend_spark.schemas import TABLES
from backend_spark.sinks.commits import Once, append_files

STATISTICS = ("cell", "at")
"""Columns whose range goes into the log, so that readers skip files."""


@dataclass
class Written(WriterCommitMessage):
    """One file of a task; a task without rows writes none, of size 0.

    Attributes:
        file: Name within the table's folder.
        size_bytes: Its size.
        modified_ms: Unix time of its writing.
        statistics: Delta's JSON of row count and ranges.
    """

    file: str = ""
    size_bytes: int = 0
    modified_ms: int = 0
    statistics: str = ""


class DeltaAppend(DataSource):
    """Appends the rows of one batch to a Delta table, exactly once.

    Name:
        ``yamamori_delta``

    Options:
        path: Folder of the table, which exists.
        table: Its name in schemas.TABLES.
        app_id: See `Once`.
        batch_id: See `Once`.
    """

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "yamamori_delta"

    # Spark passes these arguments by their names.
    def writer(self, schema: StructType, overwrite: bool) -> "DeltaAppendWriter":
        """A writer for one batch."""
        once = Once(self.options["app_id"], int(self.options["batch_id"]))
        return DeltaAppendWriter(self.options["path"], self.options["table"], once)


class DeltaAppendWriter(DataSourceArrowWriter):
    """Writes files on the executors and commits them on the driver."""

    def __init__(self, path: str, table: str, once: Once) -> None:
        self.path = path
        self.table = table
        self.once = once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task to one fsynced file."""
        schema = TABLES[self.table]
        batches = [b.select(schema.names) for b in iterator if b.num_rows]
        if not batches:
            return Written()
        rows = pa.Table.from_batches(batches).cast(schema)
        # A task may be tried twice; names never meet.
        file = Path(self.path) / f"part-{uuid.uuid4()}.parquet"
        pq.write_table(rows, file, compression="zstd")
        fsync_file(file)
        fsync_folder(file.parent)
        status = file.stat()
        modified_ms = status.st_mtime_ns // 1_000_000
        return Written(file.name, status.st_size, modified_ms, statistics(rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks part of the table."""
        written = [m for m in messages if isinstance(m, Written) and m.size_bytes]
        actions = [
            AddAction(m.file, m.size_bytes, {}, m.modified_ms, True, m.statistics)
            for m in written
        ]
        append_files(Path(self.path), actions, self.once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave stray files to `vacuum`: no reader sees them."""


def statistics(rows: pa.Table) -> str:
    """Delta's statistics of a file: the row count, and the ranges of some columns."""
    low: dict[str, str] = {}
    high: dict[str, str] = {}
    nulls: dict[str, int] = {}
    for name in set(STATISTICS) & set(rows.column_names):
        nulls[name] = rows[name].null_count
        ends = pc.min_max(rows[name]).as_py()
        if ends["min"] is not None:
            low[name] = _shown(ends["min"], timedelta(0))
            # Times are kept in milliseconds: the upper end is rounded up.
            high[name] = _shown(ends["max"], timedelta(microseconds=999))
    return json.dumps({
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    })


def _shown(value: str | datetime, add: timedelta) -> str:
    if isinstance(value, str):
        return value
    shown = (value + add).astimezone(UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
