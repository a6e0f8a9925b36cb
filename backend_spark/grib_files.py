"""GRIB2 files of JMA's analyses: 1 km soil water index, and rain of the hour before.

Two products, one folder each, because JMA's file does not name its parameter in a
published table: ``SRF_GPV_Ggis1km_Psw_Aper10min_ANAL`` (soil water index) and
``SRF_GPV_Ggis1km_Prr60lv_ANAL`` (analysed rain, and its quick version of every
10 minutes). A file is used completely or not at all.

The sections are read here and not by ecCodes, because ecCodes 2.50 has no definition
of JMA's product template 4.50008 and refuses the message, and on damaged run lengths
of template 5.200 it ends the process or does not return (measured; see decision 42).
Other packings, such as those of files that wgrib2 or CDO has cut, are decoded by
ecCodes in a process of its own.

Source:
    気象庁「解析雨量を格納するGRIB2の書式」(2019), sections 0 to 8 and notes 1 to 7;
    国際気象通報式・別冊, templates 4.50008, 5.200 and 7.200.
"""

import hashlib
import math
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from backend_spark.errors import AnalysisFileError
from backend_spark.scoring.observation import STEP_S
from service_runtime.errors import FieldError

CENTRE_TOKYO: Final = 34
RUN_LENGTH: Final = 200
POINT_IN_TIME: Final = 0
INTERVALS: Final = frozenset({8, 50_008})
"""Product templates of a statistic over an interval; 50008 is JMA's, for rain."""

ROWS_PER_DEG: Final = 120
COLUMNS_PER_DEG: Final = 80
"""Third meshes (JIS X 0410) per degree."""

ECCODES_S: Final = 120.0
MAX_POINTS: Final = 10_000_000
"""JMA's area has 8,601,600; damaged numbers must not fill the memory."""

MAX_DIGITS: Final = 24
"""Longest run length in digits: all of Japan's 8,601,600 points in base 2."""

_UNIT_S: Final = {0: 60, 1: 3600, 13: 1}
_DAMAGED: Final = "copy the file again from its source"
_SHORTEST: Final = {0: 16, 1: 21, 3: 72, 4: 34, 5: 12, 6: 6, 7: 5}

MAX_BYTES: Final = 200_000_000
MAX_CLOCK_ERROR_S: Final = 600.0
MAX_RAIN_MM: Final = 300.0
"""In an hour; JMA's highest level is 255 mm, Japan's record 153 mm."""

MAX_INDEX_MM: Final = 999.0
HOUR_S: Final = 3600.0
HOURLY_RAIN: Final = (0, 1, frozenset({8, 200}))
"""Discipline, category and parameters: total precipitation, or JMA's level values."""

TOTAL, TANK = 200, 201
"""First fixed surfaces of the soil water index, by JMA: all tanks, and one of them."""

OTHER_INDICES: Final = ("_Pfpi", "_Proi", "_Jdosha")
"""In names of JMA's files with other indices on the same grid."""


@dataclass(frozen=True)
class MeshGrid:
    """Grid of third meshes from its north-western corner.

    Attributes:
        north_row: Number of the first row, in meshes north of the equator.
        west_column: Number of the first column, in meshes east of 100 deg.
        rows: Number of rows, to the south.
        columns: Number of columns, to the east.
    """

    north_row: int
    west_column: int
    rows: int
    columns: int


@dataclass(frozen=True)
class GribField:
    """One field of a message.

    Attributes:
        discipline: Octet 7 of section 0.
        category: Parameter category.
        number: Parameter number.
        surface: Type of the first fixed surface.
        status: Production status: 0 is operational.
        reference_s: Unix time of reference.
        from_s: Unix time of the start of the interval; None for a moment.
        at_s: Unix time of the end of the interval, or the moment.
        grid: Its grid.
        sections: Bytes of sections 1, 3, 4, 5, 6 and 7.
    """

    discipline: int
    category: int
    number: int
    surface: int
    status: int
    reference_s: float
    from_s: float | None
    at_s: float
    grid: MeshGrid
    sections: dict[int, bytes]

    def values(self) -> np.ndarray:
        """Values as rows from the north, columns from the west; nan is missing.

        Raises:
            FieldError: The data are damaged, or cannot be decoded.
        """
        packing = _uint(self.sections[5], 10, 2)
        points = self.grid.rows * self.grid.columns
        if packing == RUN_LENGTH:
            flat = unpack_run_lengths(self.sections[5], self.sections[7], points)
        else:
            flat = _decode_elsewhere(self, packing)
        if len(flat) != points:
            rule = f"values of the grid's {points} points"
            raise FieldError("section 7", rule, len(flat), _DAMAGED)
        return flat.reshape(self.grid.rows, self.grid.columns)


def read_fields(data: bytes) -> Iterator[GribField]:
    """Fields of all messages of a file.

    Raises:
        FieldError: The file is no GRIB2, is damaged, or has another kind of grid.
    """
    at = data.find(b"GRIB", 0, 128)  # a bulletin header may come first
    if at < 0:
        raise FieldError("file", "GRIB2: 'GRIB' near its start", data[:16])
    while at >= 0:
        length = _message_length(data, at)
        yield from _message_fields(data[at : at + length])
        at = data.find(b"GRIB", at + length)


def _message_length(data: bytes, at: int) -> int:
    if len(data) < at + _SHORTEST[0]:
        raise FieldError("file", "complete", f"{len(data)} bytes", _DAMAGED)
    edition, length = data[at + 7], _uint(data[at:], 9, 8)
    if edition != 2:  # noqa: PLR2004 - GRIB2
        raise FieldError("GRIB edition", "2", edition)
    if at + length > len(data):
        value = f"{len(data) - at} bytes"
        raise FieldError("file", f"complete: {length} bytes", value, _DAMAGED)
    if length < _SHORTEST[0] + 4 or data[at + length - 4 : at + length] != b"7777":
        raise FieldError("end of the message", "'7777'", data[-4:], _DAMAGED)
    return length


def _message_fields(message: bytes) -> Iterator[GribField]:
    """Fields of a message: sections 4 to 7 may be repeated."""
    sections: dict[int, bytes] = {}
    at, end = _SHORTEST[0], len(message) - 4
    while at < end:
        length, number = _uint(message[at : at + 5], 1, 4), message[at + 4]
        least = _SHORTEST.get(number, 5)
        if at + length > end or length < least:
            rule = f"of {least} to {end - at} bytes"
            raise FieldError(f"section {number}", rule, length, _DAMAGED)
        sections[number] = message[at : at + length]
        at += length
        if number == 7:  # noqa: PLR2004 - the data end a field
            yield _field(message[6], sections)


def _field(discipline: int, sections: dict[int, bytes]) -> GribField:
    missing = [str(n) for n in (1, 3, 4, 5, 6) if n not in sections]
    if missing:
        rule = "in the message before section 7"
        raise FieldError(f"section {missing[0]}", rule, None, _DAMAGED)
    first, product = sections[1], sections[4]
    centre = _uint(first, 6, 2)
    if centre != CENTRE_TOKYO:
        raise FieldError("originating centre", f"{CENTRE_TOKYO} (JMA, Tokyo)", centre)
    reference_s = _time(first, 13, "reference time")
    from_s, at_s = _interval(product, reference_s)
    return GribField(
        discipline,
        product[9],
        product[10],
        product[22],
        first[19],
        reference_s,
        from_s,
        at_s,
        _grid(sections[3]),
        dict(sections),
    )


def _interval(product: bytes, reference_s: float) -> tuple[float | None, float]:
    """Start and end of the product's interval; no start for a moment."""
    template = _uint(product, 8, 2)
    if template == POINT_IN_TIME:
        ahead_s = _signed(product, 19) * _unit_s(product[17])
        return None, reference_s + ahead_s
    if template not in INTERVALS:
        rule = "0, 8 or 50008: an analysis"
        raise FieldError("product definition template", rule, template)
    if len(product) < 58:  # noqa: PLR2004 - octets of template 8
        raise FieldError("section 4", "58 bytes or more", len(product), _DAMAGED)
    at_s = _time(product, 35, "end of the interval")
    return at_s - _uint(product, 50, 4) * _unit_s(product[48]), at_s


def _unit_s(unit: int) -> int:
    if unit not in _UNIT_S:
        raise FieldError("unit of time", "0, 1 or 13 (minute, hour, second)", unit)
    return _UNIT_S[unit]


