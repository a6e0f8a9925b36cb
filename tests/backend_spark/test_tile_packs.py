"""Tile packs: MBTiles and PMTiles are read; broken and foreign files are refused."""

import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pmtiles.tile import TileType
from tile_pack_files import mbtiles, picture, pmtiles

from backend_spark.tile_packs import (
    MAX_TILE_BYTES,
    open_pack,
    safe_attribution,
)
from service_runtime.errors import FieldError, shortened


@pytest.mark.parametrize(
    ("form", "kind"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP")]
)
def test_raster_pack_is_read_by_the_xyz_scheme(
    tmp_path: Path, form: str, kind: str
) -> None:
    """A written tile is found at its place, and nowhere else."""
    pack = open_pack(mbtiles(tmp_path, form, picture(kind)))

    assert pack.read(10, 898, 408) == picture(kind)
    assert pack.read(10, 898, 407) is None
    assert pack.info.format == form
    assert (pack.info.min_zoom, pack.info.max_zoom) == (10, 10)
    west, south, east, north = pack.info.bounds
    assert west == pytest.approx(135.703125)
    assert south < 34.3 < north
    assert east - west == pytest.approx(360 / 1024, abs=1e-5)


def test_pmtiles_pack_is_read(tmp_path: Path) -> None:
    """Vector tiles with their layers; the archive is that of the format's library."""
    tile = gzip.compress(b"\x1a\x00")
    pack = open_pack(pmtiles(tmp_path, TileType.MVT, tile))

    assert pack.read(10, 898, 408) == tile
    assert pack.read(10, 1, 1) is None
    assert pack.info.layers == ("road",)
    assert pack.info.attribution == "町"
    assert pack.info.bounds == (135.0, 33.5, 136.0, 34.5)


def test_tile_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    """A tile of more than four megabytes is left out, so that memory stays bounded."""
    large = picture() + bytes(MAX_TILE_BYTES)

    assert open_pack(mbtiles(tmp_path, "png", large)).read(10, 898, 408) is None


def test_attribution_keeps_text_and_links_only() -> None:
    """Nothing of a foreign file can run in the page."""
    text = (
        '<b onclick="x()">国土地理院</b><script>alert(1)</script>'
        '<a href="javascript:x">a</a> <a href="https://x.example/?a=1&b=2">b'
    )

    found = safe_attribution(text)

    assert "国土地理院" in found
    assert "<script" not in found
    assert "onclick" not in found
    assert "javascript" not in found
    assert found.endswith("</a>")
    assert '<a href="https://x.example/?a=1&amp;b=2" target="_blank"' in found


def _sql(path: Path, statement: str, values: tuple[str, ...] = ()) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def _stating(name: str, value: str) -> Callable[[Path], None]:
    update = "update metadata set value = ? where name = ?"
    return lambda path: _sql(path, update, (value, name))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "cut off before byte"),
        (lambda p: p.write_bytes(b"PK\x03\x04 a zip file"), "backend-spark map-pack"),
        (lambda p: p.write_bytes(b""), "backend-spark map-pack"),
        (Path.unlink, "No such file"),
        (lambda p: _sql(p, "drop table tiles"), "no tables tiles and metadata"),
        (lambda p: _sql(p, "delete from tiles"), "holds no tile"),
        (_stating("format", "tiff"), "must be one of png"),
        (_stating("format", "jpg"), "are not jpg"),
        (_stating("bounds", "1,2"), "west,south,east,north"),
        (lambda p: _sql(p, "update tiles set zoom_level = 40"), "0..22, got 40..40"),
    ],
)
def test_unusable_mbtiles_file_is_refused_with_the_remedy(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    """The error names setting, rule, file and what to do."""
    path = mbtiles(tmp_path)
    damage(path)

    with pytest.raises(FieldError, match=r"console\.map_packs") as caught:
        open_pack(path)

    assert words in str(caught.value)
    assert shortened(str(path)) in str(caught.value)


def test_cut_off_archive_is_refused(tmp_path: Path) -> None:
    """A download that ended too early, or whose metadata is damaged."""
    path = pmtiles(tmp_path, TileType.PNG, picture() + bytes(5000))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(FieldError, match="cut off before byte"):
        open_pack(path)

    path.write_bytes(whole[:127] + bytes(len(whole) - 127))
    with pytest.raises(FieldError, match="cannot be decoded"):
        open_pack(path)
