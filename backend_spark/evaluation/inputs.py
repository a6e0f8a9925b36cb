"""Inputs of an evaluation, read from CSV: rain series, and landslides with counts.

A date alone is the whole day. 03/04/2010 has two meanings: one date of the same table
with a number above 12 decides for all of them; without any, the order must be given.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum
from itertools import pairwise
from typing import Final

from backend_spark.errors import RainTableError
from backend_spark.rain_table import (
    RainText,
    describe_missing_column,
    parse_depth,
)
from slope_science.skill import Slide

DAY: Final = timedelta(days=1)
MONTHS_IN_A_YEAR: Final = 12

YEARS: Final = range(1700, 2300)
"""Years of records of rain; others are errors of typing."""

_SLASHED: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?:[ T]+(.+))?")
_YEAR_FIRST: Final = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:[ T]+(.+))?")
_ZONE: Final = re.compile(r"([+-])(\d{2}):?(\d{2})")
_FORMS: Final = "2026-07-01, 2026-07-01 13:00 or 2026/7/1"

HOUR: Final = timedelta(hours=1)
MIN_STEP: Final = timedelta(minutes=1)
MAX_STEPS: Final = 20_000_000
"""A century in steps of three minutes; a wrong year in a row would fill the memory."""

UNKNOWN: Final = frozenset({"", "na", "nan", "null"})
"""Cells without a number, in lower case."""

MISSING_CODES: Final = frozenset({999.0, 999.9, 999.99})
"""Depths below the limit that tables write for a missing one; larger ones exceed it."""

TIME_COLUMNS = ("time", "date")
_COUNT = re.compile(r"0*[1-9][0-9]{0,5}")


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


@dataclass(frozen=True)
class EvaluationRain:
    """Rain in steps of one length, without a hole in time.

    Attributes:
        ends: Times of the ends of the steps, local as the table writes them, with
            UTC for a zone so that arithmetic needs none.
        depth_mm: Of each step; None where the table has no number.
        step: Length of a step.
        zone: Offset of the local time from UTC; None: the table does not tell.
        given: Predictors that the table itself has, by name: a value per step.
        has_starts: Whether the table's times are those of the starts of the steps.
        has_dates: Whether its rows are whole days, written as dates.
    """

    ends: Sequence[datetime]
    depth_mm: Sequence[float | None]
    step: timedelta
    zone: timezone | None = None
    given: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    has_starts: bool = False
    has_dates: bool = False

    @property
    def step_h(self) -> float:
        """Length of a step in hours."""
        return self.step / HOUR

    @property
    def days(self) -> list[date]:
        """Day of each step.

        Steps of up to an hour count on the date that their row carries, as the
        station does; longer ones on the day that holds most of them.
        """
        back = self.step / 2
        if self.step <= HOUR:
            back = self.step if self.has_starts else timedelta()
        return [(end - back).date() for end in self.ends]


def read_rain_series(
    source: RainText, time_column: str, column: str, zone: timezone | None = None
) -> EvaluationRain:
    """Read rain from a CSV; a missing row is a step without a number.

    Args:
        source: CSV with a header, rows in the order of time.
        time_column: Times of the ends of the steps; a date alone is the whole day.
        column: Depth of rain in mm; an empty cell is unknown.
        zone: Offset of the times without one; others are converted to it.

    Raises:
        RainTableError: A column is missing, or a time or number is wrong.
    """
    rows = list(read_cells(source, (time_column, column)))
    times = parse_times([
        TimeCell(source.name, line, time_column, cells[0]) for line, cells in rows
    ])
    depths = [
        _depth(source.name, f"line {line}: {column}", cells[1]) for line, cells in rows
    ]
    return make_series(source.name, times, depths, zone)


def make_series(
    name: str,
    times: Sequence[WrittenTime],
    depths: Sequence[float | None],
    zone: timezone | None = None,
) -> EvaluationRain:
    """Series of the rows of a table.

    Raises:
        RainTableError: Times are out of order or off the grid of the steps, or a
            depth is impossible.
    """
    if len(times) < 2:  # noqa: PLR2004 - a step has two ends
        raise RainTableError(name, f"must have two rows or more, has {len(times)}")
    _check_kinds(times)
    zone = in_zone(times, zone)
    ends = [local_time(each, zone) + each.is_day * DAY for each in times]
    step = _step(times, ends)
    _check_depths(times, depths, step)
    count = (ends[-1] - ends[0]) // step + 1
    if count > MAX_STEPS:
        problem = f"{times[0].cell.column} must span at most {MAX_STEPS} steps of"
        span = f"{step}, got {ends[0]} to {ends[-1]}; look at the years"
        raise RainTableError(name, f"{problem} {span}")
    _check_grid(times, ends, step)
    known = dict(zip(ends, depths, strict=True))
    grid = [ends[0] + step * at for at in range(count)]
    return EvaluationRain(
        grid,
        [known.get(end) for end in grid],
        step,
        zone,
        has_dates=times[0].is_day,
    )


def from_starts(series: EvaluationRain) -> EvaluationRain:
    """The series of a table whose times are the starts of its steps.

    Rows that are dates stay as they are: they are whole days in any case.
    """
    if series.has_dates:
        return series
    ends = [start + series.step for start in series.ends]
    return replace(series, ends=ends, has_starts=True)


def max_depth_mm(step_h: float) -> float:
    """Largest depth of a step that is accepted, in mm.

    Source:
        422 T^0.475 with T in hours (our curve), above the world's point records: 38 mm
        in 1 min, 198 mm in 15 min, 401 mm in 1 h, 1,825 mm in 24 h.
    """
    return 422.0 * math.pow(step_h, 0.475)


def _check_kinds(times: Sequence[WrittenTime]) -> None:
    """Refuse a table with dates alone and times of day."""
    for each in times:
        if each.is_day != times[0].is_day:
            first = times[0].cell
            problem = f"must have a time of day in all lines or in none, line {first.line} has {first.text!r}"  # noqa: E501
            raise each.cell.error(problem)


def _step(times: Sequence[WrittenTime], ends: Sequence[datetime]) -> timedelta:
    """Length of a step: the commonest difference, of several the shortest."""
    counts: Counter[timedelta] = Counter()
    for (sooner, later), row in zip(pairwise(ends), times[1:], strict=True):
        if later == sooner:
            raise row.cell.error("must be later than the row before, repeats its time")
        if later < sooner:
            raise row.cell.error("must be later than the row before")
        counts[later - sooner] += 1
    step = min(counts, key=lambda each: (-counts[each], each))
    if not MIN_STEP <= step <= DAY or step % timedelta(seconds=1):
        problem = f"must come in steps of a minute to a day, the commonest is {step}"
        raise times[1].cell.error(problem)
    return step


def _check_grid(
    times: Sequence[WrittenTime], ends: Sequence[datetime], step: timedelta
) -> None:
    for row, end in zip(times, ends, strict=True):
        if (end - ends[0]) % step:
            first = times[0].cell.text
            raise row.cell.error(f"must lie on a grid of {step} from {first}")


def _check_depths(
    times: Sequence[WrittenTime], depths: Sequence[float | None], step: timedelta
) -> None:
    limit = max_depth_mm(step / HOUR)
    for row, depth in zip(times, depths, strict=True):
        if depth is not None and (depth > limit or depth in MISSING_CODES):
            cell = row.cell
            rule = f"rain must be at most {limit:.0f} mm in a step of {step}"
            why = "no code for a missing one: leave the cell empty where unknown"
            problem = f"line {cell.line}: {rule}, and {why}, got {depth:g}"
            raise RainTableError(cell.source, problem)


def read_cells(
    source: RainText, names: Sequence[str], delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Number of each line, and its cells of some columns; empty lines are skipped.

    Raises:
        RainTableError: The text is no CSV, or a column is missing.
    """
    reader = csv.reader(
        io.StringIO(source.text, newline=""), strict=True, delimiter=delimiter
    )
    try:
        head = [name.strip() for name in next(reader, [])]
        for name in names:
            if name not in head:
                raise RainTableError(source.name, describe_missing_column(name, head))
        places = [head.index(name) for name in names]
        for row in reader:
            if any(map(str.strip, row)):
                yield (
                    reader.line_num,
                    [row[at].strip() if at < len(row) else "" for at in places],
                )
    except csv.Error as error:
        raise RainTableError(source.name, f"must be CSV: {error}") from error


def _depth(name: str, field: str, text: str) -> float | None:
    return None if text.lower() in UNKNOWN else parse_depth(name, field, text)


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
