"""Places: districts and slopes with their households, shelter and contact.

`backend-spark places load` joins a file of the municipality, a table (CSV) or GeoJSON,
to analysis cells and stores the result; the console, reports and exports read it.

A row has a position, or the token of a cell; a feature of GeoJSON has a point, or a
polygon that lies in several cells. The columns have the names that municipalities use,
in Japanese or in English.
"""

import csv
import io
import json
import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from backend_spark.config import CONSOLE_FOLDER
from backend_spark.console.level_grid import headline_order
from backend_spark.errors import PlaceFileError
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError, shortened
from service_runtime.files import write_atomic
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell, cover_rectangle, distance_km
from spatial_mqtt.errors import PositionError

log = logging.getLogger(__name__)

PLACES_FILE: Final = "places.json"
"""Folder in the data folder, and file in it."""

MAX_BYTES: Final = 20_000_000
MAX_PLACES: Final = 20_000
MAX_CELLS: Final = 2_000
"""Cells of one polygon; a municipality of 1,700 km2 has as many."""

MAX_HOUSEHOLDS: Final = 1_000_000
MAX_TEXT: Final = 200
MAX_PROBLEMS: Final = 20
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "district": ("地区名", "地区", "行政区", "大字", "字"),
    "slope": ("斜面名", "斜面", "箇所名", "name"),
    "town": ("市町村名", "市町村", "町名", "municipality"),
    "households": ("世帯数", "戸数", "人家戸数"),
    "shelter": ("避難所", "避難場所", "避難先"),
    "contact": ("連絡先", "電話番号", "電話"),
    "node": ("観測点", "観測点名"),
    "latitude": ("緯度", "lat"),
    "longitude": ("経度", "lon", "lng"),
    "cell": ("セル", "s2_token"),
}
"""Columns, with the other names that they may have."""

_TEXTS: Final = ("slope", "town", "shelter", "contact", "node")
_NAMES: Final = {
    name: column for column, names in COLUMNS.items() for name in (column, *names)
}
_WGS84: Final = ("CRS84", "4326", "6668")
"""WGS 84 and JGD2011, which differ by less than a metre."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A slope or a part of a district.

    Attributes:
        district: Name of the district (地区).
        cells: Tokens of the analysis cells in which it lies.
        slope: Name of the slope; empty without one.
        town: Name of the municipality; empty where there is only one.
        households: Number of households in danger; None if unknown.
        shelter: Where its people go.
        contact: Person and telephone number.
        node: Name of the node on it; empty: the nodes in its cells.
        position: Latitude and longitude in degrees; None if given by cells.
    """

    district: str
    cells: tuple[str, ...]
    slope: str = ""
    town: str = ""
    households: int | None = None
    shelter: str = ""
    contact: str = ""
    node: str = ""
    position: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """District and slope."""
        return f"{self.district} {self.slope}".strip()


class Gazetteer:
    """Places by cell and by node.

    Args:
        places: All places.
    """

    def __init__(self, places: Sequence[Place] = ()) -> None:
        self.places = tuple(places)
        self._of_node = {place.node: place for place in places if place.node}

    @cached_property
    def _of_cell(self) -> Mapping[str, Sequence[Place]]:
        found: dict[str, list[Place]] = {}
        for place in self.places:
            for cell in place.cells:
                found.setdefault(cell, []).append(place)
        for each in found.values():
            each.sort(key=lambda place: (-(place.households or 0), place.name))
        return found

    @cached_property
    def districts(self) -> frozenset[str]:
        """Names of all districts."""
        return frozenset(place.district for place in self.places)

    def in_cell(self, cell: str) -> Sequence[Place]:
        """Places of a cell, the most households first."""
        return self._of_cell.get(cell, ())

    def name(self, cell: str) -> str:
        """Name of the first place of a cell, and the number of others; or empty."""
        places = self.in_cell(cell)
        if not places:
            return ""
        more = f" +{len(places) - 1}" if len(places) > 1 else ""
        return places[0].name + more

    def households(self, cell: str) -> int:
        """Known households in a cell."""
        return sum(place.households or 0 for place in self.in_cell(cell))

    def of_node(
        self, node: str, cell: str | None, position: tuple[float, float] | None
    ) -> Place | None:
        """Place of a node: the one that names it, or else the nearest in its cell."""
        if node in self._of_node:
            return self._of_node[node]
        free = [place for place in self.in_cell(cell or "") if not place.node]
        if position is None:
            return free[0] if free else None

        def distance(place: Place) -> float:
            there = place.position
            return 0.0 if there is None else distance_km(there, position)

        return min(free, key=distance, default=None)

    def roll_up(self, levels: Mapping[str, int]) -> list["DistrictLevel"]:
        """Highest level of each district, the highest first, then the most households.

        Args:
            levels: Level by cell as in the array of levels, of the cells that count.
        """
        found: dict[tuple[str, str], list[tuple[int, Place]]] = {}
        for place in self.places:
            shown = [levels[cell] for cell in place.cells if cell in levels]
            if shown:
                reached = max(shown, key=headline_order), place
                found.setdefault((place.town, place.district), []).append(reached)
        rows = [_worst_of(*key, reached) for key, reached in found.items()]
        rows.sort(key=lambda row: (row.households, row.name), reverse=True)
        return sorted(rows, key=lambda row: headline_order(row.level), reverse=True)

    def as_json(self, nodes: Iterable[tuple[str, Place | None]] = ()) -> dict[str, Any]:
        """For the pages: the places, and the number of the place of each node."""
        number = {id(place): at for at, place in enumerate(self.places)}
        of_node = {node: number[id(place)] for node, place in nodes if place}
        return {"places": self.places, "nodes": of_node}


