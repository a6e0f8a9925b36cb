"""Shaded relief as map tiles, and the published elevations that it is drawn from.

The light comes from the north-west, as on Japanese maps, and the colours are pale, so
that the levels drawn above stay readable. Horn's gradient (1981) needs one more pixel
on each side of a tile.

Sources of elevations, of the Geospatial Information Authority of Japan (GSI): elevation
tiles (標高タイル) as PNG or text, https://maps.gsi.go.jp/development/demtile.html, and
the digital elevation model of the fundamental geospatial data (基盤地図情報
数値標高モデル) as GML, in XML files or in the zip files of the download.
"""

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from backend_spark.tile_packs import Tile, tile_bounds, tile_files
from service_runtime.errors import FieldError

PIXELS: Final = 256
MAX_TILES: Final = 3000
"""At the highest zoom; all heights are in memory, 256 KB for a tile."""

EQUATOR_M: Final = 40_075_016.686
SUN_AZIMUTH_DEG: Final = 315.0
SUN_HEIGHT_DEG: Final = 45.0
FLAT: Final = float(np.sin(np.radians(SUN_HEIGHT_DEG)))
DARKEST: Final = 0.66
LIGHTEST: Final = 1.06
TINT_HEIGHTS_M: Final = (0.0, 150.0, 400.0, 900.0, 1800.0)
TINTS: Final = (
    (226, 236, 218),
    (221, 232, 208),
    (232, 233, 214),
    (238, 233, 222),
    (246, 244, 241),
)
CONTOUR_ZOOM: Final = 13
CONTOURS_M: Final = {13: 50.0, 14: 20.0}
"""Interval of the contour lines; below `CONTOUR_ZOOM` there are none."""

CONTOUR_SHADE: Final = 0.88
QUALITY: Final = 82
OPAQUE: Final = 255

Heights = NDArray[np.float32]
Place = tuple[int, int]
Part = int | slice

RULE: Final = (
    "a folder of GSI's elevation tiles (zoom/column/row.png or .txt) or of its "
    "digital elevation model (FG-GML-*.xml, or the zip files of the download)"
)

ELEVATION_TILE: Final = re.compile(r"([0-9]{1,7})\.(png|txt)")
PNG_UNIT_M: Final = 0.01
PNG_UNKNOWN: Final = 1 << 23
TEXT_UNKNOWN: Final = "e"

MAX_FILE_BYTES: Final = 100_000_000
"""Maximum size of an XML file; a mesh of 10 m has about 20 MB."""

MAX_POINTS: Final = 150_000_000
"""Of all meshes of one spacing with the gaps between them: 600 MB."""

GML: Final = "{http://www.opengis.net/gml/3.2}"
GML_UNKNOWN_M: Final = -9998.0
COARSE_ZOOM, FINE_ZOOM = 14, 15
FINE_DEG: Final = 0.3 / 3600
"""Between the spacings of the models of 5 m (0.2 seconds) and 10 m (0.4 seconds)."""

Grid = NDArray[np.float64]


class Elevation(Protocol):
    """Heights of an area, by map tiles of one zoom."""

    zoom: int

    def places(self) -> set[Place]:
        """Columns and rows of the tiles with heights."""

    def heights(self, place: Place) -> Heights:
        """Heights in m at the centres of a tile's pixels; NaN where unknown."""


def relief_tiles(elevation: Elevation, min_zoom: int) -> Iterator[Tile]:
    """Tiles of the shaded relief in WebP, from the highest zoom to the lowest.

    Raises:
        FieldError: The area is too large for the memory.
    """
    places = elevation.places()
    if len(places) > MAX_TILES:
        rule = f"at most {MAX_TILES} tiles of zoom {elevation.zoom}"
        remedy = "make a pack for each part of the area"
        raise FieldError("source", rule, str(len(places)), remedy)
    level = {place: elevation.heights(place) for place in sorted(places)}
    level = {place: each for place, each in level.items() if np.isfinite(each).any()}
    for zoom in range(elevation.zoom, min_zoom - 1, -1):
        for place in level:
            yield Tile(zoom, *place, _webp(_shaded(zoom, place, level)))
        level = _halved(level)


def _halved(level: dict[Place, Heights]) -> dict[Place, Heights]:
    """Heights of the next lower zoom: means of four pixels."""
    half = PIXELS // 2
    found: dict[Place, Heights] = {}
    for (column, row), heights in level.items():
        parent = (column // 2, row // 2)
        if parent not in found:
            found[parent] = np.full((PIXELS, PIXELS), np.nan, np.float32)
        x, y = (column % 2) * half, (row % 2) * half
        found[parent][y : y + half, x : x + half] = _means_of_four(heights)
    return found


def _means_of_four(heights: Heights) -> Heights:
    quarters = np.stack([heights[y::2, x::2] for y in (0, 1) for x in (0, 1)])
    known = np.isfinite(quarters)
    total = np.where(known, quarters, 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / known.sum(axis=0), np.float32)


def _with_margin(place: Place, level: dict[Place, Heights]) -> Heights:
    """Heights of a tile with one pixel of each neighbour, or of its own edge."""
    own = level[place]
    found = np.pad(own, 1, mode="edge")
    column, row = place
    sides: dict[Place, tuple[Part, Part, Part, Part]] = {
        (column - 1, row): (slice(1, -1), 0, slice(None), -1),
        (column + 1, row): (slice(1, -1), -1, slice(None), 0),
        (column, row - 1): (0, slice(1, -1), -1, slice(None)),
        (column, row + 1): (-1, slice(1, -1), 0, slice(None)),
    }
    for other, (to_y, to_x, from_y, from_x) in sides.items():
        if other in level:
            edge = level[other][from_y, from_x]
            found[to_y, to_x] = np.where(np.isfinite(edge), edge, found[to_y, to_x])
    return found


def _shaded(zoom: int, place: Place, level: dict[Place, Heights]) -> NDArray[np.uint8]:
    """Red, green, blue and opacity of a tile."""
    around = _with_margin(place, level)
    _, south, _, north = tile_bounds(zoom, *place)
    shrink = float(np.cos(np.radians((south + north) / 2)))
    pixel_m = EQUATOR_M * shrink / (PIXELS << zoom)
    heights = around[1:-1, 1:-1]
    known = np.isfinite(heights)
    shade = _shade(np.nan_to_num(around), pixel_m, zoom)
    if zoom >= CONTOUR_ZOOM:
        interval = CONTOURS_M.get(zoom, 10.0)
        shade = np.where(_contours(around, interval), shade * CONTOUR_SHADE, shade)
    tint = np.stack(
        [
            np.interp(heights, TINT_HEIGHTS_M, channel)
            for channel in np.transpose(TINTS)
        ],
        axis=-1,
    )
    colour = np.clip(np.nan_to_num(tint) * shade[..., None], 0, OPAQUE)
    opacity = np.where(known, OPAQUE, 0)[..., None]
    return np.concatenate([colour, opacity], axis=-1).astype(np.uint8)


def _shade(around: Heights, pixel_m: float, zoom: int) -> NDArray[np.float64]:
    """Brightness of each pixel, 1 where the ground is flat."""
    # At low zooms the means of many pixels are flatter than the slopes.
    steeper = 1.0 + max(0, 13 - zoom) * 0.5
    up, mid, down = around[:-2], around[1:-1], around[2:]
    sums = up + 2 * mid + down
    to_east = (sums[:, 2:] - sums[:, :-2]) * steeper / (8 * pixel_m)
    rows = around[:, :-2] + 2 * around[:, 1:-1] + around[:, 2:]
    to_south = (rows[2:] - rows[:-2]) * steeper / (8 * pixel_m)
    azimuth, height = np.radians(SUN_AZIMUTH_DEG), np.radians(SUN_HEIGHT_DEG)
    towards = to_east * np.sin(azimuth) - to_south * np.cos(azimuth)
    lit = (np.sin(height) - np.cos(height) * towards) / np.sqrt(
        1 + to_east**2 + to_south**2
    )
    span = np.where(lit < FLAT, (1 - DARKEST) / FLAT, (LIGHTEST - 1) / (1 - FLAT))
    return np.asarray(np.clip(1 + (lit - FLAT) * span, DARKEST, LIGHTEST))


def _contours(around: Heights, interval_m: float) -> NDArray[np.bool_]:
    """Pixels in which a contour line lies."""
    steps = np.floor(around / interval_m)
    here = steps[1:-1, 1:-1]
    east, south = steps[1:-1, 2:], steps[2:, 1:-1]
    known = np.isfinite(here) & np.isfinite(east) & np.isfinite(south)
    return np.asarray(known & ((here != east) | (here != south)))


def _webp(pixels: NDArray[np.uint8]) -> bytes:
    is_opaque = bool((pixels[..., 3] == OPAQUE).all())
    image = Image.fromarray(pixels[..., :3] if is_opaque else pixels)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=QUALITY, method=1)
    return file.getvalue()


