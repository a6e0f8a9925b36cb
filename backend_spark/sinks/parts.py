"""Parquet files of a Delta table: written, fsynced, and described for its log."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from backend_spark.durability import fsync_file, fsync_folder

STATISTICS = ("cell", "at", "received_at", "batch_id")
"""Columns whose range goes into the log, so that readers skip files."""

CLUSTERED = ("cell", "at")
"""Order of rows in a file, so that a reader of some cells skips groups of rows."""

GROUP_ROWS = 65_536
"""Rows that a reader of one cell reads at least."""


@dataclass(frozen=True)
class Part:
    """One file on disk, of no table until it is committed.

    Attributes:
        file: Name within the table's folder.
        size_bytes: Its size.
        modified_ms: Unix time of its writing.
        statistics: Delta's JSON of row count and ranges.
    """

    file: str
    size_bytes: int
    modified_ms: int
    statistics: str

    def action(self, *, changes_data: bool = True) -> AddAction:
        """For the commit that makes it a part of the table."""
        return AddAction(
            self.file,
            self.size_bytes,
            {},
            self.modified_ms,
            changes_data,
            self.statistics,
        )


def write_part(folder: Path, rows: pa.Table, schema: pa.Schema) -> Part:
    """Write rows to one fsynced file, under a name that no other has."""
    rows = rows.select(schema.names).cast(schema)
    if {*CLUSTERED} <= set(schema.names):
        rows = rows.sort_by([(name, "ascending") for name in CLUSTERED])
    file = folder / f"part-{uuid.uuid4()}.parquet"
    pq.write_table(rows, file, compression="zstd", row_group_size=GROUP_ROWS)
    fsync_file(file)
    fsync_folder(folder)
    status = file.stat()
    modified_ms = status.st_mtime_ns // 1_000_000
    return Part(file.name, status.st_size, modified_ms, statistics(rows))


def statistics(rows: pa.Table) -> str:
    """Delta's statistics of a file: the row count, and the ranges of some columns."""
    low: dict[str, str | int] = {}
    high: dict[str, str | int] = {}
    nulls: dict[str, int] = {}
    for name in set(STATISTICS) & set(rows.column_names):
        nulls[name] = rows[name].null_count
        ends = pc.min_max(rows[name]).as_py()
        if ends["min"] is not None:
            low[name] = _shown(ends["min"], timedelta(0))
            # Times are kept in milliseconds: the upper end is rounded up.
            high[name] = _shown(ends["max"], timedelta(microseconds=999))
    return json.dumps({
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    })


def _shown(value: str | int | datetime, add: timedelta) -> str | int:
    if isinstance(value, str | int):
        return value
    shown = (value + add).astimezone(UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
