"""Appending to a Delta table from the executors: ``format("yamamori_delta")``.

Every task writes one Parquet file; the driver makes one commit of all of them.
Files of a failed try are invisible to readers, and `vacuum` removes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from backend_spark.schemas import TABLES
from backend_spark.sinks.commits import Once, append_files
from backend_spark.sinks.parts import Part, write_part


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        part: Its file; None of a task without rows.
    """

    part: Part | None = None


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
        rows = pa.Table.from_batches(batches)
        # A task may be tried twice; names of files never meet.
        return Written(write_part(Path(self.path), rows, schema))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks part of the table."""
        written = [m.part for m in messages if isinstance(m, Written)]
        parts = [part for part in written if part is not None]
        append_files(Path(self.path), parts, self.once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave stray files to `vacuum`: no reader sees them."""
