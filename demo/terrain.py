"""The demo's landscape: wooded mountains and two valleys, so that its map has a ground.

Every point of a coarse grid drains along a tree of random cheapest paths, and rises
above the next point downstream by a slope that falls with the area upstream (Flint's
law, 1974): this gives the ridges and branching valleys of rivers. Paths along the two
streams of the demo are cheap, so that they become its main valleys. The same heights
come out on every machine.

On it are overlays, invented as well: zones below the slopes, shelters, two districts.
The demo uploads them as a chief does.
"""

import heapq
import json
from collections.abc import Iterator
from itertools import pairwise
from math import cos, hypot, pi, radians
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backend_spark.relief import PIXELS, Heights, Place, relief_tiles
from backend_spark.tile_packs import PackTexts, write_pack
from demo.scenario import nodes

ZOOM: Final = 13
MIN_ZOOM: Final = 8
FIRST: Final = (7130, 3281)
"""Column and row of the north-western tile of `ZOOM`."""

SIZE: Final = (8, 6)
POINTS: Final = 16
"""Points of the drainage tree in a tile's side."""

SMOOTH: Final = 128
"""Points in a tile's side at which the coarse heights are bent and roughened."""

SPACING_M: Final = 255.0
STEEPEST, FLATTEST, CONCAVITY = 0.56, 0.012, 0.45
MOUTH_M: Final = 20.0
PACK: Final = "terrain.mbtiles"
ATTRIBUTION: Final = "架空の地形（デモ用）"

STREAMS: Final = (
    (
        (133.478, 33.47), (133.481, 33.50), (133.497, 33.545), (133.5070, 33.5665),
        (133.5065, 33.5735), (133.5040, 33.581), (133.510, 33.598), (133.500, 33.64),
        (133.512, 33.68),
    ),
    (
        (133.590, 33.47), (133.572, 33.51), (133.557, 33.565), (133.5480, 33.591),
        (133.5435, 33.600), (133.5415, 33.607), (133.532, 33.63), (133.548, 33.68),
    ),
)  # fmt: skip
"""Longitude and latitude along the streams of Otani and Nishi, from the mouth."""

Grid = NDArray[np.float64]
Point = tuple[int, int]


class Terrain:
    """Heights of the demo's area, by tiles of `ZOOM`."""

    zoom = ZOOM

    def __init__(self) -> None:
        coarse = _enlarged(_smoothed(_drained(_costs())), SMOOTH)
        self._heights = _enlarged(_bent(coarse), PIXELS)

    def places(self) -> set[Place]:
        """Columns and rows of the tiles."""
        return {
            (FIRST[0] + column, FIRST[1] + row)
            for column in range(SIZE[0])
            for row in range(SIZE[1])
        }

    def heights(self, place: Place) -> Heights:
        """Heights at the centres of a tile's pixels."""
        x, y = ((place[axis] - FIRST[axis]) * PIXELS for axis in (0, 1))
        return self._heights[y : y + PIXELS, x : x + PIXELS]


def write_terrain(folder: Path) -> Path:
    """Write the pack into a folder; returns its path."""
    path = folder / PACK
    texts = PackTexts("Demo terrain", ATTRIBUTION)
    write_pack(path, "webp", texts, relief_tiles(Terrain(), MIN_ZOOM))
    return path


def place_of(longitude: float, latitude: float) -> tuple[float, float]:
    """Column and row of a place, in tiles from the north-western corner."""
    count = 1 << ZOOM
    y = (1 - np.arcsinh(np.tan(radians(latitude))) / pi) / 2
    return (longitude + 180) / 360 * count - FIRST[0], float(y * count - FIRST[1])


