"""Tables of criteria in the forms in which they are published, as plain rows.

Forms, recognised by their header without letter case, width and blanks:

* Prefectures (``dosyakei_*.csv``): 163 columns ``GRIDNO``, ``CITYCODE``, ``LEVEL1``
  (advisory), ``LEVEL2`` (warning), ``LEVEL3_00`` to ``LEVEL3_150`` (critical line) and
  others that are not used.
* JMA until May 2026 (``dosha_*.csv``): a title line, then
  地域メッシュコード（１km格子対応）, 土壌雨量指数基準（注意報） and
  土壌雨量指数基準（警報）.
* JMA since May 2026 (``2_1_*.csv`` level 5, ``2_2_*.csv`` level 4, ``2_3_*.csv`` level
  2): a title line that names the level, then 二次細分区域コ－ド, 格子番号 and
  60分雨量0ミリの時の土壌雨量指数 to 150ミリ.
* Our own: ``mesh`` or ``cell`` instead of ``GRIDNO``, ``municipality``, ``SPECIAL``,
  ``VERSION``, ``LOOK_AHEAD_H``, ``LINE_PERCENT``, ``TILT3_DEG_PER_H`` and
  ``TILT4_DEG_PER_H``.

999, 9999 and a dash (－) are "not judged"; 0 is "beyond the table". Encodings: UTF-8,
UTF-16 or cp932; separators: comma, tab or semicolon.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final

from backend_spark.errors import CriteriaTableError
from service_runtime.errors import FieldError
from slope_science.levels import (
    ADVISORY,
    DANGER,
    EMERGENCY,
    MAX_LINE_POINTS,
    NOT_JUDGED_MM,
    WARNING,
)

MAX_BYTES: Final = 400_000_000
"""All meshes of Japan with their lines are some 250 MB."""

MAX_TITLE_LINES: Final = 20
HIGHEST_MM: Final = 999.0
BEYOND_TABLE: Final = 0.0
_NOT_JUDGED: Final = {999.0, 9999.0}
_ENCODINGS: Final = ("utf-8-sig", "cp932")
_SEPARATORS: Final = ",\t;"

# A bar is what a program leaves of the two bytes of "－" in cp932, 81 7C.
_DASHES: Final = re.compile(r"[-|]+")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_ALIKE_DASHES: Final = str.maketrans(dict.fromkeys("−‐‑‒–—―ー─ｰ", "-"))
_CODE: Final = re.compile(r"[0-9]{8}")
_MESH: Final = re.compile(
    r"(third)?mesh_?(code|no|id)?|grid_?(no|code|id)?\.?"
    r"|.*(メッシュ|格子)(コ-ド|番号|no\.?)?(\(.*\))?"
)
_LINE: Final = re.compile(
    r"level3_(?P<mm>\d{2,3})"
    r"|60分(間)?(積算)?雨量\(?(?P<jma>\d{1,3})(ミリ|mm)\)?.*土壌雨量指数.*"
)
_MUNICIPALITY: Final = {
    *("municipality", "citycode", "二次細分区域コ-ド"),
    *("市町村コ-ド", "市町村等コ-ド", "市区町村コ-ド"),
}
_PLAIN_COLUMNS: Final = {
    "cell": "cell",
    "special": "special",
    "version": "version",
    "look_ahead_h": "look_ahead_h",
    "line_percent": "line_percent",
    "tilt3_deg_per_h": "tilt3_deg_per_h",
    "tilt4_deg_per_h": "tilt4_deg_per_h",
}
_LEVEL_COLUMNS: Final = {"level1": ADVISORY, "level2": WARNING}
_TOTALS: Final = {"合計", "計", "総計", "小計", "総合計", "total", "sum", "件数"}
_NOTE_STARTS: Final = ("#", "※", "注", "(注", "*注", "出典", "備考")
_TITLE_LEVELS: Final = (
    (EMERGENCY, ("レベル5", "特別警報")),
    (DANGER, ("レベル4", "危険警報", "警戒情報")),
    (ADVISORY, ("レベル2", "注意報")),
)
_FILE_LEVELS: Final = {"1": EMERGENCY, "2": DANGER, "3": ADVISORY}


NumberedLine = tuple[int, list[str]]


@dataclass(frozen=True)
class CriteriaColumns:
    """Places of the columns of one table.

    Attributes:
        names: Names as in the header.
        places: Use of a column (``mesh``, ``cell``, ``municipality``, ``special``,
            ``version`` and others of our own form) to its place.
        levels: Level to the place of its constant criterion.
        line: Places of the 151 points of a line; empty without.
        line_level: Level of that line.
        is_own: Whether the header is of our own form, where no mesh may be there twice.
    """

    names: Sequence[str]
    places: Mapping[str, int]
    levels: Mapping[int, int]
    line: tuple[int, ...] = ()
    line_level: int = DANGER
    is_own: bool = True


@dataclass(frozen=True)
class PublishedRow:
    """One row of a table.

    Attributes:
        line_number: Its line in the file.
        cells: Its texts.
        columns: Their meaning.
    """

    line_number: int
    cells: Sequence[str]
    columns: CriteriaColumns

    def text(self, use: str) -> str:
        """Text of a column by its use, in plain width; empty without."""
        place = self.columns.places.get(use, len(self.cells))
        return plain_text(self.cells[place]) if place < len(self.cells) else ""

    def criterion(self, place: int, least: float = 1.0) -> float:
        """Criterion in a column, `NOT_JUDGED_MM` where it is not judged.

        Raises:
            FieldError: It is no soil water index.
        """
        text = self.cells[place] if place < len(self.cells) else ""
        number = _parse_index(text)
        if number is None or not (number == NOT_JUDGED_MM or number >= least):
            rule = f"a soil water index of {least:g} to 999 mm"
            remedy = (
                None
                if text.strip()
                else "write 999 where the prefecture judges nothing"
            )
            raise FieldError(self.columns.names[place], rule, text.strip(), remedy)
        return number

    def line(self) -> tuple[float, ...]:
        """Line for 0, 1, 2 mm of rain and so on, up to the end of the table.

        Raises:
            FieldError: A point is no soil water index, or the line has a hole.
        """
        places = self.columns.line
        points = [self.criterion(place, least=0.0) for place in places]
        ends = {BEYOND_TABLE, NOT_JUDGED_MM}
        judged = [at for at, mm in enumerate(points) if mm not in ends]
        if not judged:
            return (NOT_JUDGED_MM,) if points else ()
        points = points[: judged[-1] + 1]
        for at, mm in enumerate(points):
            is_hole = mm == NOT_JUDGED_MM and at > judged[0]
            if mm == BEYOND_TABLE or is_hole:
                rule = "more than 0 mm before the end of the line"
                name = self.columns.names[places[at]]
                value = self.cells[places[at]].strip() if is_hole else 0
                remedy = "only the end is beyond the table"
                raise FieldError(name, rule, value, remedy)
        return tuple(points)


@dataclass
class PublishedTable:
    """Text of one file and its rows.

    Attributes:
        path: The file.
        encoding: Its encoding.
        title: Lines before the header.
        notes: Lines without a mesh: totals and remarks, by their number.
        problems: What is wrong with the file or its header, and with rows.
    """

    path: Path
    encoding: str = ""
    title: str = ""
    notes: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[PublishedRow]:
        """Rows with data, in the order of the file.

        Raises:
            CriteriaTableError: The file cannot be read.
        """
        text, self.encoding = read_text(self.path)
        reader = csv.reader(
            io.StringIO(text, newline=""), strict=True, delimiter=_separator(text)
        )
        lines = ((reader.line_num, cells) for cells in reader)
        try:
            yield from self._rows(lines)
        except csv.Error as error:
            problem = f"line {reader.line_num}: must be CSV: {error}"
            self.problems.append(problem)

    def _rows(self, lines: Iterator[NumberedLine]) -> Iterator[PublishedRow]:
        heading = self._heading(lines)
        if heading is None:
            return
        columns = heading
        for number, cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            row = PublishedRow(number, cells, columns)
            if self._is_mesh(row):
                yield row
                continue
            again = find_columns(cells, self._level())
            if again is not None:  # several files in one
                columns = again
            elif is_note(cells):
                note = " ".join(filter(None, map(plain_text, cells)))
                self.notes[number] = note
                self.title = note if "基準値" in note else self.title
            else:
                yield row

    def _heading(self, lines: Iterator[NumberedLine]) -> CriteriaColumns | None:
        first: list[str] | None = None
        for number, cells in lines:
            columns = find_columns(cells, self._level())
            if columns is not None:
                self.problems += [
                    f"line {number}: {problem}" for problem in _wrong_header(columns)
                ]
                return None if self.problems else columns
            if any(cell.strip() for cell in cells):
                first = first or [f"{number}", *map(plain_text, cells)]
                self.title += " ".join(filter(None, map(plain_text, cells))) + " "
            if number >= MAX_TITLE_LINES:
                break
        at, *names = first or ["1"]
        got = ", ".join(names[:8]) or "none"
        self.problems.append(
            f"line {at}: needs a column mesh or cell (GRIDNO, 格子番号, "
            "地域メッシュコード) and columns of criteria (LEVEL1, LEVEL2, "
            f"土壌雨量指数基準), got {got}"
        )
        return None

    def _level(self) -> int | None:
        """Level of the line by the title, or by JMA's name of the file."""
        for level, words in _TITLE_LEVELS:
            if any(word in self.title for word in words):
                return level
        named = re.match(r"2_([123])_", self.path.name)
        return _FILE_LEVELS[named[1]] if named else None

    @staticmethod
    def _is_mesh(row: PublishedRow) -> bool:
        return bool(_CODE.fullmatch(mesh_code(row.text("mesh"))) or row.text("cell"))