def open_elevation(folder: Path) -> tuple[Elevation, str]:
    """Elevations of a folder, and the attribution that GSI asks for.

    Raises:
        FieldError: The folder holds neither kind, or a file in it is damaged.
    """
    if not folder.is_dir():
        raise FieldError("source", RULE, str(folder), "it is no folder")
    tiles = list(tile_files(folder, ELEVATION_TILE))
    if tiles:
        link = "https://maps.gsi.go.jp/development/ichiran.html"
        text = f'<a href="{link}">地理院タイル（標高タイル）</a>を加工して作成'
        zoom = max(tile[0] for tile in tiles)
        paths = {(x, y): path for z, x, y, path in tiles if z == zoom}
        return ElevationTiles(zoom, paths), text
    meshes = [_mesh(name, text) for name, text in _xml_files(folder)]
    if not meshes:
        raise FieldError("source", RULE, str(folder), "it holds none of these files")
    text = "国土地理院 基盤地図情報（数値標高モデル）を加工して作成"
    return ElevationModel(meshes), text


class ElevationTiles:
    """Elevation tiles of GSI, those of the highest zoom in a folder."""

    def __init__(self, zoom: int, paths: dict[Place, Path]) -> None:
        self.zoom = zoom
        self._paths = paths

    def places(self) -> set[Place]:
        """Columns and rows of the tiles with heights."""
        return set(self._paths)

    def heights(self, place: Place) -> Heights:
        """Heights in m at the centres of a tile's pixels; NaN where unknown.

        Raises:
            FieldError: The file is damaged.
        """
        path = self._paths[place]
        name = "/".join(path.parts[-3:])
        try:
            found = _png_heights(path) if path.suffix == ".png" else _text_heights(path)
        except (OSError, ValueError, UnidentifiedImageError) as error:
            rule = "an elevation tile of GSI"
            raise FieldError("source", rule, name, str(error)) from error
        if found.shape != (PIXELS, PIXELS):
            rule = f"an elevation tile of {PIXELS} x {PIXELS} points"
            raise FieldError("source", rule, name, f"it has {found.shape}")
        return found


def _png_heights(path: Path) -> Heights:
    with Image.open(path) as image:
        if image.size != (PIXELS, PIXELS):
            raise ValueError(f"its size is {image.size}")
        parts = np.asarray(image.convert("RGB")).astype(np.int64)
    units = (parts[..., 0] << 16) + (parts[..., 1] << 8) + parts[..., 2]
    metres = np.where(units > PNG_UNKNOWN, units - 2 * PNG_UNKNOWN, units) * PNG_UNIT_M
    return np.where(units == PNG_UNKNOWN, np.nan, metres).astype(np.float32)


