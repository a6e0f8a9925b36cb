"""Overlays of the map: files of a municipality, checked, kept, and searched for names.

A file (GeoJSON, zipped Shapefile, CSV list of places) becomes one GeoJSON collection
whose features have a name and a kind. Files of the National Land Numerical Information
(国土数値情報) are known by their columns: the zones of the Sediment Disaster Prevention
Act (A33, product specification 1.3,
https://nlftp.mlit.go.jp/ksj/gml/datalist/KsjTmplt-A33-v1_3.html), whose code
separates warning zones from special warning zones.

The journal holds an entry for each overlay that is added or removed; the collection
lies beside it in a file named by its hash, so that a change of the file shows.
"""

import csv
import gzip
import hashlib
import io
import logging
import math
import threading
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import shapefile

from backend_spark.console.audit_log import Journal, JournalEntry
from service_runtime.decoding import DECODE_ERRORS, decode_json
from service_runtime.errors import FieldError, shortened
from service_runtime.files import write_atomic

KINDS: Final = ("warning_zone", "special_zone", "shelter", "road", "district", "place")
"""土砂災害警戒区域, 土砂災害特別警戒区域, shelters, roads, 字, names to search for."""

RULE: Final = "a GeoJSON file, a zipped Shapefile, or a CSV list with 緯度 and 経度"
MAX_FILE_BYTES: Final = 20_000_000
MAX_UNPACKED_BYTES: Final = 80_000_000
MAX_FEATURES: Final = 60_000
MAX_POINTS: Final = 300_000
MAX_LONGITUDE, MAX_LATITUDE = 180.0, 90.0
MAX_NAME: Final = 100
DECIMALS: Final = 6
"""Decimals of coordinates in degrees: a resolution of 0.1 m."""

DEGREES_RULE: Final = "longitude and latitude in degrees (WGS 84 or JGD2011)"
CONVERT: Final = "convert it with: ogr2ogr -t_srs EPSG:4326 new.geojson OLD"

ZONE_COLUMN: Final = "A33_002"
SPECIAL_ZONES: Final = {"2", "4"}
"""特別警戒区域: designated, and before its designation."""

NAME_COLUMNS: Final = (
    *("name", "Name", "NAME", "名称", "施設名", "施設・場所名", "避難所名", "地名"),
    *("地区名", "字名", "町丁目名", "路線名", "区域名", "A33_005", "P20_002"),
    *("S_NAME", "KOAZA_NAME", "住所", "所在地"),
)
LABEL: Final = "label"
"""Property of a point that was added for a name."""

ADDRESS_COLUMNS: Final = (
    *("市区町村名", "大字・丁目名", "大字町丁目名"),
    *("小字・通称名", "街区符号・地番", "街区符号又は地番"),
)
LATITUDES: Final = ("緯度", "latitude", "lat", "Latitude", "LAT", "Y")
LONGITUDES: Final = ("経度", "longitude", "lon", "lng", "Longitude", "LON", "X")
PARTS: Final = {
    "Point": 0,
    "MultiPoint": 1,
    "LineString": 1,
    "MultiLineString": 2,
    "Polygon": 2,
    "MultiPolygon": 3,
}
"""Geometries with the number of lists around a position."""

Feature = dict[str, Any]


def read_overlay(raw: bytes, kind: str) -> dict[str, Any]:
    """Make one collection of a file.

    Args:
        raw: The file.
        kind: One of `KINDS`.

    Raises:
        FieldError: The file is of another form, too large, or not in degrees.
    """
    if kind not in KINDS:
        raise FieldError("kind", f"one of {', '.join(KINDS)}", kind, "")
    if len(raw) > MAX_FILE_BYTES:
        rule = f"a file of at most {MAX_FILE_BYTES} bytes"
        raise FieldError("file", rule, str(len(raw)), "split it, or simplify its lines")
    features = _Budget(kind).checked(_features(raw))
    if not features:
        raise FieldError("file", "at least one feature with a place", "none", RULE)
    labels = [label for each in features if (label := _label(each))]
    return {"type": "FeatureCollection", "features": features + labels}


def _label(feature: Feature) -> Feature | None:
    """Point that carries the name of a district.

    The map draws areas by tiles, and would write the name once in each of them.
    """
    columns, geometry = feature["properties"], feature["geometry"]
    if columns["kind"] != "district" or not columns["name"]:
        return None
    point = {"type": "Point", "coordinates": middle(geometry["coordinates"])}
    return {"type": "Feature", "properties": columns | {LABEL: 1}, "geometry": point}