def _grid(section: bytes) -> MeshGrid:
    template, scan = _uint(section, 13, 2), section[71]
    if template != 0:
        rule = "0 (latitude and longitude)"
        raise FieldError("grid definition template", rule, template)
    if scan != 0:
        raise FieldError("scanning mode", "0 (from the north-west)", scan)
    columns, rows = _uint(section, 31, 4), _uint(section, 35, 4)
    points = _uint(section, 7, 4)
    if columns * rows != points or not 0 < points <= MAX_POINTS:
        rule = f"{columns} columns times {rows} rows, up to {MAX_POINTS}"
        raise FieldError("number of points", rule, points, _DAMAGED)
    # The increments have six decimals, too few for a thousand rows (note 3).
    north, west, south, east = (_uint(section, n, 4) / 1e6 for n in (47, 51, 56, 60))
    row = _number("latitude", north, ROWS_PER_DEG)
    column = _number("longitude", west - 100, COLUMNS_PER_DEG)
    last = _number("latitude", south, ROWS_PER_DEG)
    if (
        row - last != rows - 1
        or _number("longitude", east - 100, COLUMNS_PER_DEG) - column != columns - 1
    ):
        rule = "third meshes of 30 x 45 seconds, about 1 km"
        raise FieldError("grid", rule, (rows, columns, north, west, south, east))
    return MeshGrid(row, column, rows, columns)


def _number(name: str, degrees: float, per_degree: int) -> int:
    """Number of the row or column whose centre is at an angle."""
    number = degrees * per_degree - 0.5
    if abs(number - round(number)) > 0.01:  # noqa: PLR2004 - of a mesh
        rule = "the centre of a third mesh (30 x 45 seconds, about 1 km)"
        remedy = "use the 1 km product, not that of 5 km"
        raise FieldError(name, rule, degrees, remedy)
    return round(number)


def _time(section: bytes, octet: int, name: str) -> float:
    parts = struct.unpack_from(">HBBBBB", section, octet - 1)
    year, month, day, hour, minute, second = parts
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        return at.timestamp()
    except ValueError as error:
        raise FieldError(name, "a date and time", parts, _DAMAGED) from error


def _uint(section: bytes, octet: int, size: int) -> int:
    return int.from_bytes(section[octet - 1 : octet - 1 + size], "big")


def _signed(section: bytes, octet: int) -> int:
    """Four octets; the highest bit is the sign."""
    number = _uint(section, octet, 4)
    return -(number & 0x7FFF_FFFF) if number & 0x8000_0000 else number


