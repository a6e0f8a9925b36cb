"""The job's reader of a table, where no file can hold a wanted row."""

from pathlib import Path

from pyspark.sql.datasource import InputPartition

from backend_spark.streaming.sources import TableSourceReader
from backend_spark.tables.delta_writer import create_tables


def test_spark_that_asks_without_a_file_gets_no_row(tmp_path: Path) -> None:
    """It makes a partition of its own when there is none."""
    create_tables(tmp_path, ["bronze"])
    reader = TableSourceReader(
        str(tmp_path / "bronze"), "bronze", {"batch_id": (1, 2)}, 2
    )

    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []
