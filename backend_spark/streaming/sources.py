"""The segment log as a Spark stream: ``format("yamamori_log")``.

How far a reader of the log has come: pure arithmetic on names of segments.

An offset is ``{stream: sequence of its last segment}``. Spark compares offsets as
JSON text, so keys are sorted; it accepts one that goes backwards in silence, so
every step is clamped.

Rows of one of our Delta tables in Spark: ``format("yamamori_table")``.

Spark without jars knows no Delta. Files whose statistics rule a row out are not
opened; what is left is read by the executors.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
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

from backend_spark.ingest.segment_log import SegmentName, list_segments, read_segment
from backend_spark.tables.reader import dataset_of
from backend_spark.tables.schemas import LOG, TABLES, ddl

Offset = dict[str, int]


def newest(names: Iterable[SegmentName]) -> Offset:
    """The offset at which all these segments are read."""
    offset: Offset = {}
    for name in names:
        offset[name.stream] = max(name.seq, offset.get(name.stream, name.seq))
    return dict(sorted(offset.items()))


def between(
    names: Iterable[SegmentName], start: Offset, end: Offset
) -> list[SegmentName]:
    """Segments after one offset up to another, streams taking turns.

    Taking turns keeps one ingester's backlog from holding up another's alarm.
    """
    streams: dict[str, list[SegmentName]] = {}
    for name in sorted(names):
        if start.get(name.stream, -1) < name.seq <= end.get(name.stream, -1):
            streams.setdefault(name.stream, []).append(name)
    rounds = zip_longest(*streams.values())
    return [name for turn in rounds for name in turn if name is not None]


def advance(start: Offset, read: Iterable[SegmentName]) -> Offset:
    """The offset after some more segments; never behind the start."""
    reached = newest(read)
    streams = sorted(start.keys() | reached.keys())
    return {s: max(start.get(s, -1), reached.get(s, -1)) for s in streams}


def groups(
    names: Sequence[SegmentName], size_bytes: int, at_most: int, fewest_bytes: int
) -> list[list[SegmentName]]:
    """Share segments out to tasks.

    Args:
        names: Segments to read.
        size_bytes: Of all of them.
        at_most: Most tasks.
        fewest_bytes: A task is not worth starting for fewer bytes than this.
    """
    worth = max(1, size_bytes // fewest_bytes)
    count = min(at_most, len(names), worth)
    return [list(names[i::count]) for i in range(count)]


BYTES_PER_TASK = 256 * 1024
"""A thousand messages: a tenth of a second's work."""


@dataclass
class SegmentFiles(InputPartition):
    """Segments for one task.

    Attributes:
        paths: Files to read.
    """

    paths: tuple[str, ...]


