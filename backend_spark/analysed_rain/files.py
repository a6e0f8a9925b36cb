"""Files of JMA's analyses: 1 km soil water index, and rain of the hour before.

Two products, one folder each, because JMA's file does not name its parameter in a
published table: ``SRF_GPV_Ggis1km_Psw_Aper10min_ANAL`` (soil water index) and
``SRF_GPV_Ggis1km_Prr60lv_ANAL`` (analysed rain, and its quick version of every
10 minutes). A file is used completely or not at all.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np

from backend_spark.analysed_rain.grib import GribField, MeshGrid, read_fields
from backend_spark.errors import AnalysisFileError
from backend_spark.scoring.observation import STEP_S
from service_runtime.errors import FieldError

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
