"""Spark data sources: the segment log as a stream, and rows of a Delta table.

``format("yamamori_log")`` reads the log; ``format("yamamori_table")`` a table, because
Spark cannot read Delta without additional jars.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from backend_spark.ingest.segment_log import (
    LogOffset,
    SegmentName,
    advance_offset,
    end_offset,
    list_segments,
    read_intact_segment,
    segments_between,
)
from backend_spark.tables.reader import open_dataset
from backend_spark.tables.schemas import LOG, TABLES, format_ddl
from backend_spark.tables.store import Folder, open_files, open_table, parse_folder


def group_segments(
    names: Sequence[SegmentName], size_bytes: int, max_tasks: int, min_task_bytes: int
) -> list[list[SegmentName]]:
    """Distribute segments over tasks.

    Args:
        names: Segments to read.
        size_bytes: Size of all of them.
        max_tasks: Maximum number of tasks.
        min_task_bytes: Smallest size per task.
    """
    count = min(max_tasks, len(names), max(1, size_bytes // min_task_bytes))
    return [list(names[i::count]) for i in range(count)]


BYTES_PER_TASK = 256 * 1024
"""A thousand messages, a tenth of a second of work."""


@dataclass
class SegmentPartition(InputPartition):
    """Segments of one task.

    Attributes:
        paths: Files to read.
    """

    paths: tuple[str, ...]


class SegmentLogSource(DataSource):
    """Messages of a segment log, as received.

    Name:
        ``yamamori_log``

    Options:
        path: Folder of the log.
        max_segments: Maximum number of segments per batch; default 200.
        tasks: Maximum number of tasks per batch; default 2.
        start: Offset at which a new checkpoint starts, as JSON; default: before the
            first segment.

    Schema:
        schemas.LOG

    Example:
        ``spark.readStream.format("yamamori_log").option("path", log).load()``
    """

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "yamamori_log"

    def schema(self) -> str:
        """Columns of a segment."""
        return format_ddl(LOG)

    # Spark passes this argument by name.
    def streamReader(self, schema: StructType) -> "SegmentLogReader":  # noqa: N802
        """A reader for one query."""
        return SegmentLogReader(
            self.options["path"],
            int(self.options.get("max_segments", "200")),
            int(self.options.get("tasks", "2")),
            json.loads(self.options.get("start", "{}")),
        )


class SegmentLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads batches of segments.

    Spark compares offsets as JSON text, so their keys are sorted; it accepts an offset
    that goes backwards, so every step is clamped. Spark calls `commit` for a batch only
    when it plans the next one, so segments are deleted elsewhere (`ingest.retention`).
    """

    def __init__(
        self, path: str, max_segments: int, tasks: int, start: LogOffset | None = None
    ) -> None:
        self.path = path
        self.max_segments = max_segments
        self.tasks = tasks
        self.start = start or {}
        self.end: LogOffset | None = None

    def initialOffset(self) -> LogOffset:  # noqa: N802
        """Offset at which a new checkpoint starts."""
        return self.start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Limit the batch size, so that a backlog does not delay an alarm."""
        return ReadMaxFiles(self.max_segments)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end to the current end of the log."""
        self.end = end_offset(list_segments(Path(self.path)))

    def latestOffset(self, start: LogOffset, limit: ReadLimit) -> LogOffset:  # noqa: N802
        """End of the next batch."""
        names, end = self._list()
        waiting = segments_between(names, start, end)
        if isinstance(limit, ReadMaxFiles):
            waiting = waiting[: limit.max_files]
        return advance_offset(start, waiting)

    def partitions(
        self, start: LogOffset, end: LogOffset
    ) -> Sequence[SegmentPartition]:
        """Tasks that read the segments of a batch."""
        folder = Path(self.path)
        names = segments_between(list_segments(folder), start, end)
        size_bytes = sum((folder / str(name)).stat().st_size for name in names)
        return [
            SegmentPartition(tuple(f"{self.path}/{name}" for name in group))
            for group in group_segments(names, size_bytes, self.tasks, BYTES_PER_TASK)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of the segments of a task; runs on an executor."""
        assert isinstance(partition, SegmentPartition)  # noqa: S101 - made by partitions
        for path in partition.paths:
            yield from read_intact_segment(Path(path)).to_batches()

    def _list(self) -> tuple[list[SegmentName], LogOffset]:
        """Segments in the folder, and the offset up to which the list is complete.

        A listing of a growing folder may contain a segment and miss an earlier one. A
        second listing contains everything older than the end of the first.
        """
        folder = Path(self.path)
        end = end_offset(list_segments(folder))
        if self.end is not None:
            last = self.end
            end = {s: min(seq, last[s]) for s, seq in end.items() if s in last}
        return list_segments(folder), end


ColumnBounds = Mapping[str, tuple[int | None, int | None]]
"""First and last value by column, both inclusive; times in microseconds."""

BATCH_ROWS = 65_536


@dataclass
class TablePartition(InputPartition):
    """Files of one task.

    Attributes:
        names: Parquet files within the folder of the table.
    """

    names: tuple[str, ...]


class TableSource(DataSource):
    """Rows of a table, all or between bounds.

    Name:
        ``yamamori_table``

    Options:
        path: Folder or URL of the table.
        table: Its name in schemas.TABLES.
        bounds: `ColumnBounds` as JSON; default: all rows.
        tasks: Maximum number of tasks; default 2.

    Schema:
        schemas.TABLES

    Example:
        ``spark.read.format("yamamori_table").option("path", path)
        .option("table", "levels").load()``
    """

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "yamamori_table"

    def schema(self) -> str:
        """Columns of the table."""
        return format_ddl(TABLES[self.options["table"]])

    def reader(self, schema: StructType) -> "TableSourceReader":
        """A reader for one query."""
        return TableSourceReader(
            self.options["path"],
            self.options["table"],
            json.loads(self.options.get("bounds", "{}")),
            int(self.options.get("tasks", "2")),
        )


class TableSourceReader(DataSourceReader):
    """Distributes the files of a table over tasks, and reads them."""

    def __init__(self, path: str, table: str, bounds: ColumnBounds, tasks: int) -> None:
        self.path = path
        self.table = table
        self.bounds = bounds
        self.tasks = tasks

    def partitions(self) -> Sequence[TablePartition]:
        """Tasks that read the files which may contain a row within the bounds."""
        folder = parse_folder(self.path)
        dataset = open_dataset(open_table(folder), folder)
        rows = bounds_filter(self.bounds, dataset.schema)
        names = [file.path for file in dataset.get_fragments(filter=rows)]
        count = min(self.tasks, len(names))
        return [TablePartition(tuple(names[i::count])) for i in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows within the bounds of the files of a task; runs on an executor."""
        if not isinstance(partition, TablePartition):
            return  # Spark calls it once even without any partition
        schema = TABLES[self.table]
        rows = bounds_filter(self.bounds, schema)
        files = open_files(parse_folder(self.path))
        for name in partition.names:
            # A file of an earlier version lacks columns that were added later.
            file = ds.dataset(name, schema=schema, filesystem=files, format="parquet")
            yield from file.to_batches(filter=rows, batch_size=BATCH_ROWS)


def bounds_filter(bounds: ColumnBounds, schema: pa.Schema) -> ds.Expression:
    """Filter expression of bounds."""
    condition = pc.scalar(True)
    for name, (first, last) in bounds.items():
        kind = schema.field(name).type
        if first is not None:
            condition &= pc.field(name) >= pa.scalar(first, pa.int64()).cast(kind)
        if last is not None:
            condition &= pc.field(name) <= pa.scalar(last, pa.int64()).cast(kind)
    return condition


def read_table_rows(
    session: SparkSession, tables: Folder, table: str, bounds: ColumnBounds
) -> DataFrame:
    """Rows of a table between bounds, by `TableSource`."""
    return (
        session.read
        .format("yamamori_table")
        .option("path", str(tables / table))
        .option("table", table)
        .option("bounds", json.dumps(bounds))
        .load()
    )
