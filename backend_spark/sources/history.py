"""The readings of some cells out of silver: ``format("yamamori_history")``.

Only files whose statistics admit one of the cells are opened, by the executors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from backend_spark.schemas import SILVER, conform, ddl
from backend_spark.transforms.levels import HISTORY_COLUMNS

HISTORY = pa.schema([SILVER.field(name) for name in HISTORY_COLUMNS])


@dataclass
class HistoryFiles(InputPartition):
    """Files for one task.

    Attributes:
        paths: Parquet files of silver.
    """

    paths: tuple[str, ...]


class CellHistory(DataSource):
    """Readings of some cells since some time.

    Name:
        ``yamamori_history``

    Options:
        path: Folder of the silver table.
        cells: Tokens of the cells, with commas between.
        since_us: Unix time of the earliest reading wanted, in microseconds.
        until_us: Unix time, in microseconds: nothing received later; empty: no bound.
        tasks: Most tasks; 2 by default.

    Schema:
        sources.history.HISTORY
    """

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "yamamori_history"

    def schema(self) -> str:
        """Columns that scoring needs."""
        return ddl(HISTORY)

    def reader(self, schema: StructType) -> "CellHistoryReader":
        """A reader for one query."""
        return CellHistoryReader(
            self.options["path"],
            frozenset(self.options["cells"].split(",")),
            int(self.options["since_us"]),
            int(self.options["until_us"]) if self.options.get("until_us") else None,
            int(self.options.get("tasks", "2")),
        )


class CellHistoryReader(DataSourceReader):
    """Chooses files by their statistics and rows by their columns."""

    def __init__(
        self,
        path: str,
        cells: frozenset[str],
        since_us: int,
        until_us: int | None = None,
        tasks: int = 2,
    ) -> None:
        self.path = path
        self.cells = cells
        self.since_us = since_us
        self.until_us = until_us
        self.tasks = tasks

    def partitions(self) -> Sequence[HistoryFiles]:
        """Tasks that together read every file that may hold a wanted row."""
        paths = self._files()
        count = min(self.tasks, len(paths))
        return [HistoryFiles(tuple(paths[i::count])) for i in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Wanted rows of some files; runs on the executors."""
        assert isinstance(partition, HistoryFiles)  # noqa: S101 - ours, from partitions
        for path in partition.paths:
            file = pq.ParquetFile(path)
            there = [name for name in HISTORY.names if name in file.schema_arrow.names]
            for group in range(file.num_row_groups):
                low, high = _cells_of(file.metadata.row_group(group))
                if self._may_hold(low, high, None):
                    rows = file.read_row_group(group, columns=there)
                    yield from self._wanted(rows).to_batches()

    def _wanted(self, rows: pa.Table) -> pa.Table:
        """Wanted rows in our types."""
        rows = conform(rows, HISTORY)
        since = pa.scalar(self.since_us, pa.int64()).cast(HISTORY.field("at").type)
        wanted = pc.is_in(rows["cell"], pa.array(sorted(self.cells)))
        wanted = pc.and_(wanted, pc.greater_equal(rows["at"], since))
        if self.until_us is not None:
            until = pa.scalar(self.until_us, pa.int64()).cast(since.type)
            received = pc.less_equal(rows["received_at"], until)
            wanted = pc.and_(wanted, received)
        return rows.filter(wanted)

    def _files(self) -> list[str]:
        adds = pa.table(DeltaTable(self.path).get_add_actions(flatten=True))
        low, high = (_column(adds, f"{side}.cell") for side in ("min", "max"))
        newest = _column(adds, "max.at")
        return [
            str(Path(self.path) / path)
            for path, least, most, last in zip(
                adds["path"].to_pylist(), low, high, newest, strict=True
            )
            if self._may_hold(least, most, last)
        ]

    def _may_hold(
        self, least: str | None, most: str | None, last_us: int | None
    ) -> bool:
        """Whether a file may hold a wanted row; without statistics any may."""
        if last_us is not None and last_us < self.since_us:
            return False
        if least is None or most is None:
            return True
        return any(least <= cell <= most for cell in self.cells)


def _column(adds: pa.Table, name: str) -> list[Any]:
    if name not in adds.column_names:
        return [None] * adds.num_rows
    column = adds[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return list(column.to_pylist())


def _cells_of(group: pq.RowGroupMetaData) -> tuple[str | None, str | None]:
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "cell":
            told = column.statistics
            return (told.min, told.max) if told and told.has_min_max else (None, None)
    return None, None
