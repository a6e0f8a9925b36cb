"""Tile packs as files: MBTiles 1.3 and PMTiles 3, with raster or vector tiles.

Both are read; MBTiles are also written, from tiles made here or from a folder of tiles.

Sources: the MBTiles specification 1.3 (https://github.com/mapbox/mbtiles-spec) and the
PMTiles specification 3 (https://github.com/protomaps/PMTiles).
"""

import gzip
import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from html.parser import HTMLParser
from math import atan, degrees, pi, sinh
from pathlib import Path
from typing import Any, Final, Protocol

from pmtiles.tile import (
    Compression,
    Entry,
    TileType,
    deserialize_directory,
    deserialize_header,
    find_tile,
    zxy_to_tileid,
)

from service_runtime.errors import FieldError, shortened

FIELD: Final = "console.map_packs"
RULE: Final = "an MBTiles or PMTiles file of raster or vector map tiles"

MAX_TILE_BYTES: Final = 4_000_000
MAX_ZOOM: Final = 22
MAX_METADATA: Final = 1_000_000
MAX_LAYERS: Final = 100
HEADER_BYTES: Final = 127
DIRECTORY_DEPTH: Final = 4
"""Root and at most three levels of leaf directories, as in the format's library."""

CACHED_DIRECTORIES: Final = 64
GZIP_MAGIC: Final = b"\x1f\x8b"

MEDIA_TYPES: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "webp": "image/webp",
    "pbf": "application/vnd.mapbox-vector-tile",
}
"""Formats of tiles with their media types."""

_PMTILES_FORMATS: Final = {
    TileType.PNG: "png",
    TileType.JPEG: "jpg",
    TileType.WEBP: "webp",
    TileType.MVT: "pbf",
}
_BEGINNINGS: Final = {
    "png": (b"\x89PNG",),
    "jpg": (b"\xff\xd8\xff",),
    "webp": (b"RIFF",),
    "pbf": (GZIP_MAGIC, b"\x1a"),
}
"""First bytes of a tile; an uncompressed vector tile begins with its first layer."""

Bounds = tuple[float, float, float, float]
WORLD: Final[Bounds] = (-180.0, -85.0511, 180.0, 85.0511)

MAP_TILE: Final = re.compile(r"([0-9]{1,7})\.(png|jpe?g|webp|pbf|mvt)")
FORMATS: Final = {"jpeg": "jpg", "mvt": "pbf"}
NUMBER: Final = re.compile(r"[0-9]{1,7}")

_TABLES: Final = """
create table metadata (name text primary key, value text);
create table tiles (
  zoom_level integer, tile_column integer, tile_row integer, tile_data blob,
  primary key (zoom_level, tile_column, tile_row)
) without rowid;
"""


@dataclass(frozen=True)
class PackInfo:
    """What the map must know of a pack.

    Attributes:
        format: One of `MEDIA_TYPES`.
        min_zoom: Lowest zoom with tiles.
        max_zoom: Highest zoom with tiles.
        bounds: West, south, east, north.
        attribution: HTML of text and links only.
        layers: Names of the vector layers.
        version: Changes with the file.
    """

    format: str
    min_zoom: int
    max_zoom: int
    bounds: Bounds
    attribution: str
    layers: tuple[str, ...]
    version: str


class TilePack(Protocol):
    """A file of tiles; several threads may read it."""

    info: PackInfo

    def read(self, zoom: int, column: int, row: int) -> bytes | None:
        """The tile of the XYZ scheme; None if there is none."""


def open_pack(path: Path) -> TilePack:
    """Open a pack and check its form.

    Raises:
        FieldError: The file cannot be read, is cut off, or is of another kind.
    """
    try:
        with path.open("rb") as file:
            head = file.read(100)
        if head.startswith(b"SQLite format 3\0"):
            return MbtilesPack(path, head)
        if head.startswith(b"PMTiles"):
            return PmtilesPack(path)
    except OSError as error:
        raise _refuse(path, str(error)) from error
    except sqlite3.Error as error:
        raise _refuse(path, f"SQLite cannot read it ({error}): copy it anew") from error
    raise _refuse(path, "convert it, or make one with backend-spark map-pack")