def _costs() -> Grid:
    """Cost of each point of the drainage tree; low along the streams."""
    shape = (SIZE[1] * POINTS, SIZE[0] * POINTS)
    fine = np.random.default_rng(3).standard_normal(shape)
    costs = np.exp(0.3 * fine + 0.5 * _noise(shape, 6, 4))
    for stream in STREAMS:
        for (x0, y0), (x1, y1) in pairwise(place_of(*place) for place in stream):
            steps = np.linspace(0, 1, 2 * POINTS)
            columns = ((x0 + (x1 - x0) * steps) * POINTS).astype(int)
            rows = ((y0 + (y1 - y0) * steps) * POINTS).astype(int)
            inside = (rows >= 0) & (rows < shape[0])
            costs[rows[inside], columns[inside]] = 0.02
    return costs


def _drained(costs: Grid) -> Grid:
    """Height of each point, from the tree of cheapest paths to the southern edge."""
    parents = _tree(costs)
    upstream = dict.fromkeys(parents, 1)
    for point, parent in reversed(parents.items()):
        if parent is not None:
            upstream[parent] += upstream[point]
    heights = np.full(costs.shape, MOUTH_M)
    for point, parent in parents.items():
        if parent is not None:
            slope = max(STEEPEST * upstream[point] ** -CONCAVITY, FLATTEST)
            way_m = SPACING_M * hypot(point[0] - parent[0], point[1] - parent[1])
            heights[point] = heights[parent] + slope * way_m
    return heights


def _tree(costs: Grid) -> dict[Point, Point | None]:
    """Next point downstream of each point, those downstream first."""
    rows, columns = costs.shape
    found: dict[Point, Point | None] = {}
    open_paths: list[tuple[float, Point, Point | None]] = [
        (float(costs[rows - 1, at]), (rows - 1, at), None) for at in range(columns)
    ]
    heapq.heapify(open_paths)
    while open_paths:
        cost, point, parent = heapq.heappop(open_paths)
        if point in found:
            continue
        found[point] = parent
        for other in _neighbours(point, costs.shape):
            if other not in found:
                way = hypot(other[0] - point[0], other[1] - point[1])
                path = (cost + way * float(costs[other]), other, point)
                heapq.heappush(open_paths, path)
    return found


def _neighbours(point: Point, shape: tuple[int, ...]) -> Iterator[Point]:
    row, column = point
    for y in range(max(row - 1, 0), min(row + 2, shape[0])):
        for x in range(max(column - 1, 0), min(column + 2, shape[1])):
            if (y, x) != point:
                yield y, x


