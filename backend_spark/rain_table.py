"""Rain table (CSV) to soil water index, without Spark: ``backend-spark index``.

Uses the formulas of the scored tables, for checks and for recorded rain.

A table of AMeDAS stations (CSV in cp932) has a header of a varying number of lines:
stations, elements, and which column is the number, its quality (品質情報), its
homogeneity and whether nothing was observed (現象なし情報). Hour 24 is the next day's
0. Source: files of JMA's 過去の気象データ・ダウンロード; quality 8 normal, 5 nearly
normal, 4 insufficient, 2 doubtful, 1 missing, 0 not observed.
"""

import csv
import difflib
import io
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from backend_spark.errors import RainTableError
from service_runtime.errors import FieldError
from slope_science import JST
from slope_science.quality import Flag
from slope_science.rain_and_soil_water import TEN_MINUTES_H, SoilWater, rain_60min

HEADER = "step,rain_mm,r60_mm,s1_mm,s2_mm,s3_mm,swi_mm"
STANDARD_INPUT = "-"

_STEP = re.compile(r"(?P<count>[1-9][0-9]*)(?P<unit>min|h)")

ENCODING: Final = "cp932"
RAIN_COLUMN: Final = "降水量(mm)"
QUALITY_COLUMN: Final = "品質情報"
STEPS_PER_HOUR: Final = 6
LAST_MINUTE: Final = 59
MAX_STATIONS_BYTES: Final = 100_000_000

FLAG_BY_QUALITY: Final = {
    8: Flag.GOOD,
    5: Flag.GOOD,
    4: Flag.SUSPECT,
    2: Flag.SUSPECT,
    1: Flag.MISSING,
    0: Flag.MISSING,
}
"""QARTOD flag of each JMA quality; insufficient data are suspect."""

_TIME: Final = re.compile(
    r"(\d{4})[/-](\d{1,2})[/-](\d{1,2})[ T](\d{1,2}):(\d{2})(?::\d{2})?"
)


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


@dataclass(frozen=True)
class AmedasHour:
    """Rain of one hour.

    Attributes:
        end: When it ends, in Japan's time.
        rain_mm: Depth; None when it is missing, which is never zero.
        flag: QARTOD's, from JMA's quality.
    """

    end: datetime
    rain_mm: float | None
    flag: Flag


def read_amedas(path: str, station: str) -> list[AmedasHour]:
    """Rain of a station, hour by hour, in the order of the file.

    Args:
        path: JMA's file.
        station: Name of the station, as in the file.

    Raises:
        RainTableError: The file is none of JMA's, has no rain of the station, or a
            time or number is wrong, or an hour is missing or there twice.
    """
    rows = _rows(path)
    head, number_at, quality_at = _columns(path, rows, station)
    found: list[AmedasHour] = []
    for line, row in enumerate(rows[head:], start=head + 1):
        if not any(row):
            continue
        hour = _hour(path, line, row, number_at, quality_at)
        if found and hour.end - found[-1].end != timedelta(hours=1):
            rule = f"an hour after the line before ({found[-1].end:%Y-%m-%d %H:%M})"
            remedy = "download the whole time in one file"
            problem = f"line {line}: time must be {rule}, got {row[0]!r}; {remedy}"
            raise RainTableError(path, problem)
        found.append(hour)
    return found


def split_hours(hours: Sequence[AmedasHour]) -> Iterator[float | None]:
    """Six equal parts of each hour, as criteria need steps of ten minutes."""
    for hour in hours:
        share = None if hour.rain_mm is None else hour.rain_mm / STEPS_PER_HOUR
        yield from [share] * STEPS_PER_HOUR


def _rows(path: str) -> list[list[str]]:
    try:
        if Path(path).stat().st_size > MAX_STATIONS_BYTES:
            problem = f"must have at most {MAX_STATIONS_BYTES} bytes; cut it by years"
            raise RainTableError(path, problem)
        text = Path(path).read_bytes().decode(ENCODING)
    except OSError as error:
        raise RainTableError(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        problem = f"must be cp932 as JMA writes it: {error}; do not save it anew"
        raise RainTableError(path, problem) from error
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [[cell.strip() for cell in row] for row in rows]
    except csv.Error as error:
        problem = f"line {rows.line_num}: must be CSV: {error}"
        raise RainTableError(path, f"{problem}; download it again") from error


def _columns(
    path: str, rows: Sequence[Sequence[str]], station: str
) -> tuple[int, int, int | None]:
    """The first line of data, the place of the rain, and that of its quality."""
    heads = [at for at, row in enumerate(rows) if RAIN_COLUMN in row]
    if not heads or not heads[0]:
        problem = f"needs a line of elements with {RAIN_COLUMN!r} under one of stations"
        raise RainTableError(path, f"{problem}; download hourly rain from JMA")
    at = heads[0]
    stations, elements = rows[at - 1], rows[at]
    ours = [
        place
        for place, (name, element) in enumerate(zip(stations, elements, strict=False))
        if name == station and element == RAIN_COLUMN
    ]
    if not ours:
        present = sorted({name for name in stations if name})
        raise RainTableError(path, f"no rain of {station!r}; present: {present}")
    data = next((n for n in range(at, len(rows)) if _is_data(rows[n])), len(rows))
    labels = rows[data - 1]
    plain = [place for place in ours if not _label(labels, place)]
    quality = [place for place in ours if _label(labels, place) == QUALITY_COLUMN]
    return data, plain[0] if plain else ours[0], quality[0] if quality else None


def _is_data(row: Sequence[str]) -> bool:
    return bool(row) and _TIME.fullmatch(row[0]) is not None


def _label(labels: Sequence[str], place: int) -> str:
    return labels[place] if place < len(labels) else ""


def _hour(
    path: str,
    line: int,
    row: Sequence[str],
    number_at: int,
    quality_at: int | None,
) -> AmedasHour:
    try:
        end = _end(row[0])
        flag = _flag(_label(row, quality_at) if quality_at is not None else "8")
        text = _label(row, number_at)
        if flag is Flag.MISSING or not text:
            return AmedasHour(end, None, Flag.MISSING)
        return AmedasHour(end, _depth(text), flag)
    except FieldError as error:
        raise RainTableError(path, f"line {line}: {error}") from error


def _end(text: str) -> datetime:
    match = _TIME.fullmatch(text)
    if match is None:
        raise FieldError("time", "like 2024/4/1 1:00:00", text)
    year, month, day, hour, minute = map(int, match.groups())
    since = timedelta(hours=hour, minutes=minute)
    if minute > LAST_MINUTE or since > timedelta(days=1):
        raise FieldError("time", "between 0:00 and 24:00", text)
    try:
        return datetime(year, month, day, tzinfo=JST) + since
    except (ValueError, OverflowError) as error:
        raise FieldError("time", "a day of the calendar", text) from error


def _flag(text: str) -> Flag:
    known = {str(quality): flag for quality, flag in FLAG_BY_QUALITY.items()}
    if text not in known:
        raise FieldError(QUALITY_COLUMN, f"one of {', '.join(known)}", text)
    return known[text]


def _depth(text: str) -> float:
    try:
        depth_mm = float(text)
    except ValueError:
        depth_mm = math.nan
    if not (math.isfinite(depth_mm) and depth_mm >= 0):
        raise FieldError(RAIN_COLUMN, "a number of mm, zero or more", text)
    return depth_mm