class MbtilesPack:
    """A pack in an SQLite file."""

    def __init__(self, path: Path, head: bytes) -> None:
        page_bytes = int.from_bytes(head[16:18], "big")
        pages = int.from_bytes(head[28:32], "big")
        expected = (65_536 if page_bytes == 1 else page_bytes) * pages
        if path.stat().st_size < expected:
            raise _refuse(path, f"it is cut off before byte {expected}: copy it anew")
        self._lock = threading.Lock()
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self.info = self._info(path)

    def read(self, zoom: int, column: int, row: int) -> bytes | None:
        """The tile of the XYZ scheme; None if there is none."""
        query = (
            "select tile_data from tiles where zoom_level = ? and tile_column = ? "
            "and tile_row = ? and length(tile_data) <= ?"
        )
        place = (zoom, column, (1 << zoom) - 1 - row, MAX_TILE_BYTES)  # rows are TMS's
        with self._lock:
            found = self._db.execute(query, place).fetchone()
        return None if found is None else bytes(found[0])

    def _info(self, path: Path) -> PackInfo:
        tables = {
            name for (name,) in self._db.execute("select name from sqlite_master")
        }
        if not {"tiles", "metadata"} <= tables:
            raise _refuse(path, "this SQLite file has no tables tiles and metadata")
        short = "select name, value from metadata where length(value) <= ?"
        found = {
            str(name): str(value)
            for name, value in self._db.execute(short, (MAX_METADATA,))
        }
        form = {"jpeg": "jpg"}.get(found.get("format", ""), found.get("format", ""))
        _check_format(path, form, "the metadata's format")
        self._check_first_tile(path, form)
        detail = _decoded(path, found.get("json", "{}"))
        zooms = self._zooms(path)
        return PackInfo(
            form,
            *zooms,
            _bounds(path, found.get("bounds")),
            safe_attribution(found.get("attribution", "")),
            _layers(detail),
            _version(path),
        )

    def _zooms(self, path: Path) -> tuple[int, int]:
        query = "select min(zoom_level), max(zoom_level) from tiles"
        low, high = self._db.execute(query).fetchone()
        return _checked_zooms(path, low, high)

    def _check_first_tile(self, path: Path, form: str) -> None:
        query = "select substr(tile_data, 1, 8) from tiles limit 1"
        first = self._db.execute(query).fetchone()
        if first is None:
            raise _refuse(path, "it holds no tile: make it anew")
        if not bytes(first[0]).startswith(_BEGINNINGS[form]):
            raise _refuse(path, f"its tiles are not {form}, which its metadata states")