class SegmentLog(DataSource):
    """The messages of a segment log, as received.

    Name:
        ``yamamori_log``

    Options:
        path: Folder of the log.
        max_segments: Most segments in one batch; 200 by default.
        tasks: Most tasks per batch; 2 by default.

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
        return ddl(LOG)

    # Spark passes this argument by its name.
    def streamReader(self, schema: StructType) -> "SegmentLogReader":  # noqa: N802
        """A reader for one query."""
        return SegmentLogReader(
            self.options["path"],
            int(self.options.get("max_segments", "200")),
            int(self.options.get("tasks", "2")),
        )


class SegmentLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads batches of segments; deletes nothing.

    Spark tells of a finished batch only when it plans the next one, so the life
    of a segment cannot hang on `commit`.
    """

    def __init__(self, path: str, max_segments: int, tasks: int) -> None:
        self.path = path
        self.max_segments = max_segments
        self.tasks = tasks
        self.last: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before everything."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A batch is capped, so that a backlog does not hold up an alarm."""
        return ReadMaxFiles(self.max_segments)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at what is in the log now."""
        self.last = newest(list_segments(Path(self.path)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Where the next batch ends."""
        names, end = self._settled()
        waiting = between(names, start, end)
        if isinstance(limit, ReadMaxFiles):
            waiting = waiting[: limit.max_files]
        return advance(start, waiting)

    def partitions(self, start: Offset, end: Offset) -> Sequence[SegmentFiles]:
        """Tasks that together read the segments of a batch."""
        folder = Path(self.path)
        names = between(list_segments(folder), start, end)
        size_bytes = sum((folder / str(name)).stat().st_size for name in names)
        return [
            SegmentFiles(tuple(f"{self.path}/{name}" for name in group))
            for group in groups(names, size_bytes, self.tasks, BYTES_PER_TASK)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of some segments; runs on the executors."""
        assert isinstance(partition, SegmentFiles)  # noqa: S101 - ours, from partitions
        for path in partition.paths:
            yield from read_segment(Path(path)).to_batches()

    def _settled(self) -> tuple[list[SegmentName], Offset]:
        """Segments that exist, and the offset up to which none can be missing.

        A folder that grows while it is listed may show a segment and not the one
        before it. Whatever is older than anything in a first listing is surely
        in a second one.
        """
        folder = Path(self.path)
        seen = newest(list_segments(folder))
        if self.last is not None:
            last = self.last
            seen = {s: min(seq, last[s]) for s, seq in seen.items() if s in last}
        return list_segments(folder), seen


Bounds = Mapping[str, tuple[int | None, int | None]]
"""First and last wanted value by column, both included; times in microseconds."""

BATCH_ROWS = 65_536


@dataclass
class TableFiles(InputPartition):
    """Files for one task.

    Attributes:
        paths: Parquet files of the table.
    """

    paths: tuple[str, ...]


class TableRows(DataSource):
    """Rows of a table, whole or between bounds.

    Name:
        ``yamamori_table``

    Options:
        path: Folder of the table.
        table: Its name in schemas.TABLES.
        bounds: See `Bounds`, as JSON; everything by default.
        tasks: Most tasks; 2 by default.

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
        return ddl(TABLES[self.options["table"]])

    def reader(self, schema: StructType) -> "TableReader":
        """A reader for one query."""
        return TableReader(
            self.options["path"],
            self.options["table"],
            json.loads(self.options.get("bounds", "{}")),
            int(self.options.get("tasks", "2")),
        )


class TableReader(DataSourceReader):
    """Shares the files of a table out to tasks."""

    def __init__(self, path: str, table: str, bounds: Bounds, tasks: int) -> None:
        self.path = path
        self.table = table
        self.bounds = bounds
        self.tasks = tasks

    def partitions(self) -> Sequence[TableFiles]:
        """Tasks that together read every file that may hold a wanted row."""
        dataset = dataset_of(DeltaTable(self.path), str(Path(self.path).absolute()))
        wanted = wanted_rows(self.bounds, dataset.schema)
        paths = [
            f"{self.path}/{Path(fragment.path).name}"
            for fragment in dataset.get_fragments(filter=wanted)
        ]
        count = min(self.tasks, len(paths))
        return [TableFiles(tuple(paths[i::count])) for i in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Wanted rows of some files; runs on the executors."""
        if not isinstance(partition, TableFiles):
            return  # Spark asks once even where no file is left
        schema = TABLES[self.table]
        for path in partition.paths:
            # A file of an earlier version lacks the columns that came later.
            file = ds.dataset(path, schema=schema)
            wanted = wanted_rows(self.bounds, schema)
            yield from file.to_batches(filter=wanted, batch_size=BATCH_ROWS)


def wanted_rows(bounds: Bounds, schema: pa.Schema) -> ds.Expression:
    """Bounds as a filter."""
    wanted = pc.scalar(True)
    for name, (first, last) in bounds.items():
        kind = schema.field(name).type
        if first is not None:
            wanted &= pc.field(name) >= pa.scalar(first, pa.int64()).cast(kind)
        if last is not None:
            wanted &= pc.field(name) <= pa.scalar(last, pa.int64()).cast(kind)
    return wanted


def table_rows(
    session: SparkSession, tables: Path, table: str, bounds: Bounds
) -> DataFrame:
    """Rows of a table between bounds; see `TableRows`."""
    return (
        session.read
        .format("yamamori_table")
        .option("path", str(tables / table))
        .option("table", table)
        .option("bounds", json.dumps(bounds))
        .load()
    )
