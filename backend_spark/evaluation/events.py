"""Landslides of an evaluation: times, counts, repeated and unusable lines."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from backend_spark.errors import RainTableError
from backend_spark.evaluation.inputs import read_cells
from backend_spark.evaluation.times import (
    DAY,
    DateOrder,
    TimeCell,
    WrittenTime,
    local_time,
    parse_times,
)
from backend_spark.rain_table import RainText
from slope_science.skill import Slide

TIME_COLUMNS = ("time", "date")
_COUNT = re.compile(r"0*[1-9][0-9]{0,5}")


@dataclass(frozen=True)
class LandslideTable:
    """Landslides in the order of their table.

    Attributes:
        source: Name of the file.
        slides: Each line's landslides, in the local time of the rain.
        lines: Number of the line of each.
        repeats: Of each line that repeats a time: its number, and the first one's.
        unusable: Lines without a usable day, with the reason; they are not counted.
    """

    source: str
    slides: Sequence[Slide]
    lines: Sequence[int]
    repeats: Sequence[tuple[int, int]] = ()
    unusable: Sequence[tuple[int, str]] = field(default_factory=tuple)


def read_slides(
    source: RainText, zone: timezone | None = None, order: DateOrder | None = None
) -> LandslideTable:
    """Landslides of a CSV, or of lines with a date each.

    Shape:
        time or date: a date, or a date and time; local, as in the table of rain.
        count: how many landslides; 1 when the column is not there.

    Args:
        source: The table.
        zone: Offset of the rain's times; times with another are converted.
        order: Order of dates such as 03/04/2010.

    Raises:
        RainTableError: A time or a count is wrong, or there is none.
    """
    first = source.text.lstrip().split("\n", 1)[0]
    names = [name.strip() for name in first.split(",")]
    column = next((name for name in TIME_COLUMNS if name in names), None)
    added = 0
    if column is None:
        if first and not any(map(str.isdigit, first)):
            problem = f"line 1: needs a column time or date, got {first.strip()!r}"
            raise RainTableError(source.name, problem)
        column, added = "time", 1
        source = RainText(source.name, f"time\n{source.text}")
    wanted = (column, "count") if "count" in names else (column,)
    rows = [(line - added, cells) for line, cells in read_cells(source, wanted)]
    times = parse_times(
        [TimeCell(source.name, line, column, cells[0]) for line, cells in rows], order
    )
    counts = [
        parse_count(source.name, f"line {line}: count", cells[1]) if cells[1:] else 1
        for line, cells in rows
    ]
    return make_landslides(source.name, times, counts, zone)


def make_landslides(
    name: str,
    times: Sequence[WrittenTime],
    counts: Sequence[int],
    zone: timezone | None = None,
    unusable: Sequence[tuple[int, str]] = (),
) -> LandslideTable:
    """Landslides of the rows of a table.

    Raises:
        RainTableError: There is none, or a time has an offset and the rain has none.
    """
    if not times:
        raise RainTableError(name, "must name one landslide or more, has none")
    slides, lines, repeats = [], [], []
    seen: dict[tuple[datetime, bool], int] = {}
    for time, count in zip(times, counts, strict=True):
        low = local_time(time, zone)
        high = low + time.is_day * DAY
        first = seen.setdefault((low, time.is_day), time.cell.line)
        if first != time.cell.line:
            repeats.append((time.cell.line, first))
        slides.append(Slide(low.timestamp(), high.timestamp(), count))
        lines.append(time.cell.line)
    return LandslideTable(name, slides, lines, repeats, unusable)


def parse_count(name: str, field_name: str, text: str) -> int:
    """Parse a number of landslides.

    Raises:
        RainTableError: It is no whole number from 1 to 999,999.
    """
    if _COUNT.fullmatch(text):
        return int(text)
    problem = f"{field_name} must be a whole number from 1, got {text!r}"
    raise RainTableError(name, problem)
