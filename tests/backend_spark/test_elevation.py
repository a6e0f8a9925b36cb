"""Elevations as GSI publishes them become packs; damaged files are named."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from backend_spark.cli import cli
from backend_spark.relief import Elevation, Heights, open_elevation
from backend_spark.tile_packs import open_pack, tile_bounds
from service_runtime.errors import FieldError

PLACE = (14, 14270, 6570)
WEST, SOUTH, EAST, NORTH = 133.50, 33.50, 133.53, 33.52


def plane(longitude: float, latitude: float) -> float:
    """Height of a slope that rises to the north-east, in m."""
    return 100 + (longitude - WEST) * 8000 + (latitude - SOUTH) * 12_000


def gml(west: float, columns: int, *, gap: bool = False) -> str:
    """A mesh of 10 m as in a download; its first two points may be missing."""
    spacing = 0.4 / 3600
    rows = round((NORTH - SOUTH) / spacing)
    values = [
        f"地表面,{plane(west + (x + 0.5) * spacing, NORTH - (y + 0.5) * spacing):.2f}"
        for y in range(rows)
        for x in range(columns)
    ]
    values[5] = "データなし,-9999.00"
    start = "2 0" if gap else "0 0"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<Dataset xmlns="http://fgd.gsi.go.jp/spec/2008/FGD_GMLSchema" '
        'xmlns:gml="http://www.opengis.net/gml/3.2"><DEM><coverage><gml:boundedBy>'
        f"<gml:Envelope><gml:lowerCorner>{SOUTH} {west}</gml:lowerCorner>"
        f"<gml:upperCorner>{NORTH} {west + columns * spacing}</gml:upperCorner>"
        "</gml:Envelope></gml:boundedBy><gml:Grid><gml:limits><gml:GridEnvelope>"
        f"<gml:low>0 0</gml:low><gml:high>{columns - 1} {rows - 1}</gml:high>"
        "</gml:GridEnvelope></gml:limits></gml:Grid><gml:rangeSet><gml:DataBlock>"
        f"<gml:tupleList>\n{chr(10).join(values[2 if gap else 0 :])}\n</gml:tupleList>"
        "</gml:DataBlock></gml:rangeSet><gml:coverageFunction><gml:GridFunction>"
        f"<gml:startPoint>{start}</gml:startPoint></gml:GridFunction>"
        "</gml:coverageFunction></coverage></DEM></Dataset>"
    )


def download(folder: Path) -> Path:
    """Two neighbouring meshes, zipped twice as the download of GSI is."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("FG-GML-1-DEM10B.xml", gml(WEST, 135))
        archive.writestr("fmdid.txt", "other")
    folder.mkdir()
    with zipfile.ZipFile(folder / "PackDLMap.zip", "w") as archive:
        archive.writestr("FG-GML-1.zip", inner.getvalue())
    (folder / "FG-GML-2.xml").write_text(gml(WEST + 0.015, 135, gap=True))
    return folder


def tile_heights() -> Heights:
    """The slope at the pixels of `PLACE`, with one unknown and one below the sea."""
    west, south, east, north = tile_bounds(*PLACE)
    x = west + (np.arange(256) + 0.5) / 256 * (east - west)
    y = north - (np.arange(256) + 0.5) / 256 * (north - south)
    heights = np.round([[plane(lon, lat) for lon in x] for lat in y], 2)
    heights[0, 0], heights[3, 4] = np.nan, -1.5
    return heights.astype(np.float32)


def png_tile(heights: Heights) -> bytes:
    """An elevation tile, encoded as the specification states."""
    units = np.round(np.nan_to_num(heights, nan=0) * 100).astype(np.int64)
    units = np.where(units < 0, units + (1 << 24), units)
    units = np.where(np.isnan(heights), 1 << 23, units)
    parts = np.stack([units >> 16, units >> 8 & 255, units & 255], axis=-1)
    file = io.BytesIO()
    Image.fromarray(parts.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def text_tile(heights: Heights) -> bytes:
    """An elevation tile as text, with e for unknown."""
    rows = (
        ",".join("e" if np.isnan(h) else f"{h:.2f}" for h in row) for row in heights
    )
    return "\n".join(rows).encode()


def error_m(elevation: Elevation) -> float:
    """Largest error against the slope, well inside the meshes."""
    errors = []
    for place in elevation.places():
        west, south, east, north = tile_bounds(elevation.zoom, *place)
        heights = elevation.heights(place)
        for row, column in np.argwhere(np.isfinite(heights))[::97]:
            lon = west + (column + 0.5) / 256 * (east - west)
            lat = north - (row + 0.5) / 256 * (north - south)
            if (
                WEST + 0.001 < lon < EAST - 0.001
                and SOUTH + 0.001 < lat < NORTH - 0.001
            ):
                errors.append(abs(float(heights[row, column]) - plane(lon, lat)))
    assert len(errors) > 500
    return max(errors)


def test_elevation_model_of_a_download_is_read(tmp_path: Path) -> None:
    """Meshes join without a seam; unknown points stay unknown."""
    elevation, attribution = open_elevation(download(tmp_path / "dem"))

    assert elevation.zoom == 14
    assert "基盤地図情報" in attribution
    assert error_m(elevation) < 0.5


@pytest.mark.parametrize(("suffix", "encode"), [("png", png_tile), ("txt", text_tile)])
def test_elevation_tile_is_read(
    tmp_path: Path, suffix: str, encode: Callable[[Heights], bytes]
) -> None:
    """Both formats give the heights, those below the sea and the unknown ones."""
    zoom, column, row = PLACE
    path = tmp_path / str(zoom) / str(column) / f"{row}.{suffix}"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(tile_heights()))

    elevation, attribution = open_elevation(tmp_path)
    found = elevation.heights((column, row))

    assert elevation.places() == {(column, row)}
    np.testing.assert_allclose(found, tile_heights(), atol=0.006)
    assert "地理院タイル" in attribution


