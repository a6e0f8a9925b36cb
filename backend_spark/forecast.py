"""Official rain forecasts: their files, their table, and selection by cell for scoring.

A file is CSV with a header, or a JSON list of objects. Columns: ``source`` (issuer),
``issued_at``, ``from`` and ``to`` (ISO 8601 with a zone), ``mm`` (depth in that
interval, empty: missing), one of ``node_cell`` (S2 token of level 13 or coarser),
``mesh`` (third mesh) and ``municipality`` (JMA's code), and if the source gives one
``flag`` (QARTOD: 1, 2, 3, 4 or 9).

A file is imported completely or not at all. Each issue is stored once and counts from
its import.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from backend_spark.config import KeepSection
from backend_spark.criteria.tables import check_mesh, mesh_code_at
from backend_spark.errors import ForecastFileError
from backend_spark.tables.delta_writer import (
    commit_files,
    time_literal,
    write_file,
)
from backend_spark.tables.maintenance import maintain_tables
from backend_spark.tables.read_files import importing
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import FORECASTS, UTC_TIME
from backend_spark.tables.store import Folder, open_table, version_with_rows
from service_runtime.errors import FieldError
from slope_science.official_rain import (
    MAX_AGE_S,
    ForecastInterval,
    ForecastIssue,
    ForecastRain,
    select_forecast,
)
from slope_science.quality import (
    NOT_EVALUATED,
    Flag,
    Verdict,
    check_rain_depth,
    worst_verdict,
)
from slope_science.rain_and_soil_water import LOOK_AHEAD_STEPS
from slope_science.reason_codes import ReasonCode
from slope_science.reason_compat import parse_why
from slope_science.reasons import Reason
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell

SUFFIXES: Final = (".csv", ".json")
PLACE_KINDS: Final = ("cell", "mesh", "municipality")
REQUIRED_COLUMNS: Final = ("source", "issued_at", "from", "to", "mm")
MAX_PROBLEMS: Final = 20
MAX_BYTES: Final = 200_000_000
MAX_INTERVAL_S: Final = 24 * 3600.0
MAX_CLOCK_ERROR_S: Final = 600.0
"""Maximum time of issue after now, because clocks differ."""

MAX_NAME_CHARS: Final = 100
FIRST_YEAR: Final = 1900
_FLAGS: Final = {str(int(flag)): flag for flag in Flag}

TABLE: Final = "forecasts"
DAY_S: Final = 86_400
_MICRO: Final = 1_000_000
_WITH_REASONS: Final = {Flag.SUSPECT, Flag.FAIL, Flag.MISSING}

ForecastPlace = tuple[str, str]
"""``node_cell``, ``mesh`` or ``municipality``, and its token or code."""


@dataclass(frozen=True, order=True)
class ForecastRow:
    """One interval of a forecast for one place.

    Attributes:
        kind: ``node_cell``, ``mesh`` or ``municipality``.
        place: Its token or code.
        source: Issuer.
        issued_s: Unix time of issue.
        from_s: Unix time of the start.
        to_s: Unix time of the end.
        mm: Depth; None if missing.
        flag: QARTOD flag.
        why: Reasons of the flag in English; None for a good one.
    """

    kind: str
    place: str
    source: str
    issued_s: float
    from_s: float
    to_s: float
    mm: float | None
    flag: int
    why: str | None

    @property
    def issue(self) -> tuple[str, str, str, float]:
        """Key of the issue for this place."""
        return self.kind, self.place, self.source, self.issued_s


def read_forecast(path: Path, now_s: float) -> list[ForecastRow]:
    """Read a file completely; with any error none of its rows counts.

    Args:
        path: CSV or JSON.
        now_s: Unix time; nothing is issued later.

    Raises:
        ForecastFileError: Every mistake, up to `MAX_PROBLEMS`, with line, field,
            rule, value and remedy.
    """
    problems: list[str] = []
    rows: list[ForecastRow] = []
    for place, cells in _cells(path, _text(path)):
        try:
            rows.append(_row(cells, now_s))
        except FieldError as error:
            problems.append(f"{place}: {error}")
    problems += _overlaps(rows)
    if not rows and not problems:
        problems = ["must hold a row of forecast, there is none"]
    if problems:
        raise ForecastFileError(str(path), problems[:MAX_PROBLEMS])
    return rows


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = f"must have at most {MAX_BYTES} bytes; cut it by area"
            raise ForecastFileError(str(path), [problem])
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ForecastFileError(str(path), [problem]) from error
    except UnicodeDecodeError as error:
        raise ForecastFileError(str(path), [f"must be UTF-8: {error}"]) from error


def _cells(path: Path, text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Location of each row in the file, and its values by column."""
    try:
        if path.suffix.lower() == ".json":
            yield from _objects(text)
            return
        rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows.fieldnames = [(name or "").strip() for name in rows.fieldnames or ()]
        for cells in rows:
            known = {name: (cell or "").strip() for name, cell in cells.items() if name}
            yield f"line {rows.line_num}", known
    except csv.Error as error:
        raise ForecastFileError(str(path), [f"must be CSV: {error}"]) from error
    # Lists in lists without end are a RecursionError.
    except (ValueError, RecursionError) as error:
        raise ForecastFileError(str(path), [f"must be JSON: {error}"]) from error


