"""Overlays of the demo's map: zones below its slopes, shelters, and two districts.

They are invented like the terrain. The demo uploads them as a chief does.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from math import cos, hypot, radians
from typing import Any, Final

from demo.scenario import nodes
from demo.terrain import STREAMS

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

Place = tuple[float, float]


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


def _zone(node: Place, kind: str) -> list[Place]:
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


def _nearest(x: float, y: float) -> Place:
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