class PmtilesPack:
    """A pack in a PMTiles archive.

    The file is read with ``pread``: a memory map of a file that is cut off while it is
    served would end the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._directory = lru_cache(CACHED_DIRECTORIES)(self._read_directory)
        try:
            self._head = deserialize_header(self._slice(0, HEADER_BYTES))
            self.info = self._info(path)
        except FieldError:
            raise
        except Exception as error:  # the library raises what its parser meets
            words = f"{type(error).__name__} {error}".strip()
            problem = f"it cannot be decoded ({words}): copy it anew"
            raise _refuse(path, problem) from error

    def read(self, zoom: int, column: int, row: int) -> bytes | None:
        """The tile of the XYZ scheme; None if there is none."""
        tile_id, head = zxy_to_tileid(zoom, column, row), self._head
        place = (head["root_offset"], head["root_length"])
        for _ in range(DIRECTORY_DEPTH):
            entry = find_tile(self._directory(*place), tile_id)
            if entry is None:
                return None
            if entry.run_length:
                offset = head["tile_data_offset"] + entry.offset
                return self._slice(offset, entry.length)
            place = (head["leaf_directory_offset"] + entry.offset, entry.length)
        return None

    def _read_directory(self, offset: int, length: int) -> list[Entry]:
        entries: list[Entry] = deserialize_directory(self._slice(offset, length))
        return entries

    def _slice(self, offset: int, length: int) -> bytes:
        if length > MAX_TILE_BYTES:
            raise ValueError(f"a part of {length} bytes, more than {MAX_TILE_BYTES}")
        found = os.pread(self._file.fileno(), length, offset)
        if len(found) < length:
            raise EOFError(f"{len(found)} of {length} bytes at {offset}")
        return found

    def _metadata(self) -> dict[str, Any]:
        head = self._head
        packed = self._slice(head["metadata_offset"], head["metadata_length"])
        found = json.loads(gzip.decompress(packed))
        return found if isinstance(found, dict) else {}

    def _info(self, path: Path) -> PackInfo:
        head = self._head
        kinds = (head["internal_compression"], head["tile_compression"])
        if kinds[0] is not Compression.GZIP or kinds[1] not in {
            Compression.GZIP,
            Compression.NONE,
        }:
            raise _refuse(path, "its compression must be gzip: convert it")
        end = head["tile_data_offset"] + head["tile_data_length"]
        if end > path.stat().st_size:
            raise _refuse(path, f"it is cut off before byte {end}: copy it anew")
        form = _PMTILES_FORMATS.get(head["tile_type"], head["tile_type"].name)
        _check_format(path, form, "the header's tile type")
        detail = self._metadata()
        corners = (
            *(head["min_lon_e7"], head["min_lat_e7"]),
            *(head["max_lon_e7"], head["max_lat_e7"]),
        )
        low, high = _checked_zooms(path, head["min_zoom"], head["max_zoom"])
        return PackInfo(
            form,
            low,
            high,
            _bounds(path, ",".join(str(each / 1e7) for each in corners)),
            safe_attribution(str(detail.get("attribution", ""))),
            _layers(detail),
            _version(path),
        )


def _refuse(path: Path, problem: str) -> FieldError:
    return FieldError(FIELD, RULE, str(path), problem)


def _check_format(path: Path, form: str, what: str) -> None:
    if form not in MEDIA_TYPES:
        kinds = ", ".join(MEDIA_TYPES)
        raise _refuse(path, f"{what} must be one of {kinds}, got {shortened(form)}")


def _checked_zooms(path: Path, low: Any, high: Any) -> tuple[int, int]:  # noqa: ANN401 - a column of any SQLite file
    if not (isinstance(low, int) and isinstance(high, int)):
        raise _refuse(path, "its zoom levels are not numbers: make it anew")
    if not 0 <= low <= high <= MAX_ZOOM:
        raise _refuse(path, f"zoom levels must be in 0..{MAX_ZOOM}, got {low}..{high}")
    return low, high


def _bounds(path: Path, text: str | None) -> Bounds:
    if not text:
        return WORLD
    try:
        west, south, east, north = (float(part) for part in text.split(","))
    except ValueError as error:
        rule = "bounds must be west,south,east,north"
        raise _refuse(path, f"{rule}, got {shortened(text)}") from error
    low, high = (WORLD[0], -90.0), (WORLD[2], 90.0)
    if not (low[0] <= west < east <= high[0] and low[1] <= south < north <= high[1]):
        rule = "bounds must be west,south,east,north in degrees"
        raise _refuse(path, f"{rule}, got {shortened(text)}")
    return west, south, east, north


def _decoded(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"its metadata json is not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _layers(detail: dict[str, Any]) -> tuple[str, ...]:
    listed = detail.get("vector_layers", [])
    if not isinstance(listed, list):
        return ()
    named = (each.get("id") for each in listed if isinstance(each, dict))
    return tuple(name for name in named if isinstance(name, str))[:MAX_LAYERS]


def _version(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_mtime_ns ^ stat.st_size:x}"


class _Attribution(HTMLParser):
    """Keeps text and links to the web of an HTML text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.open_links = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") or ""
        if tag == "a" and href.startswith(("https://", "http://")):
            rest = 'target="_blank" rel="noopener noreferrer"'
            self.parts.append(f'<a href="{escape(href)}" {rest}>')
            self.open_links += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self.open_links:
            self.parts.append("</a>")
            self.open_links -= 1

    def handle_data(self, data: str) -> None:
        self.parts.append(escape(data))


def safe_attribution(text: str) -> str:
    """The attribution without anything but text and links."""
    parser = _Attribution()
    parser.feed(text[:2000])
    parser.close()
    return "".join(parser.parts) + "</a>" * parser.open_links


def is_gzip(tile: bytes) -> bool:
    """Whether a tile is stored compressed."""
    return tile.startswith(GZIP_MAGIC)


@dataclass(frozen=True)
class Tile:
    """One tile of the XYZ scheme."""

    zoom: int
    column: int
    row: int
    data: bytes


@dataclass(frozen=True)
class PackTexts:
    """What a pack states of itself.

    Attributes:
        name: Name of the pack.
        attribution: As the source demands it, shown on the map; may hold links.
    """

    name: str
    attribution: str


def write_pack(out: Path, form: str, texts: PackTexts, tiles: Iterable[Tile]) -> int:
    """Write a pack; the file appears when it is complete.

    Args:
        out: File to write; an existing one is replaced.
        form: ``png``, ``jpg``, ``webp`` or ``pbf``.
        texts: Name and attribution.
        tiles: Each place once.

    Returns:
        Number of tiles.

    Raises:
        FieldError: There is no tile, or the file cannot be written.
    """
    part = out.with_name(f"{out.name}.part")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(part)) as db, db:
            db.executescript(f"pragma journal_mode = off;{_TABLES}")
            rows = ((t.zoom, t.column, _tms(t), t.data) for t in tiles)
            db.executemany("insert or replace into tiles values (?, ?, ?, ?)", rows)
            (count,) = db.execute("select count(*) from tiles").fetchone()
            if not count:
                raise FieldError("source", "at least one map tile", str(out), "")
            _write_metadata(db, form, texts)
        part.replace(out)
    except (OSError, sqlite3.Error) as error:
        rule = "a file that can be written"
        raise FieldError("out", rule, str(out), str(error)) from error
    finally:
        part.unlink(missing_ok=True)
    return int(count)