NO_PLACES: Final = Gazetteer()


class DistrictLevel(msgspec.Struct, frozen=True):
    """A district with its highest level.

    Attributes:
        town: Name of the municipality; empty where there is only one.
        name: Name of the district.
        level: Its highest level, as in the array of levels.
        places: Number of its places at that level.
        households: Known households of these places.
    """

    town: str
    name: str
    level: int
    places: int
    households: int


def _worst_of(
    town: str, name: str, reached: Sequence[tuple[int, Place]]
) -> DistrictLevel:
    level = max((level for level, _ in reached), key=headline_order)
    worst = [place for at, place in reached if at == level]
    households = sum(place.households or 0 for place in worst)
    return DistrictLevel(town, name, level, len(worst), households)


def write_places(data: Path, places: Sequence[Place]) -> None:
    """Replace the stored places of a data folder atomically."""
    path = data / CONSOLE_FOLDER / PLACES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(places))


class StoredPlaces:
    """The stored places, read again when the file changes; without one there are none.

    Args:
        data: The data folder.
    """

    def __init__(self, data: Path) -> None:
        self._path = data / CONSOLE_FOLDER / PLACES_FILE
        self._version: tuple[int, int] | None = None
        self._gazetteer = Gazetteer()

    @property
    def now(self) -> Gazetteer:
        """The places; those of before while the file is damaged."""
        version = self._stat()
        if version != self._version:
            self._version = version
            self._gazetteer = Gazetteer(self._read())
        return self._gazetteer

    def _read(self) -> Sequence[Place]:
        if self._version is None:
            if self._gazetteer.places:
                log.warning("%s is missing: there are no places; load them", self._path)
            return ()
        try:
            return decode_json(self._path.read_bytes(), list[Place])
        except (OSError, *DECODE_ERRORS) as error:
            log.error("%s cannot be read: %s; load the places again", self._path, error)  # noqa: TRY400 - the error says it all
            return self._gazetteer.places

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size


@dataclass
class PlaceRows:
    """Places of a file with the mistakes in it.

    Attributes:
        places: Places without mistakes.
        problems: One sentence for each mistake, with its row.
        ignored: Names of columns that mean nothing here.
    """

    places: list[Place] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ignored: tuple[str, ...] = ()


