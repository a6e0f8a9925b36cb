"""Recorded rain from a CSV file with a time column and columns of depths."""

import csv
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

from edge_agent.hillslope.errors import RainFileError
from edge_agent.hillslope.rain import RainSeries, filled

TIME_COLUMNS = (
    "time_local_end", "time_end", "time_local", "time_utc", "time", "timestamp",
    "datetime", "date",
)  # fmt: skip

_NO_VALUE = frozenset({"", "na", "nan", "null", "none", "-", "m"})
_MOST_STEPS = 2_000_000
_Row = tuple[int, float, float | None]


def from_csv(
    path: Path,
    column: str,
    step_s: float | None = None,
    time_column: str | None = None,
    dates: tuple[str | None, str | None] = (None, None),
) -> RainSeries:
    """Read one column of rain depths in mm.

    Times are ISO; without a zone they are taken as UTC. In a column whose name
    ends with ``end`` they mark the end of a step, else its beginning. Rows or values
    that are missing are gaps, counted, and no rain.

    Args:
        path: The file; its first row names the columns.
        column: The depths; a trailing ``_mm`` may be left out.
        step_s: Length of a step; by default the shortest distance of two rows.
        time_column: By default the first of `TIME_COLUMNS` that the file has.
        dates: First and last time wanted, ISO; a bare last date is wholly included.

    Raises:
        RainFileError: Names file, row, column, value and remedy.
    """
    with _opened(path) as file:
        table = csv.DictReader(file)
        names = list(table.fieldnames or ())
        depth_column = _depth_column(path, names, column)
        clock = _time_column(path, names, time_column)
        every = _rows(path, table, clock, depth_column)
        rows = list(_wanted(every, dates, ends=clock.endswith("end")))
    if not rows:
        rule = "a file with rows between the dates wanted"
        raise RainFileError(str(path), 0, clock, rule, dates, "choose other dates")
    step_s = step_s or _shortest(path, rows, clock)
    depths, gaps = filled(_gridded(path, rows, step_s, clock))
    start_s = rows[0][1] - (step_s if clock.endswith("end") else 0.0)
    return RainSeries(start_s, step_s, depths, gaps)


def _opened(path: Path) -> TextIOWrapper:
    try:
        return path.open(newline="", encoding="utf-8-sig")
    except OSError as error:
        rule, why = "a file that can be read", error.strerror
        raise RainFileError(str(path), 0, "", rule, why, "check the path") from error


def _depth_column(path: Path, names: list[str], column: str) -> str:
    for name in (column, f"{column}_mm"):
        if name in names:
            return name
    remedy = f"the file has {', '.join(names)}"
    raise RainFileError(str(path), 1, column, "a column of the file", column, remedy)


def _time_column(path: Path, names: list[str], column: str | None) -> str:
    wanted = TIME_COLUMNS if column is None else (column,)
    for name in wanted:
        if name in names:
            return name
    remedy = f"name the time column; the file has {', '.join(names)}"
    rule = f"a file with a column {' or '.join(wanted)}"
    raise RainFileError(str(path), 1, "", rule, names, remedy)


def _rows(
    path: Path, table: Iterable[Mapping[str, str | None]], clock: str, column: str
) -> Iterator[_Row]:
    for number, row in enumerate(table, 2):
        time_s = _time(path, number, clock, row[clock] or "")
        yield number, time_s, _depth(path, number, column, row[column] or "")


def _time(path: Path, number: int, column: str, text: str) -> float:
    try:
        return _unix(text)
    except ValueError as error:
        rule, remedy = "an ISO time", "write it like 2010-12-12 05:00:00"
        raise RainFileError(str(path), number, column, rule, text, remedy) from error


def _depth(path: Path, number: int, column: str, text: str) -> float | None:
    if text.strip().lower() in _NO_VALUE:
        return None
    try:
        depth_mm = float(text)
    except ValueError:
        depth_mm = math.nan
    if not 0 <= depth_mm < math.inf:
        rule, remedy = "a depth in mm, zero or more", "leave a missing value empty"
        raise RainFileError(str(path), number, column, rule, text, remedy)
    return depth_mm


def _wanted(
    rows: Iterable[_Row], dates: tuple[str | None, str | None], *, ends: bool
) -> Iterator[_Row]:
    first, last = dates
    low = -math.inf if first is None else _unix(first)
    high = math.inf if last is None else _unix(last) + 1
    if last is not None and len(last) == len("2010-12-12"):
        high += 86400 - 1
    # the step that ends at midnight belongs to the day before
    back_s = 0.5 if ends else 0.0
    return (row for row in rows if low <= row[1] - back_s < high)


def _unix(text: str) -> float:
    time = datetime.fromisoformat(text.strip())
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _shortest(path: Path, rows: list[_Row], clock: str) -> float:
    gaps = [later[1] - row[1] for row, later in itertools.pairwise(rows)]
    shortest = min((gap for gap in gaps if gap > 0), default=0.0)
    if not shortest:
        rule = "a file with two rows or more"
        raise RainFileError(str(path), 0, clock, rule, len(rows), "give step_s")
    return shortest


def _gridded(
    path: Path, rows: list[_Row], step_s: float, clock: str
) -> list[float | None]:
    """Depths on an even grid, None where the record has nothing."""
    depths: list[float | None] = []
    for number, time_s, depth_mm in rows:
        steps = (time_s - rows[0][1]) / step_s
        at = round(steps)
        if abs(steps - at) > 1e-6 or not len(depths) <= at < _MOST_STEPS:  # noqa: PLR2004 - rounding
            shown = datetime.fromtimestamp(time_s, UTC).isoformat(" ")
            rule = f"later than the row before by a whole number of {step_s:g} s"
            remedy = "sort the rows, drop repeated ones, or give another step_s"
            raise RainFileError(str(path), number, clock, rule, shown, remedy)
        depths += [None] * (at - len(depths))
        depths.append(depth_mm)
    return depths
