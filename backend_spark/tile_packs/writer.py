"""Write MBTiles packs, from tiles made here or from a folder of tiles."""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import atan, degrees, pi, sinh
from pathlib import Path
from typing import Final

from backend_spark.tile_packs.reader import MAX_TILE_BYTES, MAX_ZOOM, Bounds
from service_runtime.errors import FieldError

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