def _text_heights(path: Path) -> Heights:
    rows = path.read_text(encoding="ascii").split()
    values = [row.replace(TEXT_UNKNOWN, "nan").rstrip(",").split(",") for row in rows]
    return np.array(values, np.float32)


@dataclass(frozen=True)
class ElevationMesh:
    """Heights of one mesh, from its north-western corner.

    Attributes:
        west: Longitude of its edge.
        north: Latitude of its edge.
        spacing: Between two points, in degrees.
        heights: Rows from the north; NaN where unknown.
    """

    west: float
    north: float
    spacing: float
    heights: Heights


class ElevationModel:
    """Meshes of the digital elevation model; a finer one comes before a coarser one."""

    def __init__(self, meshes: list[ElevationMesh]) -> None:
        fine = [each for each in meshes if each.spacing < FINE_DEG]
        coarse = [each for each in meshes if each.spacing >= FINE_DEG]
        self.zoom = FINE_ZOOM if fine else COARSE_ZOOM
        self._mosaics = [_joined(each) for each in (fine, coarse) if each]

    def places(self) -> set[Place]:
        """Columns and rows of the tiles with heights."""
        found: set[Place] = set()
        for mosaic in self._mosaics:
            rows, columns = mosaic.heights.shape
            west, north = _place(self.zoom, mosaic.west, mosaic.north)
            east, south = _place(
                self.zoom,
                mosaic.west + columns * mosaic.spacing,
                mosaic.north - rows * mosaic.spacing,
            )
            found |= {
                (x, y)
                for x in range(int(west), int(east) + 1)
                for y in range(int(north), int(south) + 1)
            }
        return found

    def heights(self, place: Place) -> Heights:
        """Heights in m at the centres of a tile's pixels; NaN where unknown."""
        longitudes, latitudes = _centres(self.zoom, place)
        found = np.full((PIXELS, PIXELS), np.nan, np.float32)
        for mosaic in self._mosaics:
            below = _sampled(mosaic, longitudes, latitudes)
            found = np.where(np.isfinite(found), found, below)
        return found


def _joined(meshes: list[ElevationMesh]) -> ElevationMesh:
    """One mesh over all meshes of about the same spacing."""
    spacing = meshes[0].spacing
    west = min(each.west for each in meshes)
    north = max(each.north for each in meshes)
    corners = [
        (round((north - each.north) / spacing), round((each.west - west) / spacing))
        for each in meshes
    ]
    pairs = list(zip(meshes, corners, strict=True))
    rows = max(row + each.heights.shape[0] for each, (row, _) in pairs)
    columns = max(column + each.heights.shape[1] for each, (_, column) in pairs)
    if rows * columns > MAX_POINTS:
        rule = f"meshes that together cover at most {MAX_POINTS} points"
        remedy = "make a pack for each part of the area"
        raise FieldError("source", rule, f"{rows * columns}", remedy)
    whole = np.full((rows, columns), np.nan, np.float32)
    for each, (row, column) in pairs:
        height, width = each.heights.shape
        part = whole[row : row + height, column : column + width]
        np.copyto(part, each.heights, where=np.isfinite(each.heights))
    return ElevationMesh(west, north, spacing, whole)


def _centres(zoom: int, place: Place) -> tuple[Grid, Grid]:
    """Longitudes and latitudes of a tile's pixel centres."""
    x, y = ((each + (np.arange(PIXELS) + 0.5) / PIXELS) / (1 << zoom) for each in place)
    return x * 360 - 180, np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * y))))


def _place(zoom: int, longitude: float, latitude: float) -> tuple[float, float]:
    y = (1 - np.arcsinh(np.tan(np.radians(latitude))) / np.pi) / 2
    return (longitude + 180) / 360 * (1 << zoom), float(y) * (1 << zoom)


