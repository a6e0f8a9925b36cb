"""Parquet files of a Delta table: written, fsynced, and described for its log."""

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from backend_spark.durability import fsync_file, fsync_folder

STATISTICS = ("cell", "at", "received_at", "batch_id")
"""Columns whose range goes into the log, so that readers skip files."""

CLUSTERED = ("cell", "at")
"""Order of rows in a file, so that a reader of some cells skips groups of rows."""

GROUP_ROWS = 16_384
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
    return write_groups(folder, [rows], schema)


def write_groups(folder: Path, groups: Iterable[pa.Table], schema: pa.Schema) -> Part:
    """Write groups of rows, of the schema, to one fsynced file as they come."""
    file = folder / f"part-{uuid.uuid4()}.parquet"
    told = []
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in groups:
            writer.write_table(rows, row_group_size=GROUP_ROWS)
            told.append(_ranges(rows))
    fsync_file(file)
    fsync_folder(folder)
    status = file.stat()
    modified_ms = status.st_mtime_ns // 1_000_000
    return Part(file.name, status.st_size, modified_ms, _joined(told))


def statistics(rows: pa.Table) -> str:
    """Delta's statistics of a file: the row count, and the ranges of some columns."""
    return _joined([_ranges(rows)])


def _ranges(rows: pa.Table) -> dict[str, Any]:
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
    return {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _joined(told: Sequence[dict[str, Any]]) -> str:
    """Statistics of groups of rows together."""
    whole: dict[str, Any] = {"numRecords": sum(each["numRecords"] for each in told)}
    ways: dict[str, Callable[[list[Any]], Any]] = {
        "minValues": min,
        "maxValues": max,
        "nullCount": sum,
    }
    for kind, way in ways.items():
        values: dict[str, list[Any]] = {}
        for each in told:
            for name, value in each[kind].items():
                values.setdefault(name, []).append(value)
        whole[kind] = {name: way(found) for name, found in values.items()}
    return json.dumps(whole)


def _shown(value: str | int | datetime, add: timedelta) -> str | int:
    if isinstance(value, str | int):
        return value
    shown = (value + add).astimezone(UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