def read_place_file(path: Path) -> PlaceRows:
    """Read places, each joined to its cells.

    Raises:
        PlaceFileError: The file cannot be read, or a row breaks a rule; nothing of the
            file should be used then.
    """
    text = _read_text(path)
    try:
        is_json = text.lstrip().startswith("{")
        rows = _read_geojson(text) if is_json else _read_csv(text)
    except FieldError as error:
        raise PlaceFileError(str(path), [str(error)]) from error
    if not rows.places and not rows.problems:
        rows.problems.append("rows must be at least one, got none; add the places")
    if rows.problems:
        more = len(rows.problems) - MAX_PROBLEMS
        shown = rows.problems[:MAX_PROBLEMS]
        raise PlaceFileError(
            str(path), [*shown, f"and {more} more"] if more > 0 else shown
        )
    return rows


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = f"must have at most {MAX_BYTES} bytes; split it by district"
            raise PlaceFileError(str(path), [problem])
        raw = path.read_bytes()
    except OSError as error:
        raise PlaceFileError(str(path), [f"cannot be read: {error}"]) from error
    for encoding in ("utf-8-sig", "cp932"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    problem = "must be UTF-8 or cp932 (Shift JIS); save it as CSV UTF-8"
    raise PlaceFileError(str(path), [problem])


def _read_csv(text: str) -> PlaceRows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = PlaceRows()
    try:
        lines = [(reader.line_num, line) for line in reader if any(line)]
    except csv.Error as error:
        raise FieldError(
            f"row {reader.line_num}", f"a line of CSV ({error})", "another", None
        ) from error
    head = lines[0][1] if lines else []
    columns = [_NAMES.get(_plain(name).lower()) for name in head]
    rows.ignored = tuple(n for n, c in zip(head, columns, strict=True) if n and not c)
    _check_columns(columns, head)
    for number, line in _bounded(lines[1:]):
        values = {c: v for c, v in zip(columns, line, strict=False) if c}
        _add(rows, f"row {number}", values, partial(_cells_of_row, values))
    return rows


def _check_columns(columns: Sequence[str | None], head: Sequence[str]) -> None:
    shown = ", ".join(head) or "none"
    for name in dict.fromkeys(c for c in columns if c):
        if columns.count(name) > 1:
            rule = f"there once ({', '.join((name, *COLUMNS[name]))})"
            raise FieldError(f"column {name}", rule, shown, "remove one")
    has_place = "cell" in columns or {"latitude", "longitude"} <= set(columns)
    if "district" not in columns or not has_place:
        rule = "地区名 (district), and 緯度, 経度 (latitude, longitude) or cell"
        raise FieldError("columns", rule, shown, "name them in the first row")


def _bounded(rows: Sequence[Any]) -> Sequence[Any]:
    if len(rows) > MAX_PLACES:
        rule = f"at most {MAX_PLACES}"
        raise FieldError("rows", rule, len(rows), "leave out what is no slope")
    return rows


def _read_geojson(text: str) -> PlaceRows:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FieldError("file", f"JSON ({error})", "another text") from error
    features = found.get("features")
    if found.get("type") != "FeatureCollection" or not isinstance(features, list):
        raise FieldError("type", "FeatureCollection", found.get("type"))
    _check_reference(found.get("crs"))
    rows, ignored = PlaceRows(), dict[str, None]()
    for number, feature in enumerate(_bounded(features), 1):
        given = feature.get("properties") if isinstance(feature, dict) else None
        given = given if isinstance(given, dict) else {}
        known = {name: _NAMES.get(_plain(name).lower()) for name in given}
        ignored |= dict.fromkeys(name for name, c in known.items() if not c)
        values = {c: _shown(given[name]) for name, c in known.items() if c}
        shape = feature.get("geometry") if isinstance(feature, dict) else None
        _add(rows, f"feature {number}", values, partial(_cells_of_shape, shape))
    rows.ignored = tuple(ignored)
    return rows


def _check_reference(crs: object) -> None:
    if crs is not None and not any(code in json.dumps(crs) for code in _WGS84):
        rule, remedy = "WGS 84 or JGD2011 in degrees", "export it as EPSG:4326"
        raise FieldError("crs", rule, crs, remedy)


def _add(
    rows: PlaceRows, where: str, values: Mapping[str, str], cells: "CellsOf"
) -> None:
    """Add a place, or its first mistake."""
    try:
        tokens, position = cells()
        place = Place(
            district=_district(values),
            cells=tokens,
            households=_households(values.get("households", "")),
            position=position,
            **{name: _text(values, name) for name in _TEXTS},
        )
        rows.places.append(place)
    except (FieldError, PositionError) as error:
        rows.problems.append(f"{where}: {error}")


def _district(values: Mapping[str, str]) -> str:
    district = _text(values, "district")
    if not district:
        rule, remedy = "given", "write the name of the district"
        raise FieldError("地区名 (district)", rule, "nothing", remedy)
    return district


Joined = tuple[tuple[str, ...], tuple[float, float] | None]
CellsOf = Callable[[], Joined]
"""Gives the cells and the position of a row."""


def _cells_of_row(values: Mapping[str, str]) -> Joined:
    token = _plain(values.get("cell", ""))
    if token:
        return (_analysis_cell(token),), None
    latitude = _degrees(values, "latitude", "緯度")
    longitude = _degrees(values, "longitude", "経度")
    cell = Cell.at(latitude, longitude, ANALYSIS_LEVEL)
    return (cell.token,), (latitude, longitude)


def _analysis_cell(token: str) -> str:
    cell = Cell.from_token(token)
    if cell.level < ANALYSIS_LEVEL:
        rule = f"an S2 cell of level {ANALYSIS_LEVEL} or more"
        raise FieldError("cell", rule, token, "give latitude and longitude instead")
    return cell.parent(ANALYSIS_LEVEL).token


def _degrees(values: Mapping[str, str], column: str, name: str) -> float:
    text = _plain(values.get(column, ""))
    rule, remedy = "degrees with decimals such as 33.575", "convert it, WGS 84 or JGD"
    try:
        return float(text)
    except ValueError as error:
        raise FieldError(f"{name} ({column})", rule, text or "nothing", remedy) from (
            error
        )


def _households(text: str) -> int | None:
    plain = _plain(text).replace(",", "").removesuffix("世帯").removesuffix("戸")
    if not plain:
        return None
    if not plain.isdecimal() or int(plain[:9]) > MAX_HOUSEHOLDS:
        rule = f"a whole number of 0 to {MAX_HOUSEHOLDS}, or empty"
        raise FieldError("世帯数 (households)", rule, text, "write digits only")
    return int(plain)


def _text(values: Mapping[str, str], column: str) -> str:
    text = " ".join(unicodedata.normalize("NFC", values.get(column, "")).split())
    if len(text) > MAX_TEXT:
        shown, rule = f"{COLUMNS[column][0]} ({column})", f"at most {MAX_TEXT} long"
        raise FieldError(shown, rule, text, "shorten it")
    return "".join(c for c in text if c.isprintable())


def _plain(text: str) -> str:
    """Text with half-width letters and digits, without blanks at its ends."""
    return unicodedata.normalize("NFKC", text).strip()


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _cells_of_shape(shape: object) -> Joined:
    kind = shape.get("type") if isinstance(shape, dict) else None
    where = shape.get("coordinates") if isinstance(shape, dict) else None
    if kind == "Point":
        longitude, latitude = _points([where])[0]
        cell = Cell.at(latitude, longitude, ANALYSIS_LEVEL)
        return (cell.token,), (latitude, longitude)
    if kind not in {"Polygon", "MultiPolygon"} or not isinstance(where, list):
        rule = "a Point, Polygon or MultiPolygon"
        raise FieldError("geometry", rule, kind, "draw the slope as one of these")
    polygons = [where] if kind == "Polygon" else where
    outlines = [_points(rings[0]) for rings in polygons if rings]
    found = {token for outline in outlines for token in _cells_within(outline)}
    if not found:
        raise FieldError("geometry", "a polygon with an outline", where)
    middle = np.mean(outlines[0], axis=0)
    return tuple(sorted(found)), (float(middle[1]), float(middle[0]))


def _points(pairs: object) -> list[tuple[float, float]]:
    """Points as longitude and latitude; a height is left out."""
    try:
        return [(float(p[0]), float(p[1])) for p in pairs]  # type: ignore[attr-defined]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        rule = "pairs of longitude and latitude in degrees"
        raise FieldError("coordinates", rule, shortened(pairs)) from error


def _cells_within(points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Tokens of the cells that a polygon touches; holes count as part of it."""
    longitudes, latitudes = zip(*points, strict=True)
    from matplotlib.path import Path as Outline  # noqa: PLC0415 - matplotlib is slow

    south_west = min(latitudes), min(longitudes)
    north_east = max(latitudes), max(longitudes)
    cells = cover_rectangle(south_west, north_east, ANALYSIS_LEVEL, max_cells=MAX_CELLS)
    outline = Outline([*points, points[0]], closed=True)
    for cell in cells:
        corners = [(longitude, latitude) for latitude, longitude in cell.corners()]
        edge = Outline([*corners, corners[0]], closed=True)
        if outline.intersects_path(edge, filled=True):
            yield cell.token
