"""The Spark source of a table when no file can hold a requested row."""

from pathlib import Path

from pyspark.sql.datasource import InputPartition

from backend_spark.streaming.sources import TableSourceReader
from backend_spark.tables.delta_writer import create_tables


def test_partition_without_a_file_gives_no_rows(tmp_path: Path) -> None:
    """Spark creates such a partition if the reader returns none."""
    create_tables(tmp_path, ["bronze"])
    reader = TableSourceReader(
        str(tmp_path / "bronze"), "bronze", {"batch_id": (1, 2)}, 2
    )

    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []
