"""Batches and passes share Spark's cores."""

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
from pyspark.sql import SparkSession

from backend_spark.streaming.session import use_scoring_pool

PATIENCE_S = 60.0


def wait_for(file: Path) -> None:
    """Wait until a file exists."""
    ends_s = time.monotonic() + PATIENCE_S
    while not file.exists():
        if time.monotonic() > ends_s:
            raise TimeoutError(file.name)
        time.sleep(0.02)


def run_long_pass(session: SparkSession, folder: Path) -> None:
    """Run a job of four tasks on two cores; the last two wait for a batch."""
    names = ("first", "first", "batch", "batch")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                (folder / f"begun-{number}").touch()
                wait_for(folder / names[number])
            yield batch

    with use_scoring_pool(session):
        session.range(0, 4, 1, 4).mapInArrow(work, "id long").toArrow()


def test_batch_gets_the_next_core_of_a_long_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It does not wait for all tasks of the pass."""
    context = spark.sparkContext
    passing = Thread(target=run_long_pass, args=(spark, tmp_path))
    passing.start()
    for number in (0, 1):
        wait_for(tmp_path / f"begun-{number}")
    rows: list[int] = []
    batch = Thread(
        target=lambda: rows.append(spark.range(0, 3, 1, 1).toArrow().num_rows)
    )
    batch.start()
    ends_s = time.monotonic() + PATIENCE_S
    while len(context.statusTracker().getActiveStageIds()) < 2:
        assert time.monotonic() < ends_s
        time.sleep(0.02)
    (tmp_path / "first").touch()
    batch.join(PATIENCE_S)
    has_run = list(rows)
    (tmp_path / "batch").touch()
    passing.join(PATIENCE_S)

    assert has_run == [3]
    assert not passing.is_alive()