def _sampled(mesh: ElevationMesh, longitudes: Grid, latitudes: Grid) -> Heights:
    """Heights between the mesh's points; that of the nearest beside an unknown one."""
    rows, columns = mesh.heights.shape
    y = (mesh.north - latitudes) / mesh.spacing - 0.5
    x = (longitudes - mesh.west) / mesh.spacing - 0.5
    inside = ((y >= -1) & (y <= rows))[:, None] & ((x >= -1) & (x <= columns))
    y, x = np.clip(y, 0, rows - 1), np.clip(x, 0, columns - 1)
    nearest = mesh.heights[np.ix_(np.rint(y).astype(int), np.rint(x).astype(int))]
    between = _between(mesh.heights, y, x)
    found = np.where(np.isfinite(between), between, nearest)
    return np.where(inside, found, np.nan).astype(np.float32)


def _between(points: Heights, y: Grid, x: Grid) -> Grid:
    """Bilinear means at rows y and columns x of a grid."""
    top, left = y.astype(int), x.astype(int)
    bottom = np.minimum(top + 1, points.shape[0] - 1)
    right = np.minimum(left + 1, points.shape[1] - 1)
    across, down = x - left, (y - top)[:, None]

    def row_means(rows: NDArray[np.int_]) -> Grid:
        west, east = points[np.ix_(rows, left)], points[np.ix_(rows, right)]
        return np.asarray(west * (1 - across) + east * across)

    return np.asarray(row_means(top) * (1 - down) + row_means(bottom) * down)


def _xml_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        try:
            if path.suffix == ".xml":
                _check_size(name, path.stat().st_size)
                yield name, path.read_bytes()
            elif path.suffix == ".zip":
                yield from _zipped(name, path)
        except (OSError, zipfile.BadZipFile) as error:
            raise FieldError("source", RULE, name, str(error)) from error


def _zipped(name: str, file: Path | io.BytesIO) -> Iterator[tuple[str, bytes]]:
    """XML files of a zip file, and of the zip files in it, as the download has them."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            inner = f"{name}/{member.filename}"
            if member.filename.endswith((".xml", ".zip")):
                _check_size(inner, member.file_size)
            if member.filename.endswith(".xml"):
                yield inner, archive.read(member)
            elif member.filename.endswith(".zip") and isinstance(file, Path):
                yield from _zipped(inner, io.BytesIO(archive.read(member)))


def _check_size(name: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        rule = f"files of at most {MAX_FILE_BYTES} bytes"
        raise FieldError("source", rule, name, f"it has {size}")


def _mesh(name: str, text: bytes) -> ElevationMesh:
    """Decode a GML file.

    Raises:
        FieldError: It is not a mesh of the digital elevation model.
    """
    try:
        root = ET.fromstring(text)  # noqa: S314 - of bounded size; expat limits entities
        _, west = _numbers(root, "lowerCorner")
        north, east = _numbers(root, "upperCorner")
        columns, rows = (int(last) + 1 for last in _numbers(root, "high"))
        first = _numbers(root, "startPoint")
        lines = (root.findtext(f".//{GML}tupleList") or "").split()
        values = np.array([line.rpartition(",")[2] for line in lines], np.float32)
    except (ET.ParseError, ValueError) as error:
        raise FieldError("source", RULE, name, str(error)) from error
    begin, size = int(first[1]) * columns + int(first[0]), rows * columns
    if east <= west or not begin + len(values) <= size <= MAX_POINTS:
        raise FieldError("source", RULE, name, "its grid does not hold its points")
    whole = np.full(size, np.nan, np.float32)
    whole[begin : begin + len(values)] = values
    whole[whole < GML_UNKNOWN_M] = np.nan
    heights = whole.reshape(rows, columns)
    return ElevationMesh(west, north, (east - west) / columns, heights)


def _numbers(root: ET.Element, tag: str) -> tuple[float, float]:
    text = root.findtext(f".//{GML}{tag}") or ""
    first, second = text.split()
    return float(first), float(second)