def middle(coordinates: list[Any]) -> tuple[float, float]:
    """Middle of the box around a geometry."""
    points = list(_flat(coordinates))
    longitudes, latitudes = zip(*points, strict=True)
    return (
        round((min(longitudes) + max(longitudes)) / 2, DECIMALS),
        round((min(latitudes) + max(latitudes)) / 2, DECIMALS),
    )


def _flat(coordinates: list[Any]) -> Iterator[tuple[float, float]]:
    if coordinates and not isinstance(coordinates[0], list):
        yield coordinates[0], coordinates[1]
        return
    for each in coordinates:
        yield from _flat(each)


def _features(raw: bytes) -> Iterable[Feature]:
    if raw.startswith(b"PK"):
        return _shapefile(raw)
    if raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _geojson(raw)
    return _csv(raw)


@dataclass
class _Budget:
    """Checks features, and counts them and their points."""

    kind: str
    features: int = 0
    points: int = 0

    def checked(self, found: Iterable[Feature]) -> list[Feature]:
        """The features with their name and kind, without other properties."""
        return [made for each in found if (made := self._feature(each))]

    def _feature(self, feature: Feature) -> Feature | None:
        self.features += 1
        if self.features > MAX_FEATURES:
            raise FieldError(
                "file", f"at most {MAX_FEATURES} features", str(self.features), ""
            )
        geometry, columns = feature.get("geometry"), feature.get("properties")
        if geometry is None:
            return None
        if not isinstance(geometry, dict) or geometry.get("type") not in PARTS:
            rule = f"geometries of the types {', '.join(PARTS)}"
            raise FieldError("file", rule, shortened(geometry), "")
        depth = PARTS[geometry["type"]]
        places = self._positions(geometry.get("coordinates"), depth)
        known = columns if isinstance(columns, dict) else {}
        return {
            "type": "Feature",
            "properties": {"name": name_of(known), "kind": self._kind(known)},
            "geometry": {"type": geometry["type"], "coordinates": places},
        }

    def _positions(self, found: Any, depth: int) -> list[Any]:  # noqa: ANN401 - any JSON
        if not isinstance(found, list | tuple):
            raise FieldError("file", "lists of coordinates", shortened(found), "")
        if depth:
            return [self._positions(each, depth - 1) for each in found]
        self.points += 1
        if self.points > MAX_POINTS:
            rule = f"at most {MAX_POINTS} points"
            raise FieldError("file", rule, str(self.points), "simplify its lines")
        return _degrees(found)

    def _kind(self, columns: Mapping[str, Any]) -> str:
        zone = str(columns.get(ZONE_COLUMN, ""))
        return "special_zone" if zone in SPECIAL_ZONES else self.kind


def _degrees(position: list[Any] | tuple[Any, ...]) -> list[float]:
    """Longitude and latitude of a position, without its height."""
    try:
        longitude, latitude = float(position[0]), float(position[1])
    except (TypeError, ValueError, IndexError):
        longitude = latitude = math.nan
    if not (abs(longitude) <= MAX_LONGITUDE and abs(latitude) <= MAX_LATITUDE):
        raise FieldError("file", DEGREES_RULE, shortened(list(position)), CONVERT)
    return [round(longitude, DECIMALS), round(latitude, DECIMALS)]


def name_of(columns: Mapping[str, Any]) -> str:
    """Name of a feature, from the columns that publishers use; may be empty."""
    address = "".join(str(columns.get(each) or "") for each in ADDRESS_COLUMNS)
    named = (columns.get(each) for each in NAME_COLUMNS)
    found = address or next((str(each) for each in named if each), "")
    return found.strip()[:MAX_NAME]


class _Collection(msgspec.Struct):
    """A GeoJSON file; other members are left out."""

    type: str
    features: list[dict[str, Any]] = []
    crs: dict[str, Any] | None = None


def _geojson(raw: bytes) -> list[Feature]:
    try:
        found = decode_json(raw.removeprefix(b"\xef\xbb\xbf"), _Collection)
    except DECODE_ERRORS as error:
        remedy = "save it as UTF-8 GeoJSON"
        raise FieldError("file", RULE, shortened(str(error)), remedy) from error
    if found.type != "FeatureCollection":
        rule = "a GeoJSON FeatureCollection"
        raise FieldError("file", rule, shortened(found.type), CONVERT)
    return found.features


