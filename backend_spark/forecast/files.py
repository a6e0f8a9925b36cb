"""Rain forecasts from a file: CSV with a header, or a JSON list of objects.

Columns: ``source`` (issuer), ``issued_at``, ``from`` and ``to`` (ISO 8601 with
a zone), ``mm`` (depth in that interval, empty: missing), one of ``node_cell`` (S2 token
of level 13 or coarser), ``mesh`` (third mesh) and ``municipality`` (JMA's code), and if
the source gives one ``flag`` (QARTOD: 1, 2, 3, 4 or 9).
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from backend_spark.criteria.tables import check_mesh
from backend_spark.errors import ForecastFileError
from service_runtime.errors import FieldError
from slope_science.quality import (
    NOT_EVALUATED,
    Flag,
    Verdict,
    check_rain_depth,
    worst_verdict,
)
from slope_science.reason_codes import ReasonCode
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
