"""Tables as files that other programs read: CSV and Parquet."""

import base64
import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backend_spark.schemas import TABLES
from backend_spark.tables import Tables

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would run a text that begins so, and a node's name may."""


def batches(
    tables: Tables, name: str, begin: datetime | None, end: datetime | None
) -> Iterator[pa.RecordBatch]:
    """Rows of a table by their time, a batch at a time.

    Args:
        tables: Where it is.
        name: Of the table.
        begin: First moment, with its zone; None is the first there is.
        end: The moment after the last.
    """
    time = pc.field(time_column(name))
    wanted = None
    if begin is not None:
        wanted = time >= begin
    if end is not None:
        wanted = time < end if wanted is None else wanted & (time < end)
    columns = TABLES[name].names
    yield from tables.dataset(name).to_batches(columns=columns, filter=wanted)


def time_column(name: str) -> str:
    """The column a table is cut by."""
    return "at" if "at" in TABLES[name].names else "received_at"


def write_csv(name: str, rows: Iterable[pa.RecordBatch], out: TextIO) -> int:
    """Write a table with a header; the number of rows.

    Times are ISO 8601 in UTC, lists are joined by "; ", bytes are base64, and
    nothing stands for null.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(TABLES[name].names)
    count = 0
    for batch in rows:
        for row in batch.to_pylist():
            writer.writerow([_cell(value) for value in row.values()])
        count += batch.num_rows
    return count


def write_parquet(name: str, rows: Iterable[pa.RecordBatch], path: Path) -> int:
    """Write a table to one file, whole or not at all; the number of rows."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    count = 0
    try:
        with pq.ParquetWriter(unfinished, TABLES[name], compression="zstd") as writer:
            for batch in rows:
                writer.write_table(pa.Table.from_batches([batch]).cast(TABLES[name]))
                count += batch.num_rows
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _cell(value: Any) -> str | int | float | bool | None:  # noqa: ANN401 - any column
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULAS) else value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list):
        return _cell("; ".join(map(str, value)))
    return value  # type: ignore[no-any-return]