def plain_text(text: str) -> str:
    """Text with letters and digits of normal width, without blanks around it."""
    return unicodedata.normalize("NFKC", text.replace("\ufeff", "")).strip()


def mesh_code(text: str) -> str:
    """Code of a mesh as it may be written: 5133-77-85, 51337785.0 or in full width."""
    plain = plain_text(text).translate(_ALIKE_DASHES).replace("-", "").replace(" ", "")
    return re.sub(r"\.0+$", "", plain)


@lru_cache(maxsize=8192)
def _parse_index(text: str) -> float | None:
    """Soil water index of a text; None if it is none."""
    plain = plain_text(text).translate(_ALIKE_DASHES)
    if _DASHES.fullmatch(plain):
        return NOT_JUDGED_MM
    if not _NUMBER.fullmatch(plain):
        return None
    number = float(plain)
    if number in _NOT_JUDGED:
        return NOT_JUDGED_MM
    return number if number < HIGHEST_MM else None


def read_text(path: Path) -> tuple[str, str]:
    """Text of a file and its encoding.

    Raises:
        CriteriaTableError: It cannot be read, is too large, or in another encoding.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = f"must have at most {MAX_BYTES} bytes; cut it by area"
            raise CriteriaTableError(str(path), [problem])
        raw = path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; check criteria.file"
        raise CriteriaTableError(str(path), [problem]) from error
    for encoding in _encodings(raw):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        return text.removeprefix("\ufeff").rstrip("\x1a"), encoding.removesuffix("-sig")
    problem = "must be UTF-8, UTF-16 or cp932; save it as CSV UTF-8"
    raise CriteriaTableError(str(path), [problem])


def _encodings(raw: bytes) -> Sequence[str]:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ("utf-16",)
    sample = raw[:100_000]
    if b"\0" in sample:  # in no text of the others; digits have one in each character
        is_little = sample[1::2].count(0) > sample[::2].count(0)
        return ("utf-16-le" if is_little else "utf-16-be",)
    return _ENCODINGS


def _separator(text: str) -> str:
    head = text[:20_000]
    return max(_SEPARATORS, key=head.count)


def _key(name: str) -> str:
    """Name of a column without width, case, blanks and kinds of dashes."""
    plain = plain_text(name).casefold().translate(_ALIKE_DASHES)
    return "".join(plain.split())


def find_columns(
    names: Sequence[str], line_level: int | None
) -> CriteriaColumns | None:
    """Meaning of the columns of a header; None for a line that is none.

    Args:
        names: Cells of the line.
        line_level: Level of JMA's lines by the title; None if it names none.
    """
    places: dict[str, int] = {}
    levels: dict[int, int] = {}
    points: dict[int, int] = {}
    for place, name in enumerate(names):
        key = _key(name)
        if point := _LINE.fullmatch(key):
            points.setdefault(int(point["mm"] or point["jma"]), place)
            continue
        level = _level_of(key)
        if level is not None:
            levels.setdefault(level, place)
        elif use := _use_of(key):
            places.setdefault(use, place)
    if not {"mesh", "cell"} & set(places) or not (levels or points):
        return None
    named = [_key(names[place]).startswith("level3_") for place in points.values()]
    level = DANGER if all(named) else line_level or 0
    line = tuple(points[mm] for mm in sorted(points))
    plain_names = [plain_text(name) for name in names]
    is_own = bool({"mesh", "cell"} & set(map(_key, names)))
    return CriteriaColumns(plain_names, places, levels, line, level, is_own)


def _use_of(key: str) -> str | None:
    """Use of a column that is no criterion; None of one that is not used."""
    if key in _PLAIN_COLUMNS:
        return _PLAIN_COLUMNS[key]
    if key in _MUNICIPALITY:
        return "municipality"
    return "mesh" if _MESH.fullmatch(key) else None


def _level_of(key: str) -> int | None:
    """Level of a column with a constant criterion."""
    if key in _LEVEL_COLUMNS:
        return _LEVEL_COLUMNS[key]
    if "土壌雨量指数" not in key:  # not 表面雨量指数, 流域雨量指数
        return None
    if "特別警報" in key:
        return EMERGENCY
    if "注意報" in key:
        return ADVISORY
    is_other = any(word in key for word in ("危険警報", "警戒"))
    return WARNING if "警報" in key and not is_other else None


def _wrong_header(columns: CriteriaColumns) -> Iterator[str]:
    """What is wrong with a header."""
    got = ", ".join(columns.names[:8])
    keys = [_key(name) for name in columns.names]
    used = {*columns.places.values(), *columns.levels.values(), *columns.line}
    twice = sorted(columns.names[at] for at in used if keys.count(keys[at]) > 1)
    if twice:
        yield f"each column must be there once, got {twice[0]} twice"
    is_jma_line = columns.line and not keys[columns.line[0]].startswith("level3_")
    if not is_jma_line:
        for name, level in (("LEVEL1", ADVISORY), ("LEVEL2", WARNING)):
            if level not in columns.levels:
                yield f"needs a column {name}, got {got}"
    elif not columns.line_level:
        yield (
            "needs JMA's title line before it, which names the level of this line: "
            "レベル４土砂災害危険警報の基準値"
        )
    if columns.line and len(columns.line) != MAX_LINE_POINTS:
        found = {
            int(match["mm"] or match["jma"])
            for match in map(_LINE.fullmatch, keys)
            if match
        }
        missing = sorted(set(range(MAX_LINE_POINTS)) - found)
        where = f"LEVEL3_{missing[0]:02d} is missing" if missing else "more are there"
        yield f"needs LEVEL3_00 to LEVEL3_150 in order or none, {where}"


def is_note(cells: Sequence[str]) -> bool:
    """Whether a line is a total, a title or a remark instead of a mesh."""
    texts = [plain_text(cell) for cell in cells]
    words = [text for text in texts if text]
    if any("".join(word.split()).rstrip(":").casefold() in _TOTALS for word in words):
        return True
    is_single = len(words) == 1 and not any(char.isdigit() for char in words[0][:8])
    return words[0].startswith(_NOTE_STARTS) or is_single


def long_rows(row: PublishedRow) -> str | None:
    """First text beyond the last column of the header; None without any."""
    beyond = row.cells[len(row.columns.names) :]
    return next(chain((cell for cell in beyond if cell.strip()), [None]))
