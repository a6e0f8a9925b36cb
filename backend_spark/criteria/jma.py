"""Data of JMA: hourly rain of AMeDAS stations, and levels from warning telegrams.

AMeDAS (CSV in cp932): the header has a varying number of lines: stations, elements, and
which column is the number, its quality (品質情報), its homogeneity and whether nothing
was observed (現象なし情報). Hour 24 is the next day's 0. Source: files of JMA's
過去の気象データ・ダウンロード; quality 8 normal, 5 nearly normal, 4 insufficient, 2
doubtful, 1 missing, 0 not observed.

Telegrams: kinds of the landslide series (土砂災害) are 39 for level 5, 49 for 4, 09 for
3 and 29 for 2. Each level is kept by office and type and expires, because full and
partial reports are issued independently. Source: JMA's XML (jmx_ib, meteorology1),
telegrams VPWW55 to VPWW61 and VPWS50.
"""

import csv
import io
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from backend_spark.errors import RainTableError, TelegramError
from service_runtime.errors import FieldError
from slope_science import JST
from slope_science.levels import ADVISORY, DANGER, EMERGENCY, LOWEST, WARNING
from slope_science.quality import Flag

log = logging.getLogger(__name__)

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


LEVEL_BY_KIND: Final = {"39": EMERGENCY, "49": DANGER, "09": WARNING, "29": ADVISORY}
MAX_LEVEL_AGE_S: Final = 24 * 3600.0
"""Age after which a telegram without a successor no longer counts."""

MUNICIPAL_TYPE: Final = "気象警報・注意報（市町村等）"
MAX_TELEGRAM_BYTES: Final = 5_000_000
_TYPE: Final = re.compile(r"VP(?:WW(?:5[3-9]|6[01])|WS50)")
_JMX: Final = "{http://xml.kishou.go.jp/jmaxml1/}"
_HEAD: Final = "{http://xml.kishou.go.jp/jmaxml1/informationBasis1/}"
_BODY: Final = "{http://xml.kishou.go.jp/jmaxml1/body/meteorology1/}"


@dataclass(frozen=True)
class Telegram:
    """One report of one office.

    Attributes:
        office: Who issued it.
        kind: Its type, such as ``VPWW56``.
        reported_s: Unix time of the report.
        levels: Code of the municipality (class20) to the level of its landslide
            warning, 1 without one.
        counts: Whether it is in earnest: no drill, no test, not called off.
    """

    office: str
    kind: str
    reported_s: float
    levels: Mapping[str, int]
    counts: bool = True


def parse_telegram(name: str, raw: bytes) -> Telegram:
    """Read one telegram.

    Args:
        name: Of its file, which names the type, as JMA's feed does.
        raw: XML.

    Raises:
        TelegramError: It is none of these telegrams.
    """
    kind = _TYPE.search(name)
    if kind is None:
        raise TelegramError(name, "name must hold its type such as VPWW56")
    # JMA's are UTF-8; in UTF-16 a DTD would not be seen here.
    if len(raw) > MAX_TELEGRAM_BYTES or b"<!DOCTYPE" in raw or b"\0" in raw:
        rule = f"must be XML in UTF-8 without DTD, up to {MAX_TELEGRAM_BYTES} bytes"
        raise TelegramError(name, rule)
    try:
        # Entities need a DTD, which was refused.
        report = ET.fromstring(raw)  # noqa: S314
    except (ET.ParseError, ValueError, LookupError) as error:  # the last of encodings
        raise TelegramError(name, f"must be XML: {error}") from error
    status = report.findtext(f"{_JMX}Control/{_JMX}Status", "").strip()
    info = report.findtext(f"{_HEAD}Head/{_HEAD}InfoType", "").strip()
    return Telegram(
        report.findtext(f"{_JMX}Control/{_JMX}PublishingOffice", "").strip(),
        kind[0],
        _reported_s(name, report),
        _levels(report),
        status == "通常" and info != "取消",
    )


def _reported_s(name: str, report: ET.Element) -> float:
    when = report.findtext(f"{_HEAD}Head/{_HEAD}ReportDateTime", "").strip()
    try:
        reported = datetime.fromisoformat(when)
    except ValueError as error:
        problem = f"Head/ReportDateTime must be a time with its zone, got {when!r}"
        raise TelegramError(name, problem) from error
    if reported.tzinfo is None:
        raise TelegramError(name, f"Head/ReportDateTime must have a zone, got {when!r}")
    return reported.timestamp()


def _levels(report: ET.Element) -> dict[str, int]:
    levels: dict[str, int] = {}
    for warning in report.iterfind(f"{_BODY}Body/{_BODY}Warning"):
        if warning.get("type") != MUNICIPAL_TYPE:
            continue
        for item in warning.iterfind(f"{_BODY}Item"):
            codes = [
                code.text or ""
                for kind in item.iterfind(f"{_BODY}Kind")
                if kind.findtext(f"{_BODY}Status", "") != "解除"
                for code in kind.iterfind(f"{_BODY}Code")
            ]
            level = max([LOWEST, *(LEVEL_BY_KIND.get(code, LOWEST) for code in codes)])
            area = item.findtext(f"{_BODY}Area/{_BODY}Code", "").strip()
            levels[area] = max(level, levels.get(area, LOWEST))
    return levels


@dataclass
class TelegramFolder:
    """Folder of telegrams; each version of a file is read once.

    Attributes:
        folder: The folder.
    """

    folder: Path
    _read: dict[Path, tuple[tuple[int, int], Telegram | None]] = field(
        default_factory=dict
    )

    def read(self) -> list[Telegram]:
        """All telegrams that are there now; each unreadable file is logged once.

        Old ones too: late readings and a replay compute rows of any time.
        """
        found: dict[Path, tuple[tuple[int, int], Telegram | None]] = {}
        for path in sorted(self.folder.glob("*.xml")):
            try:
                stat = path.stat()
                stamp, known = (stat.st_mtime_ns, stat.st_size), self._read.get(path)
                if known is None or known[0] != stamp:
                    known = stamp, _try_parse(path)
            except OSError as error:  # the next reading tries again
                log.warning("telegram %s cannot be read: %s", path.name, error)
                continue
            found[path] = known
        self._read = found
        return [telegram for _, telegram in found.values() if telegram is not None]


@lru_cache(maxsize=4)
def telegrams_in(folder: Path) -> TelegramFolder:
    """The telegrams of a folder, which all Spark tasks of a process share."""
    return TelegramFolder(folder)


def _try_parse(path: Path) -> Telegram | None:
    try:
        return parse_telegram(path.name, path.read_bytes())
    except TelegramError as error:
        log.warning("%s", error)
        return None


def find_official_level(
    telegrams: Iterable[Telegram], municipality: str, at_s: float
) -> tuple[int, float] | None:
    """The level that JMA had issued for a municipality at a moment, and when.

    The highest of the newest reports of each office and type; None when no report
    names the municipality, or all are older than `MAX_LEVEL_AGE_S`.
    """
    newest: dict[tuple[str, str], Telegram] = {}
    for telegram in sorted(telegrams, key=lambda t: t.reported_s):
        is_known = telegram.reported_s <= at_s < telegram.reported_s + MAX_LEVEL_AGE_S
        if telegram.counts and is_known:
            newest[telegram.office, telegram.kind] = telegram
    found = [
        (t.levels[municipality], t.reported_s)
        for t in newest.values()
        if municipality in t.levels
    ]
    return max(found, default=None)
