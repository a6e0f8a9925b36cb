"""Tables of readings for tests, as CSV."""

from collections.abc import Iterable
from datetime import UTC, datetime

HEADER = "time,node,sensor,quantity,value,unit,latitude,longitude"
PLACE = "33.5588,133.5312"
START_S = 1_767_193_200.0
"""A full hour."""

Row = tuple[float, str, str, str, float | str, str]
"""Seconds since the start, node, sensor, quantity, value and unit."""


def time_text(after_s: float) -> str:
    """A time after the start."""
    return datetime.fromtimestamp(START_S + after_s, UTC).isoformat()


def table_text(rows: Iterable[Row]) -> str:
    """A table whose readings are received at once."""
    return "\n".join([HEADER, *(line(row) for row in rows)]) + "\n"


def line(row: Row) -> str:
    """One row as CSV."""
    after_s, node, sensor, quantity, value, unit = row
    return f"{time_text(after_s)},{node},{sensor},{quantity},{value},{unit},{PLACE}"


def rain_rows(
    depths_mm: Iterable[float], every_s: float = 600.0, node: str = "n1"
) -> list[Row]:
    """Reports of a gauge."""
    return [
        (at * every_s, node, "rain", "rain", round(mm, 4), "mm")
        for at, mm in enumerate(depths_mm)
    ]
