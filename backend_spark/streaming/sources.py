"""Spark data sources: the log as a stream, and rows of a Delta table.

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

from backend_spark.ingest.kafka_settings import KafkaSection
from backend_spark.ingest.log import MessageLog, end_of, open_log
from backend_spark.ingest.segment_log import (
    LogOffset,
    SegmentName,
    advance_offset,
)
from backend_spark.tables.reader import open_dataset
from backend_spark.tables.schemas import LOG, TABLES, format_ddl
from backend_spark.tables.store import Folder, open_files, open_table, parse_folder
from service_runtime.decoding import convert


@dataclass
class SegmentPartition(InputPartition):
    """Segments of one task.

    Attributes:
        names: Segments to read.
    """

    names: tuple[SegmentName, ...]


class SegmentLogSource(DataSource):
    """Messages of the log, as received.

    Name:
        ``yamamori_log``

    Options:
        path: Folder of the log.
        kafka: `KafkaSection` as JSON; with servers, the log is there.
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
        kafka = convert(json.loads(self.options.get("kafka", "{}")), KafkaSection)
        return SegmentLogReader(
            open_log(Path(self.options["path"]), kafka),
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
        self,
        log: MessageLog,
        max_segments: int,
        tasks: int,
        start: LogOffset | None = None,
    ) -> None:
        self.log = log
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
        self.end = end_of(self.log)

    def latestOffset(self, start: LogOffset, limit: ReadLimit) -> LogOffset:  # noqa: N802
        """End of the next batch."""
        end = end_of(self.log)
        if self.end is not None:
            last = self.end
            end = {s: min(seq, last[s]) for s, seq in end.items() if s in last}
        max_count = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return advance_offset(start, self.log.between(start, end, max_count))

    def partitions(
        self, start: LogOffset, end: LogOffset
    ) -> Sequence[SegmentPartition]:
        """Tasks that read the segments of a batch."""
        tasks = self.log.split(self.log.between(start, end), self.tasks)
        return [SegmentPartition(tuple(names)) for names in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of the segments of a task; runs on an executor."""
        assert isinstance(partition, SegmentPartition)  # noqa: S101 - made by partitions
        for table in self.log.read(partition.names):
            yield from table.to_batches()


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
