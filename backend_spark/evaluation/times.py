"""Times as tables write them: forms of dates, whole days, offsets from UTC.

A date alone is the whole day. 03/04/2010 has two meanings: one date of the same table
with a number above 12 decides for all of them; without any, the order must be given.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum
from typing import Final

from backend_spark.errors import RainTableError

DAY: Final = timedelta(days=1)
MONTHS_IN_A_YEAR: Final = 12

YEARS: Final = range(1700, 2300)
"""Years of records of rain; others are errors of typing."""

_SLASHED: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[ T]+(.+))?")
_YEAR_FIRST: Final = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:[ T]+(.+))?")
_ZONE: Final = re.compile(r"([+-])(\d{2}):?(\d{2})")
_FORMS: Final = "2026-07-01, 2026-07-01 13:00 or 2026/7/1"


class DateOrder(StrEnum):
    """Order of a date that is written with slashes and ends with the year."""

    MONTH_FIRST = "month-first"
    DAY_FIRST = "day-first"


@dataclass(frozen=True)
class TimeCell:
    """A cell with a time, and its place for errors.

    Attributes:
        source: Name of the file.
        line: Number of the line.
        column: Name of the column.
        text: As written.
    """

    source: str
    line: int
    column: str
    text: str

    def error(self, problem: str) -> RainTableError:
        """The error of a rule that the cell breaks."""
        return RainTableError(
            self.source, f"line {self.line}: {self.column} {problem}, got {self.text!r}"
        )


@dataclass(frozen=True)
class WrittenTime:
    """A time of a table.

    Attributes:
        cell: Where it is written.
        at: With the offset from UTC if one is written; the begin of a whole day.
        is_day: Whether it is a date alone.
    """

    cell: TimeCell
    at: datetime
    is_day: bool

    @property
    def has_offset(self) -> bool:
        """Whether an offset from UTC is written."""
        return self.at.tzinfo is not None


def parse_zone(text: str) -> timezone:
    """Parse a fixed offset such as ``+09:00``, ``UTC`` or ``Z``.

    Raises:
        ValueError: The text has another form. A name such as America/Los_Angeles has
            days of 23 and 25 hours, which no table of equal steps has.
    """
    if text in {"Z", "UTC"}:
        return UTC
    match = _ZONE.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a fixed offset such as +09:00, or UTC, got {text!r}")
    offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
    return timezone(-offset if match[1] == "-" else offset)


def parse_times(
    cells: Sequence[TimeCell], order: DateOrder | None = None
) -> list[WrittenTime]:
    """Parse the times of one column.

    Args:
        cells: All of them, since one date may decide the order of the others.
        order: Order of dates with slashes; None: as these dates show.

    Raises:
        RainTableError: A time has no accepted form, or the order stays open.
    """
    order = order or _order_of(cells)
    return [_parse(cell, order) for cell in cells]


def in_zone(times: Iterable[WrittenTime], zone: timezone | None) -> timezone | None:
    """Offset of the times of one table.

    Args:
        times: The times.
        zone: Offset to convert to; None: the one that all times have.

    Returns:
        None if neither the times nor the argument have an offset.

    Raises:
        RainTableError: Times with and without an offset, or with different ones.
    """
    first: WrittenTime | None = None
    for time in times:
        first = first or time
        if time.has_offset != first.has_offset:
            problem = (
                f"must have an offset from UTC in all lines or in none, line "
                f"{first.cell.line} has {first.cell.text!r}"
            )
            raise time.cell.error(problem)
        if zone is None and time.at.utcoffset() != first.at.utcoffset():
            problem = (
                f"must have the offset of line {first.cell.line} "
                f"({first.cell.text!r}), or give --zone to convert all"
            )
            raise time.cell.error(problem)
    offset = None if first is None else first.at.utcoffset()
    return zone or (None if offset is None else timezone(offset))


def local_time(time: WrittenTime, zone: timezone | None) -> datetime:
    """A time in the zone of the rain, marked as UTC so that arithmetic needs no zone.

    Raises:
        RainTableError: It has an offset, and the rain has none.
    """
    if time.has_offset and zone is None:
        raise time.cell.error(
            "must have no offset from UTC, as the times of the rain have none; or "
            "give --zone, the offset of the rain's times"
        )
    at = time.at.astimezone(zone) if time.has_offset else time.at
    return at.replace(tzinfo=UTC)


def _order_of(cells: Sequence[TimeCell]) -> DateOrder | None:
    """Order of the dates with slashes; None without such dates."""
    slashed = [(cell, m) for cell in cells if (m := _SLASHED.fullmatch(cell.text))]
    by_day = [cell for cell, m in slashed if int(m[1]) > MONTHS_IN_A_YEAR]
    by_month = [cell for cell, m in slashed if int(m[2]) > MONTHS_IN_A_YEAR]
    if by_day and by_month:
        problem = f"must have the order of line {by_month[0].line}"
        raise by_day[0].error(f"{problem} ({by_month[0].text!r}), month first")
    if by_day or by_month or not slashed:
        return DateOrder.DAY_FIRST if by_day else DateOrder.MONTH_FIRST
    raise slashed[0][0].error(
        "must have a plain order of day and month: no date of the table decides; "
        "write 2010-04-03, or give --dates month-first or --dates day-first"
    )


def _parse(cell: TimeCell, order: DateOrder | None) -> WrittenTime:
    time = _parse_any_year(cell, order)
    if time.at.year not in YEARS:
        problem = f"must be in the years {YEARS.start} to {YEARS.stop - 1}"
        raise cell.error(problem)
    return time


def _parse_any_year(cell: TimeCell, order: DateOrder | None) -> WrittenTime:
    text = _as_iso(cell.text, order)
    try:
        begin = date.fromisoformat(text)
        return WrittenTime(cell, datetime(begin.year, begin.month, begin.day), True)  # noqa: DTZ001 - local as written
    except ValueError:
        pass
    try:
        return WrittenTime(cell, datetime.fromisoformat(text), False)
    except ValueError as error:
        raise cell.error(f"must be a time such as {_FORMS}") from error


def _as_iso(text: str, order: DateOrder | None) -> str:
    """The text with its date in the form of ISO 8601."""
    if match := _YEAR_FIRST.fullmatch(text):
        year, month, day, clock = match.groups()
    elif match := _SLASHED.fullmatch(text):
        month, day, year, clock = match.groups()
        if order is DateOrder.DAY_FIRST:
            month, day = day, month
    else:
        return text
    date_text = f"{year}-{month:0>2}-{day:0>2}"
    if clock is None:
        return date_text
    padded = f"0{clock}" if clock[1:2] == ":" else clock
    return f"{date_text} {padded}"
