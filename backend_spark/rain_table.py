"""Rain table (CSV) to soil water index, without Spark: ``backend-spark index``.

Uses the formulas of the scored tables, for checks and for recorded rain.
"""

import csv
import difflib
import io
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend_spark.criteria.jma import read_amedas, split_hours
from backend_spark.errors import RainTableError
from slope_science.rain_and_soil_water import TEN_MINUTES_H, SoilWater, rain_60min

HEADER = "step,rain_mm,r60_mm,s1_mm,s2_mm,s3_mm,swi_mm"
STANDARD_INPUT = "-"

_STEP = re.compile(r"(?P<count>[1-9][0-9]*)(?P<unit>min|h)")


@dataclass(frozen=True)
class RainText:
    """Text of a rain table and its origin.

    Attributes:
        name: File name, or ``standard input``.
        text: Whole text.
    """

    name: str
    text: str


def read_rain_text(path: str) -> RainText:
    """Read a table; a byte-order mark and Windows line ends are accepted.

    Raises:
        RainTableError: The file cannot be read, or is not UTF-8.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    try:
        if path == STANDARD_INPUT:
            raw = sys.stdin.buffer.read()
        else:
            raw = Path(path).read_bytes()
        return RainText(name, raw.decode("utf-8-sig"))
    except OSError as error:
        raise RainTableError(name, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RainTableError(
            name, f"must be UTF-8: {error}; save it as CSV UTF-8"
        ) from error


def parse_step_h(step: str) -> float:
    """Parse a time step such as ``10min`` or ``1h`` into hours.

    Raises:
        RainTableError: The text has another form, or does not divide an hour.
    """
    match = _STEP.fullmatch(step)
    minutes = int(match["count"]) * (60 if match["unit"] == "h" else 1) if match else 0
    if not minutes or 60 % minutes:
        raise RainTableError(
            "--step",
            f"must be a whole fraction of an hour such as 10min or 1h, got {step!r}",
        )
    return minutes / 60


def soil_water_lines(
    source: RainText, *, column: str, step_h: float, allow_missing: bool = False
) -> Iterator[str]:
    """Compute the soil water index of a rain table; yields CSV lines.

    Args:
        source: CSV with a header; rows in the order of time, one per step.
        column: Name of the column with the rain of each step, in mm.
        step_h: Length of a step in hours.
        allow_missing: Whether to accept empty cells as unknown rain: the tanks drain
            and the row's rain stays empty.

    Raises:
        RainTableError: The column or a number is missing or wrong.
    """
    return _format_lines(list(_read_column(source, column, allow_missing)), step_h)


def amedas_soil_water_lines(
    path: str, station: str, *, allow_missing: bool = False
) -> Iterator[str]:
    """Compute the index for a station in JMA's download, in steps of ten minutes.

    Raises:
        RainTableError: The file breaks a rule, or the rain of an hour is missing.
    """
    hours = read_amedas(path, station)
    for hour in hours:
        if hour.rain_mm is None and not allow_missing:
            problem = f"rain until {hour.end:%Y-%m-%d %H:%M} is missing, never zero"
            raise RainTableError(path, f"{problem}; use --missing skip-rain")
    return _format_lines(list(split_hours(hours)), TEN_MINUTES_H)


def _format_lines(rain: Sequence[float | None], step_h: float) -> Iterator[str]:
    r60 = rain_60min([depth or 0.0 for depth in rain], step_h)
    tanks = SoilWater()
    lines = [HEADER]
    for step, (depth, last_hour) in enumerate(zip(rain, r60, strict=True), start=1):
        tanks = tanks.step(depth or 0.0, step_h)
        rain_mm = "" if depth is None else f"{depth:.6f}"
        numbers = (last_hour, tanks.s1_mm, tanks.s2_mm, tanks.s3_mm, tanks.index_mm)
        lines.append(f"{step},{rain_mm}," + ",".join(f"{n:.6f}" for n in numbers))
    return iter(lines)


def _read_column(
    source: RainText, column: str, may_miss: bool
) -> Iterator[float | None]:
    try:
        rows = list(csv.reader(io.StringIO(source.text, newline=""), strict=True))
    except csv.Error as error:
        raise RainTableError(source.name, f"must be CSV: {error}") from error
    present = [name.strip() for name in rows[0]] if rows else []
    if column not in present:
        raise RainTableError(source.name, describe_missing_column(column, present))
    index = present.index(column)
    # Many files end with empty lines; an empty line in the middle is a missing step.
    while not rows[-1]:
        rows.pop()
    for number, row in enumerate(rows[1:], start=1):
        text = row[index].strip() if index < len(row) else ""
        if text or not may_miss:
            field = f"row {number} (line {number + 1}): {column}"
            if not text:
                remedy = "fill it from a neighbour, or use --missing skip-rain"
                problem = f"{field} must be given, missing is never zero; {remedy}"
                raise RainTableError(source.name, problem)
            yield parse_depth(source.name, field, text)
        else:
            yield None


def parse_depth(name: str, field: str, text: str) -> float:
    """Parse a depth of rain in mm.

    Raises:
        RainTableError: It is no number of zero or more.
    """
    try:
        depth = float(text)
    except ValueError:
        depth = math.nan
    if not (math.isfinite(depth) and depth >= 0):
        problem = f"{field} must be a number of mm, zero or more, got {text!r}"
        raise RainTableError(name, problem)
    return depth


def describe_missing_column(column: str, columns: Iterable[str]) -> str:
    """Error text for a missing column, with the nearest name and all names."""
    names = list(columns)
    near = difflib.get_close_matches(column, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no column {column!r}; {hint}present: {', '.join(names) or 'none'}"
