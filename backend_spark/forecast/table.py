"""The table of forecasts: each issue once, known from the moment it was loaded."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable

from backend_spark.forecast.files import AHEAD_S, Row
from backend_spark.schemas import FORECASTS, UTC_TIME
from backend_spark.sinks.commits import commit_files, make_tables
from backend_spark.sinks.parts import write_part
from backend_spark.sinks.upkeep import keep_up
from backend_spark.tables import Tables
from slope_science.quality import Flag
from slope_science.rain_forecast import Piece, Run

NAME: Final = "forecasts"
DAY_S: Final = 86_400
_MICRO: Final = 1_000_000
_TOLD: Final = {Flag.SUSPECT, Flag.FAIL, Flag.MISSING}

Place = tuple[str, str]
"""``cell``, ``mesh`` or ``municipality``, and its token or code."""


def add(tables: Path, rows: Sequence[Row], file: str, known_s: float | None) -> int:
    """Add the issues that are not there yet, in one commit; gives their rows.

    An issue that is there stays as it is, whatever a later file says of it: what was
    judged by it must be found again.

    Args:
        tables: Folder of the tables; one process at a time writes this one.
        rows: Of one file.
        file: Its name.
        known_s: Unix time; None takes each as known since its issue.
    """
    make_tables(tables, [NAME])
    path = tables / NAME
    there = _issues(tables, min(row.issued_s for row in rows))
    new = [_record(row, file, known_s) for row in rows if row.run not in there]
    if new:
        part = write_part(path, pa.Table.from_pylist(new, FORECASTS), FORECASTS)
        commit_files(DeltaTable(str(path)), path, [part], CommitProperties())
        keep_up([path], DeltaTable(str(path)).version())
    return len(new)


def version(tables: Path) -> int | None:
    """Newest version of the table that has a forecast; None while there is none."""
    path = str(tables / NAME)
    if not DeltaTable.is_deltatable(path):
        return None
    table = DeltaTable(path)
    return table.version() if table.file_uris() else None


@lru_cache(maxsize=4096)
def runs(
    tables: Path, version: int, day: int, places: tuple[Place, ...]
) -> tuple[Run, ...]:
    """Issues for some places that became known on a day since 1970, in UTC.

    Args:
        tables: Folder of the tables.
        version: Of the table, so that an answer may be kept.
        day: Its number.
        places: In the order in which they are wanted.
    """
    whole = _day(tables, version, day)
    return tuple(
        run for place in places if place in whole for run in _runs(whole[place])
    )


@lru_cache(maxsize=8)
def _day(tables: Path, version: int, day: int) -> dict[Place, pa.Table]:
    """Rows that became known on a day, by their place."""
    known = ds.field("received_at")
    first, beyond = (pa.scalar(n * DAY_S * _MICRO, UTC_TIME) for n in (day, day + 1))
    dataset = Tables(tables).dataset(NAME, version)
    rows = dataset.to_table(filter=(known >= first) & (known < beyond)).cast(FORECASTS)
    found: dict[Place, list[int]] = {}
    pairs = zip(rows["kind"].to_pylist(), rows["place"].to_pylist(), strict=True)
    for at, place in enumerate(pairs):
        found.setdefault(place, []).append(at)
    return {place: rows.take(numbers) for place, numbers in found.items()}


def _runs(rows: pa.Table) -> Iterator[Run]:
    """Issues for one place."""
    times = ("issued_at", "received_at", "from_at", "at")
    seconds = {n: rows[n].cast(pa.int64()).to_pylist() for n in times}
    issues: dict[tuple[str, float], tuple[float, list[Piece]]] = {}
    told = rows.select(["source", "mm", "flag", "flag_why"]).to_pylist()
    for at, row in enumerate(told):
        issued_s, known_s, from_s, to_s = (seconds[n][at] / _MICRO for n in times)
        is_good = row["flag"] not in {Flag.FAIL, Flag.MISSING}
        why = row["flag_why"] if row["flag"] in _TOLD else None
        piece = Piece(from_s, to_s, row["mm"] if is_good else None, why)
        issue = issues.setdefault((row["source"], issued_s), (known_s, []))
        issue[1].append(piece)
    for (source, issued_s), (known_s, pieces) in issues.items():
        yield Run(source, issued_s, known_s, pieces)


def _issues(tables: Path, since_s: float) -> set[tuple[str, str, str, float]]:
    """Names of the issues that are there, as `Row.run`."""
    # Nothing is known much before its issue: files of earlier days stay closed.
    since = pa.scalar(round((since_s - AHEAD_S) * _MICRO), UTC_TIME)
    columns = ["kind", "place", "source", "issued_at"]
    recent = ds.field("received_at") >= since
    rows = Tables(tables).dataset(NAME).to_table(columns=columns, filter=recent)
    issued = rows["issued_at"].cast(pa.int64()).to_pylist()
    names = zip(*(rows[name].to_pylist() for name in columns[:3]), issued, strict=True)
    return {(*name[:3], name[3] / _MICRO) for name in names}


def _record(row: Row, file: str, known_s: float | None) -> dict[str, Any]:
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
