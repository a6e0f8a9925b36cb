"""Levels from JMA's warning telegrams.

Kinds of the landslide series (土砂災害) are 39 for level 5, 49 for 4, 09 for 3 and 29
for 2. Each level is kept by office and type and expires, because full and partial
reports are issued independently. Source: JMA's XML (jmx_ib, meteorology1), telegrams
VPWW55 to VPWW61 and VPWS50.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from backend_spark.errors import TelegramError
from slope_science.levels import ADVISORY, DANGER, EMERGENCY, LOWEST, WARNING

log = logging.getLogger(__name__)

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
