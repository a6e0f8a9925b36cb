"""Shaded relief from elevations, as map tiles.

The light comes from the north-west, as on Japanese maps, and the colours are pale, so
that the levels drawn above stay readable. Horn's gradient (1981) needs one more pixel
on each side of a tile.
"""

import io
from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backend_spark.tile_packs.packs import Tile, tile_bounds
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