def _objects(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("a list of objects, one for each interval")
    for number, row in enumerate(rows, 1):
        cells = {name: "" if cell is None else str(cell) for name, cell in row.items()}
        yield f"object {number}", cells


def _row(cells: Mapping[str, str], now_s: float) -> ForecastRow:
    for name in REQUIRED_COLUMNS:
        if name not in cells:
            raise FieldError(name, "a column of the table", None, "add it")
    kind, place = _place(cells)
    source = cells["source"]
    if not 0 < len(source) <= MAX_NAME_CHARS:
        rule = f"the name of the issuer, up to {MAX_NAME_CHARS} characters"
        raise FieldError("source", rule, source)
    issued_s, from_s, to_s = (_time(cells, n) for n in ("issued_at", "from", "to"))
    if issued_s > now_s + MAX_CLOCK_ERROR_S:
        remedy = "look at the zone, and at this machine's clock"
        raise FieldError("issued_at", "in the past", cells["issued_at"], remedy)
    if not 0 < to_s - from_s <= MAX_INTERVAL_S:
        rule = f"later than from ({cells['from']}), by 24 h at most"
        raise FieldError("to", rule, cells["to"])
    mm = _depth(cells["mm"])
    verdict = _verdict(mm, to_s - from_s, cells.get("flag", ""))
    return ForecastRow(
        kind,
        place,
        source,
        issued_s,
        from_s,
        to_s,
        mm,
        int(verdict.flag),
        verdict.why or None,
    )


def _place(cells: Mapping[str, str]) -> tuple[str, str]:
    given = [(kind, cells[kind]) for kind in PLACE_KINDS if cells.get(kind)]
    if len(given) != 1:
        rule = "given, one of the three"
        raise FieldError("cell, mesh or municipality", rule, dict(given) or None)
    kind, place = given[0]
    if kind == "mesh":
        check_mesh(place)
    if kind == "cell" and Cell.from_token(place).level > ANALYSIS_LEVEL:
        rule = f"the token of an S2 cell of level {ANALYSIS_LEVEL} or coarser"
        raise FieldError("cell", rule, place, "give the cell around it")
    return kind, place


def _time(cells: Mapping[str, str], name: str) -> float:
    try:
        moment = datetime.fromisoformat(cells[name])
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.year < FIRST_YEAR:
        rule = "ISO 8601 with a zone, such as 2026-07-01T09:00+09:00"
        raise FieldError(name, rule, cells[name])
    return moment.timestamp()


def _depth(text: str) -> float | None:
    if not text:
        return None
    try:
        mm = float(text)
    except ValueError:
        mm = math.nan
    if not (math.isfinite(mm) and mm >= 0):
        rule, remedy = "mm of rain, zero or more", "leave it empty where it is missing"
        raise FieldError("mm", rule, text, remedy)
    return mm


def _verdict(mm: float | None, seconds: float, flag: str) -> Verdict:
    """Verdict of the plausibility test and of the source's own flag."""
    if flag and flag not in _FLAGS:
        raise FieldError("flag", f"one of {', '.join(_FLAGS)}, or empty", flag)
    if mm is None:
        return Verdict(Flag.MISSING, (Reason(ReasonCode.NO_NUMBER),))
    given = _FLAGS[flag] if flag else Flag.NOT_EVALUATED
    is_bad = given in {Flag.SUSPECT, Flag.FAIL, Flag.MISSING}
    from_source = NOT_EVALUATED
    if is_bad:
        from_source = Verdict(given, (Reason(ReasonCode.SOURCE_FLAG, flag=flag),))
    return worst_verdict([from_source, check_rain_depth(mm, seconds)])


def _overlaps(rows: Iterable[ForecastRow]) -> Iterator[str]:
    """Intervals of one issue and place that cover the same time."""
    for one, other in pairwise(sorted(rows, key=lambda row: (row.issue, row.from_s))):
        if one.issue == other.issue and other.from_s < one.to_s:
            when = datetime.fromtimestamp(other.from_s, UTC).isoformat()
            yield (
                f"{one.kind} {one.place}: intervals of one issue must not overlap, "
                f"two cover {when}"
            )


def add_rows(
    tables: Folder, rows: Sequence[ForecastRow], file: str, known_s: float | None
) -> int:
    """Add new issues in one commit; return the number of their rows.

    Stored issues never change, so that scoring again uses the same forecasts.

    Args:
        tables: Folder of the tables, with this one; one process at a time writes it.
        rows: Rows of one file.
        file: Name of the file.
        known_s: Unix time of arrival; None for the time of issue.
    """
    path = tables / TABLE
    there = _issues(tables, rows)
    new = [_record(row, file, known_s) for row in rows if row.issue not in there]
    if new:
        part = write_file(path, pa.Table.from_pylist(new, FORECASTS), FORECASTS)
        commit_files(path, [part])
        maintain_tables([path], open_table(path).version())
    return len(new)


@lru_cache(maxsize=4096)
def read_issues(
    tables: Folder, version: int, day: int, places: tuple[ForecastPlace, ...]
) -> tuple[ForecastIssue, ...]:
    """Issues for some places that became known on a day since 1970, in UTC.

    Args:
        tables: Folder of the tables.
        version: Version of the table; part of the cache key.
        day: Number of the day.
        places: Places in the order of preference.
    """
    whole = _day(tables, version, day)
    return tuple(
        run for place in places if place in whole for run in _runs(whole[place])
    )


@lru_cache(maxsize=8)
def _day(tables: Folder, version: int, day: int) -> dict[ForecastPlace, pa.Table]:
    """Rows that became known on a day, by their area."""
    known = ds.field("received_at")
    first, beyond = (pa.scalar(n * DAY_S * _MICRO, UTC_TIME) for n in (day, day + 1))
    dataset = DeltaTables(tables).dataset(TABLE, version)
    rows = dataset.to_table(filter=(known >= first) & (known < beyond)).cast(FORECASTS)
    found: dict[ForecastPlace, list[int]] = {}
    pairs = zip(rows["kind"].to_pylist(), rows["place"].to_pylist(), strict=True)
    for at, place in enumerate(pairs):
        found.setdefault(place, []).append(at)
    return {place: rows.take(numbers) for place, numbers in found.items()}


def _runs(rows: pa.Table) -> Iterator[ForecastIssue]:
    """Issues for one place."""
    times = ("issued_at", "received_at", "from_at", "at")
    seconds = {n: rows[n].cast(pa.int64()).to_pylist() for n in times}
    issues: dict[tuple[str, float], tuple[float, list[ForecastInterval]]] = {}
    cells = rows.select(["source", "mm", "flag", "flag_why"]).to_pylist()
    for at, row in enumerate(cells):
        issued_s, known_s, from_s, to_s = (seconds[n][at] / _MICRO for n in times)
        is_good = row["flag"] not in {Flag.FAIL, Flag.MISSING}
        why = row["flag_why"] if row["flag"] in _WITH_REASONS else None
        reasons = parse_why(why) if why else ()
        piece = ForecastInterval(from_s, to_s, row["mm"] if is_good else None, reasons)
        issue = issues.setdefault((row["source"], issued_s), (known_s, []))
        issue[1].append(piece)
    for (source, issued_s), (known_s, pieces) in issues.items():
        yield ForecastIssue(source, issued_s, known_s, pieces)


def _issues(
    tables: Folder, rows: Sequence[ForecastRow]
) -> set[tuple[str, str, str, float]]:
    """Names of stored issues of the times of some rows, as `ForecastRow.issue`."""
    columns = ["kind", "place", "source", "issued_at"]
    times_us = [_us(row.issued_s) for row in rows]
    first, last = time_literal(min(times_us)), time_literal(max(times_us))
    conditions = [f"issued_at >= {first}", f"issued_at <= {last}"]
    there = DeltaTables(tables).distinct(TABLE, columns, conditions)
    issued = there["issued_at"].cast(pa.int64()).to_pylist()
    names = zip(*(there[name].to_pylist() for name in columns[:3]), issued, strict=True)
    return {(*name[:3], name[3] / _MICRO) for name in names}


def _record(row: ForecastRow, file: str, known_s: float | None) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "place": row.place,
        "source": row.source,
        "issued_at": _us(row.issued_s),
        "from_at": _us(row.from_s),
        "at": _us(row.to_s),
        "mm": row.mm,
        "flag": row.flag,
        "flag_why": row.why,
        "received_at": _us(row.issued_s if known_s is None else known_s),
        "file": file,
    }


