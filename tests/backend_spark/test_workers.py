"""Spark's Python workers in a running session."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_workers_are_forked_from_a_process_with_the_imports(
    spark: SparkSession,
) -> None:
    """A task finds the pipeline imported, and its parent is the module `workers`."""

    def inspect_worker(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os  # noqa: PLC0415 - in the worker
        import sys  # noqa: PLC0415 - likewise

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode()
        is_there = "backend_spark.streaming.pipeline" in sys.modules
        yield pa.RecordBatch.from_pylist([{"parent": parent, "is_there": is_there}])

    found = (
        spark
        .range(1)
        .mapInArrow(inspect_worker, "parent string, is_there boolean")
        .toArrow()
    )
    rows = found.to_pylist()

    assert rows
    assert all("backend_spark.streaming.workers" in row["parent"] for row in rows)
    assert all(row["is_there"] for row in rows)
