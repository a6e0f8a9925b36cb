"""Tile packs of one tile for tests, as MBTiles and as PMTiles."""

import gzip
import io
from pathlib import Path

from PIL import Image
from pmtiles.tile import Compression, TileType, zxy_to_tileid
from pmtiles.writer import Writer

from backend_spark.tile_packs import PackTexts, Tile, is_gzip, write_pack

SOURCE = '<a href="https://maps.gsi.go.jp/development/ichiran.html">地理院タイル</a>'
TEXTS = PackTexts("base", SOURCE)


def picture(form: str = "PNG") -> bytes:
    """A small tile."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "#cde").save(file, form)
    return file.getvalue()


def mbtiles(folder: Path, form: str = "png", data: bytes | None = None) -> Path:
    """A pack of one tile, 10/898/408."""
    path = folder / "base.mbtiles"
    write_pack(path, form, TEXTS, [Tile(10, 898, 408, data or picture())])
    return path


def pmtiles(folder: Path, tile_type: TileType, data: bytes) -> Path:
    """An archive of one tile, 10/898/408, written by its library."""
    path = folder / "base.pmtiles"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.write_tile(zxy_to_tileid(10, 898, 408), data)
        head = {
            "tile_type": tile_type,
            "tile_compression": Compression.GZIP if is_gzip(data) else Compression.NONE,
            "min_zoom": 10,
            "max_zoom": 10,
            "min_lon_e7": 1_350_000_000,
            "min_lat_e7": 335_000_000,
            "max_lon_e7": 1_360_000_000,
            "max_lat_e7": 345_000_000,
        }
        about = {"attribution": "町", "vector_layers": [{"id": "road"}, {"x": 1}]}
        writer.finalize(head, about)
    return path


def vector_pack(folder: Path) -> Path:
    """A pack of one compressed vector tile, 10/898/408."""
    return mbtiles(folder, "pbf", gzip.compress(b"\x1a\x00"))