def unpack_run_lengths(section5: bytes, section7: bytes, points: int) -> np.ndarray:
    """Values of template 5.200; level 0 is missing (nan).

    A unit up to the greatest level V is a level. Units above V that follow are the
    digits of its run length less one, the lowest first, in base 2^bits - 1 - V.

    Args:
        section5: Data representation.
        section7: Data.
        points: Number of points.

    Raises:
        FieldError: The levels or the runs are damaged.
    """
    bits, used, known = section5[11], _uint(section5, 13, 2), _uint(section5, 15, 2)
    base = 2**bits - 1 - used
    if bits not in {8, 16} or base < 1 or used > known:
        rule = "of 8 or 16 bits, with its greatest level below 2^bits - 1"
        raise FieldError("section 5", rule, (bits, used, known), _DAMAGED)
    if len(section5) < 17 + 2 * known or (len(section7) - 5) % (bits // 8):
        rule = f"as long as its {known} levels, and section 7 whole units"
        raise FieldError("section 5", rule, len(section5), _DAMAGED)
    units = np.frombuffer(section7[5:], f">u{bits // 8}")
    starts = np.flatnonzero(units <= used)
    if not starts.size or starts[0] != 0:
        raise FieldError("section 7", "begun by a level", units[:4], _DAMAGED)
    runs = _run_lengths(units, starts, used, base)
    if runs.sum() != points:
        rule = f"runs of {points} points in all"
        raise FieldError("section 7", rule, float(runs.sum()), _DAMAGED)
    levels = _level_values(section5, known)
    return np.repeat(levels[units[starts]], runs.astype(np.int64))


def _run_lengths(
    units: np.ndarray, starts: np.ndarray, used: int, base: int
) -> np.ndarray:
    """Number of points of each level, as floats, which do not overflow."""
    sizes = np.diff(np.append(starts, len(units)))
    if sizes.max() > MAX_DIGITS + 1 and base > 1:
        rule = f"of run lengths up to {MAX_DIGITS} digits"
        raise FieldError("section 7", rule, int(sizes.max()) - 1, _DAMAGED)
    digit = np.arange(len(units)) - np.repeat(starts, sizes) - 1
    digits = np.where(units > used, units.astype(np.float64) - used - 1, 0.0)
    return 1 + np.add.reduceat(digits * float(base) ** np.maximum(digit, 0), starts)


def _level_values(section5: bytes, known: int) -> np.ndarray:
    """Value of each level; the highest bit of a stored value is the sign."""
    stored = np.frombuffer(section5, ">u2", known, 17).astype(np.float64)
    signed = np.where(stored >= 2**15, 2**15 - stored, stored)
    scale = section5[16]
    exponent = 128 - scale if scale >= 128 else scale  # noqa: PLR2004 - sign bit
    if abs(exponent) > 3:  # noqa: PLR2004 - JMA uses 0 and 1
        raise FieldError("decimal scale factor", "from -3 to 3", exponent, _DAMAGED)
    if np.any(np.diff(signed) < 0):
        rule = "ascending, as those of rain and of the total index are"
        raise FieldError("values of the levels", rule, signed[:6], _DAMAGED)
    return np.concatenate([[math.nan], signed / 10.0**exponent])


_ECCODES_PROGRAM: Final = """
import sys
import eccodes
import numpy
handle = eccodes.codes_new_from_message(sys.stdin.buffer.read())
eccodes.codes_set(handle, "missingValue", 1e20)
values = eccodes.codes_get_values(handle)
values = numpy.where(values == 1e20, numpy.nan, values).astype("<f8")
sys.stdout.buffer.write(b"values" + values.tobytes())
"""


def _decode_elsewhere(field: GribField, packing: int) -> np.ndarray:
    """Values of another packing, by ecCodes in a process that may fail."""
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _ECCODES_PROGRAM],
            input=_plain_message(field),
            capture_output=True,
            timeout=ECCODES_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise _not_decoded(packing, lines[-1] if lines else str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _not_decoded(packing, f"no answer in {ECCODES_S:.0f} s") from error
    _, _, values = done.stdout.partition(b"values")
    return np.frombuffer(values, "<f8")


def _not_decoded(packing: int, why: str) -> FieldError:
    rule = "200 (run length) or one that ecCodes decodes"
    remedy = f"{_DAMAGED}; ecCodes: {why}"
    return FieldError("data representation template", rule, packing, remedy)


def _plain_message(field: GribField) -> bytes:
    """The field as a message of its own, with a product template that ecCodes knows."""
    product = field.sections[4]
    plain = struct.pack(">IBHH", 34, 4, 0, 0) + product[9:34]
    parts = [field.sections[n] for n in (1, 3)]
    parts += [plain, *(field.sections[n] for n in (5, 6, 7)), b"7777"]
    body = b"".join(parts)
    head = b"GRIB\xff\xff" + bytes([field.discipline, 2])
    return head + struct.pack(">Q", _SHORTEST[0] + len(body)) + body


class Product(StrEnum):
    """What a file contains; the value is stored."""

    SOIL_WATER = "soil_water"
    RAIN = "rain"


@dataclass(frozen=True)
class Analysis:
    """One field of a file.

    Attributes:
        product: What it is.
        at_s: Unix time for which it applies; of rain, the end of its hour.
        reference_s: Unix time of reference.
        issue: Digest of the file; the same file again is no new issue.
        grid: Its grid.
        values_mm: Rows from the north, columns from the west; nan is missing.
    """

    product: Product
    at_s: float
    reference_s: float
    issue: str
    grid: MeshGrid
    values_mm: np.ndarray

    def at_meshes(self, meshes: np.ndarray) -> np.ndarray:
        """Values in mm at third meshes, given by their codes as integers."""
        rows, columns = mesh_rows_and_columns(meshes)
        down, right = self.grid.north_row - rows, columns - self.grid.west_column
        inside = (down >= 0) & (down < self.grid.rows)
        inside &= (right >= 0) & (right < self.grid.columns)
        found = np.full(len(meshes), np.nan)
        found[inside] = self.values_mm[down[inside], right[inside]]
        return found


def mesh_rows_and_columns(meshes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows north of the equator and columns east of 100 deg of third meshes."""
    codes = meshes.astype(np.int64)
    first, east = codes // 10**6, codes // 10**4 % 100
    row = (first * 8 + codes // 1000 % 10) * 10 + codes // 10 % 10
    column = (east * 8 + codes // 100 % 10) * 10 + codes % 10
    return row, column


def digest(data: bytes) -> str:
    """Short digest of a file."""
    return hashlib.sha256(data).hexdigest()[:16]


def time_of(data: bytes, product: Product) -> float | None:
    """Unix time for which a file applies, without its values; None if it is invalid."""
    try:
        return _select(list(read_fields(data)), product).at_s
    except FieldError:
        return None


def read_analysis(
    path: Path, data: bytes, product: Product, now_s: float, meshes: np.ndarray
) -> Analysis:
    """Read the analysis in a file.

    Args:
        path: The file, for its name.
        data: Its bytes.
        product: Product of its folder.
        now_s: Unix time; no analysis is for a later one.
        meshes: Codes of the meshes of interest.

    Raises:
        AnalysisFileError: Field, rule, value and remedy.
    """
    try:
        _check_name(path.name, product)
        field = _select(list(read_fields(data)), product)
        _check(field, product, now_s)
        values = field.values()
        _check_range(values, product)
        analysis = Analysis(
            product, field.at_s, field.reference_s, digest(data), field.grid, values
        )
        _check_area(analysis, meshes)
    except FieldError as error:
        raise AnalysisFileError(str(path), [str(error)]) from error
    return analysis


def _check_name(name: str, product: Product) -> None:
    rain, index = "_Prr" in name, "_Psw" in name
    is_wrong = rain if product is Product.SOIL_WATER else index
    if is_wrong or any(other in name for other in OTHER_INDICES):
        rule = f"that of a file of {product.value.replace('_', ' ')}"
        raise FieldError("file name", rule, name, "move it to the other folder")
    if "_FH" in name:
        remedy = "use the file of the analysis (ANAL)"
        raise FieldError("file name", "that of an analysis", name, remedy)


def _select(fields: Sequence[GribField], product: Product) -> GribField:
    """The field of the product; of the index's three, the total."""
    if product is Product.SOIL_WATER:
        totals = [field for field in fields if field.surface == TOTAL]
        others = [field for field in fields if field.surface != TANK]
        fields = totals or others
    if len(fields) != 1:
        rule = f"one of {product.value.replace('_', ' ')}"
        raise FieldError("number of fields", rule, len(fields), "give a file for each")
    return fields[0]


def _check(field: GribField, product: Product, now_s: float) -> None:
    kind = (field.discipline, field.category, field.number)
    discipline, category, numbers = HOURLY_RAIN
    is_rain = kind[:2] == (discipline, category) and field.number in numbers
    if (product is Product.RAIN) != is_rain or (field.from_s is None) == is_rain:
        rule = "0, 1 and 200 over an interval (hourly rain) in the folder of rain, and "
        rule += "another at one moment in the folder of the soil water index"
        remedy = "move it to the other folder, or remove it"
        raise FieldError("discipline, category and parameter", rule, kind, remedy)
    if field.from_s is not None and field.at_s - field.from_s != HOUR_S:
        minutes = (field.at_s - field.from_s) / 60
        raise FieldError("interval", "of 60 minutes", f"{minutes:g} min")
    if field.status != 0:
        rule, remedy = "0 (operational)", "test products are not scored"
        raise FieldError("production status", rule, field.status, remedy)
    if field.at_s > field.reference_s:
        remedy = "forecasts are loaded by 'forecast load'"
        rule = "at its reference time: an analysis"
        raise FieldError("time", rule, _iso(field.at_s), remedy)
    if field.at_s > now_s + MAX_CLOCK_ERROR_S:
        remedy = "look at this machine's clock"
        raise FieldError("time", "in the past", _iso(field.at_s), remedy)
    if field.at_s % STEP_S:
        raise FieldError("time", "a full ten minutes", _iso(field.at_s))


def _check_range(values_mm: np.ndarray, product: Product) -> None:
    limit_mm = MAX_RAIN_MM if product is Product.RAIN else MAX_INDEX_MM
    known = values_mm[np.isfinite(values_mm)]
    if known.size and not (known.min() >= 0 and known.max() <= limit_mm):
        worst = float(known.min() if known.min() < 0 else known.max())
        rule = f"from 0 to {limit_mm:g} mm"
        raise FieldError("values", rule, worst, "the file is damaged, or no such rain")


def _check_area(analysis: Analysis, meshes: np.ndarray) -> None:
    rows, columns = mesh_rows_and_columns(meshes)
    down = analysis.grid.north_row - rows
    right = columns - analysis.grid.west_column
    inside = (down >= 0) & (down < analysis.grid.rows) & (right >= 0)
    if not np.any(inside & (right < analysis.grid.columns)):
        rule = f"around one of the {len(meshes)} meshes of the criteria and the nodes"
        remedy = "set criteria.file, or use the file of this area"
        raise FieldError("area", rule, analysis.grid, remedy)


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()