def _tms(tile: Tile) -> int:
    return (1 << tile.zoom) - 1 - tile.row


def _write_metadata(db: sqlite3.Connection, form: str, texts: PackTexts) -> None:
    zooms = db.execute("select min(zoom_level), max(zoom_level) from tiles").fetchone()
    extent = db.execute(
        "select min(tile_column), max(tile_column), min(tile_row), max(tile_row) "
        "from tiles where zoom_level = ?",
        (zooms[1],),
    ).fetchone()
    last = (1 << zooms[1]) - 1
    west, south, _, _ = tile_bounds(zooms[1], extent[0], last - extent[2])
    _, _, east, north = tile_bounds(zooms[1], extent[1], last - extent[3])
    rows = {
        "name": texts.name,
        "format": form,
        "bounds": f"{west:.6f},{south:.6f},{east:.6f},{north:.6f}",
        "minzoom": str(zooms[0]),
        "maxzoom": str(zooms[1]),
        "attribution": texts.attribution,
        "type": "baselayer",
    }
    db.executemany("insert into metadata values (?, ?)", rows.items())


def tile_bounds(zoom: int, column: int, row: int) -> Bounds:
    """West, south, east and north of a tile of Web Mercator."""
    count = 1 << zoom

    def latitude(edge: int) -> float:
        return degrees(atan(sinh(pi * (1 - 2 * edge / count))))

    west, east = (edge / count * 360 - 180 for edge in (column, column + 1))
    return west, latitude(row + 1), east, latitude(row)


def folder_format(folder: Path) -> str:
    """Format of the tiles in a folder, that of the first one.

    Raises:
        FieldError: The folder has no ``zoom/column/row.ext``.
    """
    for _, _, _, path in tile_files(folder, MAP_TILE):
        suffix = path.suffix[1:]
        return FORMATS.get(suffix, suffix)
    rule = "a folder of tiles zoom/column/row.png, .jpg, .webp or .pbf"
    raise FieldError("source", rule, str(folder), "name the folder above the zooms")


def folder_tiles(folder: Path, form: str, *, tms: bool = False) -> Iterator[Tile]:
    """Tiles of a folder ``zoom/column/row.ext``.

    Args:
        folder: Above the folders of the zooms.
        form: Format of all tiles.
        tms: Rows are counted from the south.

    Raises:
        FieldError: A tile is too large, has another format, or lies outside its zoom.
    """
    for zoom, column, row, path in tile_files(folder, MAP_TILE):
        problem = _problem(zoom, column, row, path, form)
        if problem:
            name = "/".join(path.parts[-3:])
            raise FieldError("source", problem, name, "remove it from the folder")
        north = (1 << zoom) - 1 - row if tms else row
        yield Tile(zoom, column, north, path.read_bytes())


def _problem(zoom: int, column: int, row: int, path: Path, form: str) -> str:
    """Rule that a file breaks; empty if none."""
    suffix = path.suffix[1:]
    if FORMATS.get(suffix, suffix) != form:
        return f"tiles of one format, {form}"
    if path.stat().st_size > MAX_TILE_BYTES:
        return f"tiles of at most {MAX_TILE_BYTES} bytes"
    if zoom > MAX_ZOOM or column >> zoom or row >> zoom:
        return f"tiles zoom/column/row in the zoom's range, up to zoom {MAX_ZOOM}"
    return ""


def tile_files(
    folder: Path, names: re.Pattern[str]
) -> Iterator[tuple[int, int, int, Path]]:
    """Zoom, column, row and path of each tile in a folder, in this order.

    Args:
        folder: Above the folders of the zooms.
        names: Names of the files; the first group is the row.
    """
    columns = (each for zoom in _numbered(folder) for each in _numbered(zoom))
    for column in columns:
        for path in sorted(column.iterdir()):
            match = names.fullmatch(path.name)
            if match:
                zoom = int(column.parent.name)
                yield zoom, int(column.name), int(match[1]), path


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = (each for each in folder.iterdir() if NUMBER.fullmatch(each.name))
    return sorted((each for each in found if each.is_dir()), key=lambda p: int(p.name))
