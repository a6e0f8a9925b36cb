"""Statistics of the files of Delta tables, by which readers skip files."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_STATISTICS_CHARS: Final = 32
"""Longest text in statistics."""


def statistics_of(rows: pa.Table) -> dict[str, Any]:
    """Statistics of all columns with values that have an order.

    Other readers must be able to filter by any of them: delta-rs (1.6.6) skips every
    file that has no statistics of the column (no level of 4 or more).
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.column_names:
        column = rows[name]
        nulls[name] = column.null_count
        if not _has_order(column.type):
            continue
        ends = pc.min_max(column).as_py()
        if ends["min"] is not None:
            low[name], high[name] = _lower_end(ends["min"]), _upper_end(ends["max"])
    return {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _has_order(kind: pa.DataType) -> bool:
    is_any_of = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_timestamp,
    )
    return any(is_one(kind) for is_one in is_any_of)


def _lower_end(value: object) -> object:
    """Lower end in JSON: at most the value."""
    if isinstance(value, datetime):
        return _format_time(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else -sys.float_info.max
    return value[:_STATISTICS_CHARS] if isinstance(value, str) else value


def _upper_end(value: object) -> object:
    """Upper end in JSON: at least the value."""
    if isinstance(value, datetime):
        # Times have milliseconds in the log.
        return _format_time(value + timedelta(microseconds=999))
    if isinstance(value, float):
        return value if math.isfinite(value) else sys.float_info.max
    if isinstance(value, str) and len(value) > _STATISTICS_CHARS:
        return value[:_STATISTICS_CHARS] + chr(sys.maxunicode)
    return value


def _format_time(value: datetime) -> str:
    text = value.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def merge_statistics(groups: Sequence[dict[str, Any]]) -> str:
    """Statistics of all row groups of a file, as Delta's JSON."""
    merged: dict[str, Any] = {"numRecords": sum(each["numRecords"] for each in groups)}
    aggregates: dict[str, Callable[[list[Any]], Any]] = {
        "minValues": min,
        "maxValues": max,
        "nullCount": sum,
    }
    for kind, aggregate in aggregates.items():
        values: dict[str, list[Any]] = {}
        for each in groups:
            for name, value in each[kind].items():
                values.setdefault(name, []).append(value)
        merged[kind] = {name: aggregate(each) for name, each in values.items()}
    return json.dumps(merged)
