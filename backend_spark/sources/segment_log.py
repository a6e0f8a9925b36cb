"""The segment log as a Spark stream: ``format("yamamori_log")``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from backend_spark.ingest.log import SegmentName, list_segments, read_segment
from backend_spark.schemas import LOG, ddl
from backend_spark.sources.offsets import Offset, advance, between, groups, newest

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
