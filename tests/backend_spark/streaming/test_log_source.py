"""The stream reader on real segments, called as Spark calls it."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from backend_spark.ingest.segment_log import LogRow, SegmentLog, SegmentWriter
from backend_spark.streaming.sources import SegmentLogReader
from backend_spark.tables.schemas import LOG


def row(seq: int) -> LogRow:
    """A message."""
    return LogRow(1_700_000_000_000_000, "/4/1", b"x", "n", "b", seq, 1)


def seqs(
    reader: SegmentLogReader, start: dict[str, int], end: dict[str, int]
) -> list[int]:
    """Sequence numbers that a batch reads."""
    batches = [
        batch
        for partition in reader.partitions(start=start, end=end)
        for batch in reader.read(partition)
    ]
    table = pa.Table.from_batches(batches, schema=LOG)
    return sorted(table["seq"].to_pylist())


def test_capped_batches_read_the_whole_log(tmp_path: Path) -> None:
    """At the end of the log the offset stays."""
    writer = SegmentWriter(tmp_path, "a.01")
    for seq in range(5):
        writer.append([row(seq)])
    reader = SegmentLogReader(SegmentLog(tmp_path), max_segments=2, tasks=2)
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxFiles)
    offset, read = reader.initialOffset(), []
    for _ in range(4):
        end = reader.latestOffset(start=offset, limit=limit)
        read.append(seqs(reader, offset, end))
        offset = end

    assert read == [[0, 1], [2, 3], [4], []]
    assert offset == {"a.01": 4}


def test_offset_does_not_decrease_when_files_are_removed(tmp_path: Path) -> None:
    """For example in a trimmed log."""
    reader = SegmentLogReader(SegmentLog(tmp_path / "nowhere"), 2, 2)

    assert reader.latestOffset({"a.01": 7}, ReadAllAvailable()) == {"a.01": 7}


def test_available_now_ends_at_the_end_of_the_log_at_start(tmp_path: Path) -> None:
    """Later segments and runs are left for the next query."""
    writer = SegmentWriter(tmp_path, "a.01")
    writer.append([row(0)])
    reader = SegmentLogReader(SegmentLog(tmp_path), 100, 2)
    reader.prepareForTriggerAvailableNow()
    writer.append([row(1)])
    SegmentWriter(tmp_path, "a.02").append([row(2)])

    assert reader.latestOffset({}, ReadAllAvailable()) == {"a.01": 0}


def test_rows_have_the_schema_that_spark_requires(tmp_path: Path) -> None:
    """Spark refuses a batch whose Arrow types differ in any detail."""
    SegmentWriter(tmp_path, "a.01").append([row(0)])
    reader = SegmentLogReader(SegmentLog(tmp_path), 100, 2)
    (partition,) = reader.partitions({}, {"a.01": 0})
    (batch,) = list(reader.read(partition))

    assert batch.schema == LOG
    assert batch.schema.field("received_at").type == pa.timestamp("us", tz="UTC")
