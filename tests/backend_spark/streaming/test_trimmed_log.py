"""The log is trimmed up to Spark's checkpoint, and the query continues."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from backend_spark.ingest.deduplication import archived_ids_path
from backend_spark.ingest.retention import (
    LogLimits,
    SegmentRetention,
    read_committed_offsets,
)
from backend_spark.ingest.segment_log import (
    LogRow,
    SegmentLog,
    SegmentWriter,
    list_segments,
)
from backend_spark.streaming.sources import SegmentLogSource

pytestmark = [pytest.mark.spark, pytest.mark.long]
STREAM = "ingest-0.00"


def read_all(
    spark: SparkSession, folder: Path, meanwhile: Callable[[], object] = list
) -> set[int]:
    """Run the query once; return the sequence numbers that it read."""
    got: set[int] = set()

    def run_batch(rows: DataFrame, _batch_id: int) -> None:
        got.update(row.seq for row in rows.collect())
        meanwhile()

    query = (
        spark.readStream
        .format("yamamori_log")
        .option("path", str(folder / "log"))
        .load()
        .writeStream.option("checkpointLocation", str(folder / "checkpoints" / "score"))
        .foreachBatch(run_batch)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return got


def test_query_continues_after_the_log_is_trimmed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Only committed segments are removed, and none is read twice."""
    spark.dataSource.register(SegmentLogSource)
    log, checkpoints = tmp_path / "log", tmp_path / "checkpoints"
    past = archived_ids_path(log, "ingest-0")
    nothing = LogLimits(0, 0, 0)
    retention = SegmentRetention(
        log, "ingest-0", nothing, lambda: read_committed_offsets(checkpoints), past
    )
    writer = SegmentWriter(log, STREAM)

    def write(*seqs: int) -> None:
        for seq in seqs:
            writer.append([LogRow(1_800_000_000, "/4/1", b"", "n", "b", seq, 1)])

    write(0, 1, 2)
    assert retention.trim(2e9).removed == 0
    assert read_all(spark, tmp_path) == {0, 1, 2}
    write(3, 4)
    assert read_committed_offsets(checkpoints) == {STREAM: 2}
    assert retention.trim(2e9).removed == 3
    assert [name.seq for name in list_segments(log)] == [3, 4]
    assert read_all(spark, tmp_path) == {3, 4}
    assert retention.trim(2e9).removed == 2
    write(5)
    assert read_all(spark, tmp_path) == {5}


def test_unscored_messages_after_a_run_arrived_during_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Their number is exact; without new messages the next run leaves none."""
    spark.dataSource.register(SegmentLogSource)
    log, checkpoints = tmp_path / "log", tmp_path / "checkpoints"
    writer = SegmentWriter(log, STREAM)

    def write(count: int) -> None:
        for _ in range(count):
            seq = writer.next_seq
            writer.append([LogRow(1_800_000_000, "/4/1", b"", "n", "b", seq, 5)])

    def left() -> int:
        return SegmentLog(log).count(read_committed_offsets(checkpoints))

    write(40)
    before = left()
    read_all(spark, tmp_path, meanwhile=lambda: write(25))
    after = left()
    read_all(spark, tmp_path)

    assert (before, after, left()) == (40, 25, 0)