def _us(unix_s: float) -> int:
    return round(unix_s * _MICRO)


@dataclass(frozen=True)
class ImportedFile:
    """Result of importing one file.

    Attributes:
        path: The file.
        added: Rows that are new in the table.
        already_there: Rows of issues that were there; 0 if the file was read before.
    """

    path: Path
    added: int
    already_there: int

    def __str__(self) -> str:
        """One line for a person."""
        if not self.added + self.already_there:
            return f"{self.path}: nothing new"
        return f"{self.path}: {self.added} rows loaded, {self.already_there} were there"


@dataclass(frozen=True)
class ForecastImporter:
    """Imports files; only one process at a time.

    Attributes:
        tables: Folder of the tables.
        keep: How long rows stay.
        now_s: Unix time: what is loaded is known from now on.
        as_issued: Whether each forecast counts as known since its issue; for
            forecasts of the past.
        locks: Folder of the lock and of the cache; None: that of the tables.
    """

    tables: Folder
    keep: KeepSection
    now_s: float
    as_issued: bool = False
    locks: Path | None = None

    def import_files(
        self, paths: Iterable[Path]
    ) -> Iterator[ImportedFile | ForecastFileError]:
        """Import files and folders; an invalid file does not stop the others.

        The newest file comes first, because only that is used if the run is killed;
        files of the past come in the order of `find_files`.

        Raises:
            AlreadyRunningError: Another process loads.
        """
        run = importing(self.tables, TABLE, self.keep, self.now_s, self.locks)
        with run as known:
            files = list(find_files(paths))
            if not self.as_issued:
                files.sort(key=_written, reverse=True)
            for file in files:
                nothing = ImportedFile(file, 0, 0)
                yield known.load_new(file, self._load, nothing, ForecastFileError)

    def _load(self, path: Path) -> ImportedFile:
        rows = read_forecast(path, self.now_s)
        known_s = None if self.as_issued else self.now_s
        added = add_rows(self.tables, rows, path.name, known_s)
        return ImportedFile(path, added, len(rows) - added)


