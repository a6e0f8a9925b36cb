"""Rows of some cells out of a table, wherever batches and compactions left them.

Only files, and groups of rows in them, are opened whose statistics admit one of the
cells. The driver chooses the files, and whoever scores the cells reads them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from backend_spark.schemas import SILVER, UTC_TIME, conform
from backend_spark.transforms.levels import HISTORY_COLUMNS

HISTORY = pa.schema([SILVER.field(name) for name in HISTORY_COLUMNS])
PLACE = (pa.field("file", pa.string()), pa.field("row", pa.int64()))
"""Where a row is: its file within the table's folder, and its number there."""


@dataclass(frozen=True)
class CellRows:
    """Rows of some cells since some time.

    Attributes:
        path: Folder of the table.
        schema: Columns wanted; ``cell`` and ``at`` among them.
        cells: Tokens of the cells, ascending.
        since_us: Unix time of the earliest row wanted, in microseconds.
    """

    path: str
    schema: pa.Schema
    cells: Sequence[str]
    since_us: int

    def files(self) -> list[str]:
        """Files that may hold a wanted row, within the table's folder."""
        adds = pa.table(DeltaTable(self.path).get_add_actions(flatten=True))
        low, high = (_column(adds, f"{side}.cell") for side in ("min", "max"))
        return [
            path
            for path, least, most, last_us in zip(
                adds["path"].to_pylist(),
                low,
                high,
                _column(adds, "max.at"),
                strict=True,
            )
            if (last_us is None or last_us >= self.since_us)
            and self._may_hold(least, most)
        ]

    def read(self, files: Sequence[str]) -> pa.Table:
        """Wanted rows of such files, each with its place (`PLACE`)."""
        schema = pa.schema([*self.schema, *PLACE])
        tables = [rows for file in files for rows in self._of(file)]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _of(self, file: str) -> Iterator[pa.Table]:
        with pq.ParquetFile(Path(self.path) / file) as parquet:
            there = set(parquet.schema_arrow.names)
            columns = [name for name in self.schema.names if name in there]
            first = 0
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                if self._may_hold(*_cells_of(group)):
                    rows = parquet.read_row_group(number, columns=columns)
                    yield self._wanted(rows, file, first)
                first += group.num_rows

    def _wanted(self, rows: pa.Table, file: str, first: int) -> pa.Table:
        rows = conform(rows, self.schema)
        numbers = pa.array(np.arange(first, first + rows.num_rows))
        rows = rows.append_column(PLACE[0], pa.repeat(file, rows.num_rows))
        rows = rows.append_column(PLACE[1], numbers)
        since = pa.scalar(self.since_us, pa.int64()).cast(UTC_TIME)
        wanted = pc.is_in(rows["cell"], pa.array(self.cells, pa.string()))
        return rows.filter(pc.and_(wanted, pc.greater_equal(rows["at"], since)))

    def _may_hold(self, least: str | None, most: str | None) -> bool:
        """Whether a cell lies in a range; without statistics any may."""
        if least is None or most is None:
            return True
        at = bisect_left(self.cells, least)
        return at < len(self.cells) and self.cells[at] <= most


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