def _smoothed(heights: Grid) -> Grid:
    """Means with weights 1, 2, 1 in both directions."""
    around = np.pad(heights, 1, mode="edge")
    rows = (around[:-2] + 2 * around[1:-1] + around[2:]) / 4
    return np.asarray((rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 4)


def _enlarged(heights: NDArray[np.floating], points: int) -> Heights:
    """The heights with a number of points in a tile's side."""
    size = (SIZE[0] * points, SIZE[1] * points)
    image = Image.fromarray(heights.astype(np.float32))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


def _bent(heights: Heights) -> Grid:
    """The heights along bent lines, and roughened: the grid no longer shows."""
    rows, columns = heights.shape
    y, x = np.mgrid[:rows, :columns].astype(float)
    y += 6.0 * _noise(heights.shape, 70, 1)
    x += 6.0 * _noise(heights.shape, 70, 2)
    y, x = np.clip(y, 0, rows - 1.001), np.clip(x, 0, columns - 1.001)
    top, left = y.astype(int), x.astype(int)
    down, right = y - top, x - left
    upper = heights[top, left] * (1 - right) + heights[top, left + 1] * right
    lower = heights[top + 1, left] * (1 - right) + heights[top + 1, left + 1] * right
    bent = upper * (1 - down) + lower * down
    rough = _noise(heights.shape, 7, 3) + 3 * _noise(heights.shape, 18, 5)
    return np.asarray(bent + 3.0 * rough)


def _noise(shape: tuple[int, ...], points: float, seed: int) -> Grid:
    """Smooth noise of unit variance with features of about a number of points."""
    white = np.random.default_rng(seed).standard_normal(shape)
    up = np.fft.fftfreq(shape[0])[:, None]
    across = np.fft.rfftfreq(shape[1])[None, :]
    kept = np.exp(-((np.hypot(up, across) * points) ** 2))
    smooth = np.fft.irfft2(np.fft.rfft2(white) * kept, shape)
    return np.asarray(smooth / smooth.std())


M_PER_DEG: Final = 111_320.0
M_PER_DEG_EAST: Final = M_PER_DEG * cos(radians(33.59))
SHELTERS: Final = {"大谷小学校": (133.5082, 33.5752), "西公民館": (133.5452, 33.5995)}
DISTRICTS: Final = {
    "大谷": (
        (133.488, 33.556),
        (133.521, 33.561),
        (133.520, 33.592),
        (133.487, 33.589),
    ),
    "西": ((133.521, 33.586), (133.559, 33.583), (133.560, 33.616), (133.520, 33.613)),
}
UPHILL_M: Final = 90.0
"""How far a zone reaches above its node."""

WIDTHS_M: Final = {"warning_zone": (70.0, 150.0), "special_zone": (45.0, 80.0)}
"""Half of the width at the upper and at the lower end."""

REACH: Final = {"warning_zone": 0.75, "special_zone": 0.35}
"""How far a zone reaches from its node towards the stream."""

Position = tuple[float, float]


def overlay_files() -> Iterator[tuple[str, str, bytes]]:
    """Title, kind and GeoJSON of each overlay."""
    zones = [
        _feature("Polygon", [_zone((plan.longitude, plan.latitude), kind)], plan.id)
        for kind in WIDTHS_M
        for _, plan in nodes()
    ]
    half = len(zones) // 2
    yield "土砂災害警戒区域（架空）", "warning_zone", _collection(zones[:half])
    yield "土砂災害特別警戒区域（架空）", "special_zone", _collection(zones[half:])
    shelters = [_feature("Point", list(at), name) for name, at in SHELTERS.items()]
    yield "避難所（架空）", "shelter", _collection(shelters)
    districts = [
        _feature("Polygon", [[*corners, corners[0]]], name)
        for name, corners in DISTRICTS.items()
    ]
    yield "地区（架空）", "district", _collection(districts)


def _feature(kind: str, coordinates: list[Any], name: str) -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "properties": {"name": name}, "geometry": geometry}


def _collection(features: list[dict[str, Any]]) -> bytes:
    return json.dumps({"type": "FeatureCollection", "features": features}).encode()


def _zone(node: Position, kind: str) -> list[Position]:
    """Outline of a fan from above a node towards the stream."""
    x, y = node[0] * M_PER_DEG_EAST, node[1] * M_PER_DEG
    to_x, to_y = (to - at for to, at in zip(_nearest(x, y), (x, y), strict=True))
    length = hypot(to_x, to_y)
    along, across = (to_x / length, to_y / length), (-to_y / length, to_x / length)
    narrow, wide = WIDTHS_M[kind]
    reach = REACH[kind] * length
    ends = [(-UPHILL_M, narrow), (reach, wide), (reach, -wide), (-UPHILL_M, -narrow)]
    corners = [
        (x + way * along[0] + side * across[0], y + way * along[1] + side * across[1])
        for way, side in ends
    ]
    return [(a / M_PER_DEG_EAST, b / M_PER_DEG) for a, b in [*corners, corners[0]]]


def _nearest(x: float, y: float) -> Position:
    """The point of the streams that is nearest, in metres."""
    found = []
    for stream in STREAMS:
        for (lon0, lat0), (lon1, lat1) in pairwise(stream):
            x0, y0 = lon0 * M_PER_DEG_EAST, lat0 * M_PER_DEG
            dx, dy = lon1 * M_PER_DEG_EAST - x0, lat1 * M_PER_DEG - y0
            share = ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy)
            share = min(max(share, 0.0), 1.0)
            found.append((x0 + share * dx, y0 + share * dy))
    return min(found, key=lambda at: hypot(at[0] - x, at[1] - y))
