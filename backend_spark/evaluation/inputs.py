"""Inputs of an evaluation: rain series and times of landslides."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from backend_spark.errors import RainTableError
from backend_spark.rain_table import RainText, describe_missing_column
from slope_science.skill import Slide

_DAY = timedelta(days=1)
MAX_STEPS = 20_000_000
"""A century in steps of three minutes; a wrong year in a row would fill the memory."""

DATE_FORMS = ("%Y-%m-%d", "%m/%d/%Y", "%Y/%m/%d")


@dataclass(frozen=True)
class EvaluationRain:
    """Rain in steps of one length, without a hole in time.

    Attributes:
        ends: Times of the ends of the steps, local as the table writes them, with
            UTC for a zone so that arithmetic needs none.
        depth_mm: Of each step; None where the table has no number.
        step: Length of a step.
    """

    ends: Sequence[datetime]
    depth_mm: Sequence[float | None]
    step: timedelta

    @property
    def step_h(self) -> float:
        """Length of a step in hours."""
        return self.step / timedelta(hours=1)


def read_rain_series(source: RainText, time_column: str, column: str) -> EvaluationRain:
    """Read rain from a CSV; a missing row is a step without a number.

    Args:
        source: CSV with a header, rows in the order of time.
        time_column: ISO 8601 times of the ends of the steps.
        column: Depth of rain in mm; an empty cell is unknown.

    Raises:
        RainTableError: A column is missing, or a time or number is wrong.
    """
    rows = list(_cells(source, (time_column, column)))
    known: dict[datetime, float | None] = {}
    for line, (when, depth) in rows:
        at = _time(source.name, f"line {line}: {time_column}", when)
        if known and at <= next(reversed(known)):
            problem = f"line {line}: {time_column} must be later than the row before"
            raise RainTableError(source.name, f"{problem}, got {when!r}")
        known[at] = _depth(source.name, f"line {line}: {column}", depth)
    times = list(known)
    if len(times) < 2:  # noqa: PLR2004 - a step has two ends
        raise RainTableError(
            source.name, f"must have two rows or more, has {len(times)}"
        )
    step = min(later - sooner for sooner, later in pairwise(times))
    count = (times[-1] - times[0]) // step + 1
    if count > MAX_STEPS:
        problem = f"{time_column} must span at most {MAX_STEPS} steps of {step}"
        span = f"got {times[0]} to {times[-1]}; look at the years"
        raise RainTableError(source.name, f"{problem}, {span}")
    ends = [times[0] + step * at for at in range(count)]
    strange = sorted(set(times) - set(ends))
    if strange:
        problem = f"{time_column} must lie on a grid of {step} from {times[0]}"
        raise RainTableError(source.name, f"{problem}, got {strange[0]}")
    return EvaluationRain(ends, [known.get(end) for end in ends], step)


def read_slides(source: RainText) -> list[Slide]:
    """Landslides of a CSV, or of lines with a date each.

    Shape:
        time: a date, or a date and time; local, as in the table of rain.
        count: how many landslides; 1 when the column is not there.

    Raises:
        RainTableError: A time or a count is wrong, or there is none.
    """
    head = source.text.lstrip().split("\n", 1)[0].split(",")
    names = {name.strip() for name in head}
    added = 0
    if "time" not in names:
        source = RainText(source.name, f"time\n{source.text}")
        added = 1
    wanted = ("time", "count") if "count" in names else ("time",)
    slides = []
    for line, cells in _cells(source, wanted):
        place = f"line {line - added}"
        low, high = _span(source.name, f"{place}: time", cells[0])
        count = _count(source.name, f"{place}: count", cells[1]) if cells[1:] else 1
        slides.append(Slide(low.timestamp(), high.timestamp(), count))
    if not slides:
        raise RainTableError(source.name, "must name one landslide or more, has none")
    return slides


def _cells(source: RainText, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Number of each line, and its cells of some columns."""
    reader = csv.reader(io.StringIO(source.text, newline=""), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        for name in names:
            if name not in head:
                raise RainTableError(source.name, describe_missing_column(name, head))
        places = [head.index(name) for name in names]
        for row in reader:
            if row:
                yield (
                    reader.line_num,
                    [row[at].strip() if at < len(row) else "" for at in places],
                )
    except csv.Error as error:
        raise RainTableError(source.name, f"must be CSV: {error}") from error


def _time(name: str, field: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        problem = f"{field} must be a time such as 2026-07-01 13:00, got {text!r}"
        raise RainTableError(name, problem) from error


def _span(name: str, field: str, text: str) -> tuple[datetime, datetime]:
    """Period of an event: a moment, or a whole day."""
    for form in DATE_FORMS:
        try:
            day = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        return day, day + _DAY
    moment = _time(name, field, text)
    return moment, moment


def _depth(name: str, field: str, text: str) -> float | None:
    if not text:
        return None
    try:
        depth = float(text)
    except ValueError:
        depth = math.nan
    if not (math.isfinite(depth) and depth >= 0):
        problem = f"{field} must be a number of mm, zero or more, got {text!r}"
        raise RainTableError(name, problem)
    return depth


def _count(name: str, field: str, text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise RainTableError(name, f"{field} must be a whole number from 1, got {text!r}")
