"""Rows of one of our Delta tables in Spark: ``format("yamamori_table")``.

Spark without jars knows no Delta. Files whose statistics rule a row out are not
opened; what is left is read by the executors.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backend_spark.fragments import dataset_of
from backend_spark.schemas import TABLES, ddl

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
