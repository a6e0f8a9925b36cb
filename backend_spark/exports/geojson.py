"""Cells with their levels as GeoJSON.

Source: RFC 7946: longitude before latitude, WGS 84, rings closed and
counter-clockwise.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from backend_spark.exports.states import CellState
from backend_spark.exports.words import level_name
from spatial_mqtt.cells import Cell

DIGITS = 7
"""About a centimetre, as RFC 7946 section 11.2 asks for no more than is known."""


def feature_collection(
    states: Iterable[CellState], moment: datetime, issued_at: datetime
) -> dict[str, Any]:
    """All cells as polygons.

    Args:
        states: Of the cells.
        moment: What they are the states at.
        issued_at: Now.
    """
    return {
        "type": "FeatureCollection",
        "valid_time": moment.isoformat(timespec="seconds"),
        "issued_at": issued_at.isoformat(timespec="seconds"),
        "features": [_feature(state) for state in states],
    }


def ring(cell: str) -> list[list[float]]:
    """The outline of a cell, closed: longitude and latitude in degrees."""
    corners = Cell.from_token(cell).corners()
    points = [[round(lon, DIGITS), round(lat, DIGITS)] for lat, lon in corners]
    return [*points, points[0]]


def finite(number: float | None) -> float | None:
    """The number, if JSON can say it, without what binary fractions add to it."""
    return round(number, 6) if number is not None and math.isfinite(number) else None


def _feature(state: CellState) -> dict[str, Any]:
    japanese, english = level_name(state.level, is_silent=state.is_silent)
    return {
        "type": "Feature",
        "id": state.cell,
        "geometry": {"type": "Polygon", "coordinates": [ring(state.cell)]},
        "properties": {
            "s2_token": state.cell,
            "level": state.level,
            "level_name": english,
            "level_name_ja": japanese,
            "valid_time": state.at.isoformat(),
            "r60_mm": finite(state.r60_mm),
            "swi_mm": finite(state.swi_mm),
            "swi_is_lower_bound": state.is_lower_bound,
            "cl_margin_mm": finite(state.margin_mm),
            "completeness": finite(state.completeness),
            "reasons": list(state.reasons),
            "assumed": list(state.assumed),
            "n_nodes": state.n_nodes,
        },
    }