def _written(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except OSError:
        return 0.0, path.name  # reported when it is read


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as given, and the CSV and JSON files of each folder by name."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for file in sorted(path.iterdir()):
            is_ours = file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
            if is_ours and file.is_file():
                yield file


LOOK_BACK_DAYS: Final = 1
"""Days for which a stopped feed is reported as stale; then as absent."""


@dataclass(frozen=True)
class CellForecast:
    """Forecasts for one cell; a call returns the forecast rain after a moment.

    It runs on the executors and reads the table by day.

    Attributes:
        tables: Folder of the tables.
        version: Version of the table.
        places: Places that contain the cell, in the order of preference.
        max_age_s: Maximum age of a usable forecast.
        steps: Steps of ten minutes of the look-ahead.
    """

    tables: Folder
    version: int
    places: tuple[ForecastPlace, ...]
    max_age_s: float
    steps: int = LOOK_AHEAD_STEPS

    def __call__(self, at_s: float) -> ForecastRain:
        """The newest usable forecast known at a moment."""
        day = int(at_s // DAY_S)
        days = range(day - LOOK_BACK_DAYS, day + 1)
        by_day = (read_issues(self.tables, self.version, d, self.places) for d in days)
        return select_forecast(
            (run for day in by_day for run in day), at_s, self.max_age_s, self.steps
        )


@dataclass(frozen=True)
class ForecastReader:
    """Forecasts of all cells.

    Attributes:
        tables: Folder of the tables.
        max_age_s: See `CellForecast`.
    """

    tables: Folder
    max_age_s: float = MAX_AGE_S

    def newest_version(self) -> int | None:
        """Version of the table now; None without any forecast."""
        return version_with_rows(self.tables / TABLE)

    def cell_forecast(
        self,
        cell: str,
        municipality: str | None,
        newest: int,
        steps: int = LOOK_AHEAD_STEPS,
    ) -> CellForecast:
        """Forecasts of one cell, by a version of the table."""
        places = find_places(cell, municipality)
        return CellForecast(self.tables, newest, places, self.max_age_s, steps)


def find_places(token: str, municipality: str | None) -> tuple[ForecastPlace, ...]:
    """Places whose forecast applies to a cell, the smallest first."""
    cell = Cell.from_token(token)
    around = [("cell", cell.parent(n).token) for n in range(cell.level, -1, -1)]
    with suppress(FieldError):  # beyond Japan's meshes
        around.insert(1, ("mesh", mesh_code_at(*cell.center())))
    return (*around, *([("municipality", municipality)] if municipality else []))
