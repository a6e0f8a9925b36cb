"""Readers of open data sets of landslide days, in the forms that they are published in.

Each makes the rain and the landslides of an evaluation from the downloaded files,
unchanged. docs/benchmarks/landslides.md has addresses, licences and what was verified.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Final

from backend_spark.errors import RainTableError
from backend_spark.evaluation.inputs import (
    UNKNOWN,
    DateOrder,
    EvaluationRain,
    LandslideTable,
    TimeCell,
    WrittenTime,
    make_landslides,
    make_series,
    parse_count,
    parse_times,
    read_cells,
)
from backend_spark.rain_table import RainText, parse_depth, read_rain_text

EARTH_KM: Final = 6371.0

HKO_TRACE: Final = "Trace"
"""Less than 0.05 mm: counted as 0.0 mm."""

HKO_COMPLETE: Final = "C"
_NO_DATE: Final = "-"
_ENGLISH_MONTH: Final = re.compile(r"(\d{1,2})[- ]([A-Za-z]{3})[A-Za-z]*[- ](\d{4})")
_ENGLISH_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_PORTUGUESE_MONTHS: Final = (
    "jan", "fev", "mar", "abr", "mai", "jun", "jul", "ago", "set", "out", "nov", "dez",
)  # fmt: skip
_MONTH_COLUMN: Final = re.compile(r"([a-z]{3})-(\d{2})")

SITKA_PREDICTORS: Final = {
    "max1h": "precip_mm_maxhr",
    "max3h": "precip_mm_max3hr",
    "max6h": "precip_mm_max6hr",
    "max12h": "precip_mm_max12hr",
}
"""Greatest rain of some hours on the day: predictor and column."""


@dataclass(frozen=True)
class Nearby:
    """Circle around the place of the rain; landslides beyond do not count.

    Attributes:
        latitude_deg: Of the gauge.
        longitude_deg: Of the gauge.
        within_km: Radius.
    """

    latitude_deg: float
    longitude_deg: float
    within_km: float

    def holds(self, latitude_deg: float, longitude_deg: float) -> bool:
        """Whether a place lies in the circle (great-circle distance)."""
        here, there = math.radians(self.latitude_deg), math.radians(latitude_deg)
        turn = math.radians(longitude_deg - self.longitude_deg)
        sine = math.sin(here) * math.sin(there)
        cosine = sine + math.cos(here) * math.cos(there) * math.cos(turn)
        return EARTH_KM * math.acos(max(-1.0, min(1.0, cosine))) <= self.within_km


@dataclass(frozen=True)
class DataSet:
    """An open data set.

    Attributes:
        title: Name for people.
        read_rain: Reader of its rain; None: the user's own CSV.
        read_landslides: Reader of its landslides.
        step_note: What a step of its rain is.
    """

    title: str
    read_rain: Callable[[RainText], EvaluationRain] | None
    read_landslides: Callable[
        [RainText, timezone | None, Nearby | None], LandslideTable
    ]


def read_dataset_text(path: str) -> RainText:
    """Read a published file; one that is not UTF-8 is read as Latin-1.

    Only names of places are written with other characters than ASCII, and those are
    not read.

    Raises:
        RainTableError: The file cannot be read.
    """
    try:
        return read_rain_text(path)
    except RainTableError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        return RainText(path, Path(path).read_bytes().decode("latin-1"))


def read_hko_rain(source: RainText) -> EvaluationRain:
    """Daily total rainfall of the Hong Kong Observatory (``daily_HKO_RF_ALL.csv``).

    Two lines of title, a header in two languages, year, month, day, value and
    completeness, four lines of notes. ``***`` is missing; an incomplete day (``#``) is
    a lower bound and is read as missing too.
    """
    times: list[TimeCell] = []
    depths: list[float | None] = []
    for line, row in _rows(source.text, ","):
        if not row[0].isdigit():
            if times and len(row) >= len("ymdv") + 1:
                problem = f"line {line}: must begin with a year, got {row[0]!r}"
                raise RainTableError(source.name, problem)
            continue
        year, month, day, value, complete = [*row, "", "", "", ""][:5]
        text = f"{year}-{month:0>2}-{day:0>2}"
        times.append(TimeCell(source.name, line, "Year, Month, Day", text))
        depths.append(_hko_depth(source.name, line, value, complete))
    return make_series(source.name, parse_times(times), depths)


def _hko_depth(name: str, line: int, value: str, complete: str) -> float | None:
    if value == HKO_TRACE:
        return 0.0
    if value in {"", "***"} or complete != HKO_COMPLETE:
        return None
    return parse_depth(name, f"line {line}: Value", value)


def read_geo_landslides(
    source: RainText, zone: timezone | None, _nearby: Nearby | None
) -> LandslideTable:
    """Landslide incidents of Hong Kong's Geotechnical Engineering Office.

    The day is ``FAILDATE``, or ``CALLDATE`` where it is ``-``. Dates have the day
    first; a row with a month alone is named and not counted.
    """
    head = next(_rows(source.text, ","), (1, []))[1]
    columns = {name.lower(): name for name in head}
    for wanted in ("faildate", "calldate"):
        if wanted not in columns:
            problem = f"needs a column {wanted.upper()}, got {', '.join(head[:8])}"
            raise RainTableError(source.name, problem)
    names = (columns["faildate"], columns["calldate"])
    cells, unusable = [], []
    for line, (failed, called) in read_cells(source, names):
        text = failed if failed not in {"", _NO_DATE} else called
        cell = TimeCell(source.name, line, names[0], _with_digits(text))
        if _is_day(cell):
            cells.append(cell)
        else:
            unusable.append((line, f"no day: {text!r}"))
    times = parse_times(cells, DateOrder.DAY_FIRST)
    return make_landslides(source.name, times, [1] * len(times), zone, unusable)


def _with_digits(text: str) -> str:
    """A date such as 8-Jun-2008 with digits alone, others as they are."""
    match = _ENGLISH_MONTH.fullmatch(text)
    if match is None or match[2].lower() not in _ENGLISH_MONTHS:
        return text
    return f"{match[1]}/{_ENGLISH_MONTHS.index(match[2].lower()) + 1}/{match[3]}"


def _is_day(cell: TimeCell) -> bool:
    try:
        parse_times([cell], DateOrder.DAY_FIRST)
    except RainTableError:
        return False
    return True


def read_sitka_rain(source: RainText) -> EvaluationRain:
    """Rain of the landslide days of Sitka, Alaska (``00_sitkalandslidedays.csv``)."""
    names = ("day", "precip_mm_day", *SITKA_PREDICTORS.values())
    rows = list(read_cells(source, names))
    times = parse_times([
        TimeCell(source.name, line, "day", cells[0]) for line, cells in rows
    ])
    columns = list(zip(*(cells for _, cells in rows), strict=True))[1:]
    lines = [line for line, _ in rows]
    numbers = [
        _numbers(source.name, name, lines, column)
        for name, column in zip(names[1:], columns, strict=False)
    ]
    if not numbers:
        raise RainTableError(source.name, "must have two rows or more, has 0")
    series = make_series(source.name, times, numbers[0])
    given = {
        name: make_series(source.name, times, column).depth_mm
        for name, column in zip(SITKA_PREDICTORS, numbers[1:], strict=True)
    }
    return replace(series, given=given)


def _numbers(
    name: str, column: str, lines: Sequence[int], texts: Sequence[str]
) -> list[float | None]:
    return [
        None
        if text.lower() in UNKNOWN
        else parse_depth(name, f"line {line}: {column}", text)
        for line, text in zip(lines, texts, strict=True)
    ]


def read_sitka_landslides(
    source: RainText, zone: timezone | None, _nearby: Nearby | None
) -> LandslideTable:
    """Landslides of Sitka: days with ``event`` 1, and their number ``lscount``."""
    cells, counts = [], []
    for line, (day, event, count) in read_cells(source, ("day", "event", "lscount")):
        if event not in {"0", "1"}:
            problem = f"line {line}: event must be 0 or 1, got {event!r}"
            raise RainTableError(source.name, problem)
        if event == "1":
            cells.append(TimeCell(source.name, line, "day", day))
            counts.append(parse_count(source.name, f"line {line}: lscount", count))
    return make_landslides(source.name, parse_times(cells), counts, zone)


def read_sao_paulo_rain(source: RainText) -> EvaluationRain:
    """Daily rain of Cubatão, São Paulo (``raingauge-hb.csv``).

    One column for each month (``jan-00``, in Portuguese), one row for each day of the
    month, divided by semicolons; columns ``Dia`` repeat the number of the day.
    """
    rows = list(_rows(source.text, ";"))
    head = [name.strip().lower() for name in rows[0][1]] if rows else []
    months = {at: _month(source.name, name) for at, name in enumerate(head)}
    known: dict[date, tuple[int, float | None]] = {}
    for line, cells in rows[1:]:
        for at, month in months.items():
            text = cells[at].strip() if at < len(cells) else ""
            if month is not None:
                _add_day(source.name, line, (month, cells[0], text), known)
    times = [
        TimeCell(source.name, known[day][0], "Dia", day.isoformat())
        for day in sorted(known)
    ]
    depths = [known[day][1] for day in sorted(known)]
    return make_series(source.name, parse_times(times), depths)


def _month(name: str, column: str) -> tuple[int, int] | None:
    """Year and month of a column; None for the columns of days."""
    if column == "dia":
        return None
    match = _MONTH_COLUMN.fullmatch(column)
    if match is None or match[1] not in _PORTUGUESE_MONTHS:
        problem = (
            f"line 1: columns must be Dia, or months such as jan-00, got {column!r}"
        )
        raise RainTableError(name, problem)
    return 2000 + int(match[2]), _PORTUGUESE_MONTHS.index(match[1]) + 1


def _add_day(
    name: str,
    line: int,
    cell: tuple[tuple[int, int], str, str],
    known: dict[date, tuple[int, float | None]],
) -> None:
    (year, month), number, text = cell
    try:
        day = date(year, month, int(number))
    except ValueError as error:
        if text.lower() in UNKNOWN:
            return  # 30 February
        problem = f"line {line}: {month}/{year} has no day {number!r}, got {text!r}"
        raise RainTableError(name, problem) from error
    depth = None
    if text.lower() not in UNKNOWN:
        depth = parse_depth(name, f"line {line}: {day}", text.replace(",", "."))
    if day in known:
        raise RainTableError(name, f"line {line}: must give {day} once, gives it twice")
    known[day] = line, depth


def read_sao_paulo_landslides(
    source: RainText, zone: timezone | None, _nearby: Nearby | None
) -> LandslideTable:
    """Landslides of Cubatão: ``date;landslides``, one row for each, day first."""
    rows = list(read_cells(source, ("date",), ";"))
    cells = [TimeCell(source.name, line, "date", row[0]) for line, row in rows]
    times = parse_times(cells, DateOrder.DAY_FIRST)
    return make_landslides(source.name, times, [1] * len(times), zone)


def read_italica_landslides(
    source: RainText, zone: timezone | None, nearby: Nearby | None
) -> LandslideTable:
    """Landslides of ITALICA (``ITALICA_v4.csv``) near the gauge of the user's rain.

    The day is that of ``local_date``, or of ``utc_date`` in the zone of the rain if it
    has one. The hour is not used: the classes of `temporal_accuracy` were not verified.
    """
    if nearby is None:
        raise RainTableError(
            source.name, "covers Italy: give --near LAT,LON and --within-km"
        )
    column = "local_date" if zone is None else "utc_date"
    cells, unusable = [], []
    for line, row in read_cells(source, ("lat", "lon", column), ";"):
        try:
            place = float(row[0]), float(row[1])
        except ValueError:
            unusable.append((line, f"no place: {row[0]!r}, {row[1]!r}"))
            continue
        cell = TimeCell(source.name, line, column, row[2])
        if not nearby.holds(*place):
            continue
        if _is_day(cell):
            cells.append(cell)
        else:
            unusable.append((line, f"no day: {row[2]!r}"))
    times = [_whole_day(each, zone) for each in parse_times(cells, DateOrder.DAY_FIRST)]
    return make_landslides(source.name, times, [1] * len(times), zone, unusable)


def _whole_day(time: WrittenTime, zone: timezone | None) -> WrittenTime:
    """The local day of a moment that is written in UTC, or locally without a zone."""
    at = time.at
    if zone is not None:
        at = at.replace(tzinfo=timezone.utc).astimezone(zone)  # noqa: UP017
    return WrittenTime(time.cell, datetime(at.year, at.month, at.day), True)  # noqa: DTZ001


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not empty, with their numbers."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield reader.line_num, cells


DATA_SETS: Final[Mapping[str, DataSet]] = {
    "hong-kong": DataSet("Hong Kong", read_hko_rain, read_geo_landslides),
    "sitka": DataSet("Sitka, Alaska", read_sitka_rain, read_sitka_landslides),
    "sao-paulo": DataSet(
        "Cubatão, São Paulo", read_sao_paulo_rain, read_sao_paulo_landslides
    ),
    "italica": DataSet("Italy (ITALICA)", None, read_italica_landslides),
}
"""By the name on the command line."""