def _shapefile(raw: bytes) -> Iterator[Feature]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            parts = _parts(archive)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError) as error:
        raise FieldError("file", RULE, shortened(str(error)), "zip it anew") from error
    projection = parts.get("prj", b"").decode("utf-8", "replace").strip()
    if projection and not projection.startswith("GEOGCS"):
        raise FieldError("file", DEGREES_RULE, shortened(projection), CONVERT)
    stated = parts.get("cpg", b"").decode("ascii", "replace").strip().lower()
    encoding = "utf-8" if stated in {"utf-8", "utf8", "65001"} else "cp932"
    try:
        reader = shapefile.Reader(
            shp=io.BytesIO(parts["shp"]),
            dbf=io.BytesIO(parts["dbf"]),
            encoding=encoding,
            encodingErrors="replace",
        )
        for each in reader.iterShapeRecords():
            yield each.__geo_interface__
    except FieldError:
        raise
    except Exception as error:  # the library raises what its parser meets
        words = shortened(f"{type(error).__name__} {error}")
        raise FieldError("file", RULE, words, "zip the Shapefile anew") from error


def _parts(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """The files of the one Shapefile in an archive, by their suffix."""
    found = {}
    names = [n for n in archive.namelist() if not n.startswith("__MACOSX")]
    shapes = [name for name in names if name.lower().endswith(".shp")]
    if len(shapes) != 1:
        rule = "a zip file with one Shapefile (.shp, .dbf, .prj)"
        raise FieldError("file", rule, f"{len(shapes)} .shp", "zip each one by itself")
    stem = shapes[0][:-4]
    left = MAX_UNPACKED_BYTES
    for name in names:
        suffix = name[len(stem) + 1 :].lower()
        if name[: len(stem)] == stem and suffix in {"shp", "dbf", "prj", "cpg"}:
            found[suffix] = archive.open(name).read(left + 1)
            left -= len(found[suffix])
    if left < 0:
        rule = f"at most {MAX_UNPACKED_BYTES} bytes when unpacked"
        raise FieldError("file", rule, "more", "split it")
    if "dbf" not in found:
        rule = "a zip file with one Shapefile (.shp, .dbf, .prj)"
        raise FieldError("file", rule, "no .dbf", "add it")
    return found


def _csv(raw: bytes) -> Iterator[Feature]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("cp932", "replace")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    columns = rows.fieldnames or []
    latitude = next((each for each in LATITUDES if each in columns), None)
    longitude = next((each for each in LONGITUDES if each in columns), None)
    if latitude is None or longitude is None:
        raise FieldError("file", RULE, shortened(columns), "name the columns so")
    try:
        for row in rows:
            yield _row(row, row.get(longitude), row.get(latitude), rows.line_num)
    except csv.Error as error:
        raise FieldError("file", RULE, shortened(str(error)), "") from error


def _row(
    row: dict[str, Any], longitude: str | None, latitude: str | None, line: int
) -> Feature:
    try:
        place = [float(longitude or ""), float(latitude or "")]
    except ValueError as error:
        value = f"line {line}: {longitude}, {latitude}"
        raise FieldError("file", DEGREES_RULE, value, "correct the line") from error
    geometry = {"type": "Point", "coordinates": place}
    return {"type": "Feature", "properties": row, "geometry": geometry}


log = logging.getLogger(__name__)

ENTRY: Final = "overlay"
MAX_OVERLAYS: Final = 30
MAX_ENTRIES: Final = 5000
MAX_FOUND: Final = 20


@dataclass(frozen=True)
class Overlay:
    """One overlay of the map.

    Attributes:
        id: Hash of its collection.
        title: As shown in the legend.
        kinds: Kinds of its features.
        features: Number of its features.
        who: Account that added it.
        at_s: Unix time of the addition.
    """

    id: str
    title: str
    kinds: tuple[str, ...]
    features: int
    who: str
    at_s: float


@dataclass(frozen=True)
class FoundPlace:
    """A place whose name was searched for."""

    name: str
    kind: str
    title: str
    longitude: float
    latitude: float


class Overlays:
    """The overlays of a console; several threads may use them.

    Args:
        folder: Of the collections; it is made for the first.
        journal: Records additions and removals.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._lock = threading.Lock()
        self._names: dict[str, list[tuple[str, FoundPlace]]] = {}

    def all(self) -> list[Overlay]:
        """The overlays that are there, the oldest first."""
        found: dict[str, Overlay] = {}
        for entry in reversed(self._journal.read(ENTRY, limit=MAX_ENTRIES)):
            if entry.body["is_there"]:
                found[entry.subject] = _overlay(entry)
            else:
                found.pop(entry.subject, None)
        return list(found.values())

    def add(self, at_s: float, who: str, title: str, kind: str, raw: bytes) -> Overlay:
        """Check a file, store it, and return the overlay.

        Raises:
            FieldError: File, title, kind or the number of overlays break a rule.
        """
        title = title.strip()
        if not 1 <= len(title) <= MAX_NAME:
            raise FieldError("title", f"1 to {MAX_NAME} characters", title, "")
        collection = read_overlay(raw, kind)
        encoded = msgspec.json.encode(collection)
        digest = hashlib.sha256(encoded).hexdigest()
        found = [
            feature["properties"]["kind"]
            for feature in collection["features"]
            if LABEL not in feature["properties"]
        ]
        body = {
            "is_there": True,
            "title": title,
            "kinds": [each for each in KINDS if each in found],
            "features": len(found),
        }
        with self._lock:
            others = [each for each in self.all() if each.id != digest]
            if len(others) >= MAX_OVERLAYS:
                rule = f"at most {MAX_OVERLAYS} overlays"
                raise FieldError("file", rule, str(len(others)), "remove one first")
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path(digest), gzip.compress(encoded, mtime=0))
            self._journal.write(at_s, ENTRY, digest, who, body)
        return next(each for each in self.all() if each.id == digest)

    def remove(self, at_s: float, who: str, overlay: Overlay) -> None:
        """Remove an overlay; the journal keeps that it was there."""
        body = {"is_there": False, "title": overlay.title}
        with self._lock:
            self._journal.write(at_s, ENTRY, overlay.id, who, body)
            self._path(overlay.id).unlink(missing_ok=True)
            self._names.pop(overlay.id, None)

    def find(self, overlay_id: str) -> Overlay | None:
        """The overlay with an id, if it is there."""
        return next((each for each in self.all() if each.id == overlay_id), None)

    def compressed(self, overlay: Overlay) -> bytes | None:
        """The collection as gzip; None if the file is missing or was changed."""
        try:
            packed = self._path(overlay.id).read_bytes()
            digest = hashlib.sha256(gzip.decompress(packed)).hexdigest()
        except (OSError, EOFError, zlib.error) as error:
            log.warning("overlay %s cannot be read: %s", overlay.title, error)
            return None
        if digest != overlay.id:
            log.warning("the file of overlay %s was changed", overlay.title)
            return None
        return packed

    def search(self, text: str) -> list[FoundPlace]:
        """Places whose name contains a text, those that begin with it first."""
        wanted = plain(text)
        if not wanted:
            return []
        found = [
            (name.find(wanted), len(name), place)
            for overlay in self.all()
            for name, place in self._named(overlay)
            if wanted in name
        ]
        found.sort(key=lambda each: each[:2])
        return [place for _, _, place in found[:MAX_FOUND]]

    def _named(self, overlay: Overlay) -> list[tuple[str, FoundPlace]]:
        known = self._names.get(overlay.id)
        if known is None:
            known = self._names[overlay.id] = list(self._read_names(overlay))
        return known

    def _read_names(self, overlay: Overlay) -> Iterator[tuple[str, FoundPlace]]:
        packed = self.compressed(overlay)
        if packed is None:
            return
        collection = decode_json(gzip.decompress(packed), dict[str, Any])
        for feature in collection["features"]:
            columns = feature["properties"]
            if columns["name"] and LABEL not in columns:
                place = middle(feature["geometry"]["coordinates"])
                name, kind = columns["name"], columns["kind"]
                yield plain(name), FoundPlace(name, kind, overlay.title, *place)

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.geojson.gz"


def overlay_view(overlays: Overlays) -> list[dict[str, Any]]:
    """The overlays for the page."""
    return [asdict(each) for each in overlays.all()]


def plain(text: str) -> str:
    """A name as it is compared: without width, case and spaces."""
    wide = unicodedata.normalize("NFKC", text).casefold()
    return "".join(wide.split())


def _overlay(entry: JournalEntry) -> Overlay:
    body = entry.body
    kinds, number = tuple(body["kinds"]), body["features"]
    return Overlay(entry.subject, body["title"], kinds, number, entry.who, entry.at_s)