def run(*arguments: str) -> str:
    """Run map-pack; returns what it prints."""
    result = CliRunner().invoke(cli, ["map-pack", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_command_makes_a_pack_that_the_console_opens(tmp_path: Path) -> None:
    """From a download to a checked pack, with GSI's attribution."""
    out = tmp_path / "relief.mbtiles"

    assert "up to zoom 14" in run(
        "relief", str(download(tmp_path / "dem")), "--out", str(out)
    )
    info = open_pack(out).info
    west, south, east, north = info.bounds
    assert west <= WEST < EAST <= east
    assert south <= SOUTH < NORTH <= north
    assert (info.format, info.min_zoom, info.max_zoom) == ("webp", 8, 14)
    assert "attribution\t国土地理院" in run("check", str(out))


def test_command_packs_a_folder_of_tiles(tmp_path: Path) -> None:
    """Rows from the south with --tms; the attribution is required."""
    folder = tmp_path / "xyz"
    (folder / "3" / "7").mkdir(parents=True)
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "JPEG")
    (folder / "3" / "7" / "2.jpg").write_bytes(file.getvalue())
    out = tmp_path / "base.mbtiles"

    run("tiles", str(folder), "--out", str(out), "--attribution", "町", "--tms")
    assert open_pack(out).read(3, 7, 5) == file.getvalue()
    assert open_pack(out).read(3, 7, 2) is None
    result = CliRunner().invoke(
        cli, ["map-pack", "tiles", str(folder), "--out", str(out)]
    )
    assert "--attribution" in result.output


def test_foreign_tile_in_a_folder_is_refused(tmp_path: Path) -> None:
    """Another format, and a row that the zoom does not have."""
    for name in ("3/7/2.png", "3/7/3.jpg"):
        path = tmp_path / "xyz" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x89PNG")
    pack = ["tiles", str(tmp_path / "xyz"), "--out", str(tmp_path / "o")]
    pack += ["--attribution", "a"]
    mixed = CliRunner().invoke(cli, ["map-pack", *pack])
    (tmp_path / "xyz/3/7/3.jpg").rename(tmp_path / "xyz/3/7/8.png")
    outside = CliRunner().invoke(cli, ["map-pack", *pack])

    assert "tiles of one format, png, got '3/7/3.jpg'" in mixed.output
    assert "in the zoom's range" in outside.output


def _cut(folder: Path) -> None:
    path = folder / "FG-GML-2.xml"
    path.write_text(path.read_text()[:-40])


def _many_points(folder: Path) -> None:
    path = folder / "FG-GML-2.xml"
    path.write_text(path.read_text().replace("<gml:high>134", "<gml:high>33"))


def _no_zip(folder: Path) -> None:
    (folder / "PackDLMap.zip").write_bytes(b"PK")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "FG-GML-2.xml"),
        (_many_points, "its grid does not hold"),
        (_no_zip, "PackDLMap.zip"),
    ],
)
def test_damaged_download_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    """The error names the file; no pack is left behind."""
    folder = download(tmp_path / "dem")
    damage(folder)
    out = tmp_path / "relief.mbtiles"
    result = CliRunner().invoke(
        cli, ["map-pack", "relief", str(folder), "--out", str(out)]
    )

    assert result.exit_code == 2
    assert words in result.output.replace("\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dem"]


def test_folder_without_elevations_is_refused(tmp_path: Path) -> None:
    """The rule names both kinds."""
    with pytest.raises(FieldError, match="elevation tiles") as caught:
        open_elevation(tmp_path)

    assert "FG-GML" in str(caught.value)
