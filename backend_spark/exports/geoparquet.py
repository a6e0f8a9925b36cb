"""GeoParquet 1.1: levels of the cells with their polygons, for GIS and data frames.

Source: GeoParquet specification 1.1.0. Without ``crs`` the coordinates are longitude
and latitude in WGS 84 (OGC:CRS84).
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from backend_spark.exports.cell_states import CellState
from backend_spark.exports.formats import cell_feature
from backend_spark.tables.schemas import TEXTS, UTC_TIME
from service_runtime.files import write_atomic

GEOMETRY: Final = "geometry"
STATES: Final = pa.schema([
    pa.field("s2_token", pa.string()),
    pa.field("place", pa.string()),
    pa.field("level", pa.int32()),
    pa.field("causes", TEXTS),
    pa.field("state", pa.string()),
    pa.field("known_until", UTC_TIME),
    pa.field("level_name", pa.string()),
    pa.field("level_name_ja", pa.string()),
    pa.field("valid_time", UTC_TIME),
    pa.field("r60_mm", pa.float64()),
    pa.field("swi_mm", pa.float64()),
    pa.field("swi_is_lower_bound", pa.bool_()),
    pa.field("cl_margin_mm", pa.float64()),
    pa.field("completeness", pa.float64()),
    pa.field("reasons", TEXTS),
    pa.field("assumed", TEXTS),
    pa.field("n_nodes", pa.int32()),
    pa.field(GEOMETRY, pa.binary()),
])
"""The properties of the GeoJSON export, with times as such, and the polygon as WKB."""


def write_geoparquet(
    states: Sequence[CellState], moment: datetime, issued_at: datetime, path: Path
) -> int:
    """Write all cells as polygons to one file atomically; returns their number.

    Args:
        states: States of the cells.
        moment: Time of the states.
        issued_at: Time of the export.
        path: File to write.
    """
    rows = pa.Table.from_pylist([_row(state) for state in states], schema=STATES)
    polygons = shapely.from_wkb(rows[GEOMETRY].to_pylist())
    metadata = {
        "geo": {
            "version": "1.1.0",
            "primary_column": GEOMETRY,
            "columns": {
                GEOMETRY: {
                    "encoding": "WKB",
                    "geometry_types": ["Polygon"],
                    "orientation": "counterclockwise",
                    "bbox": shapely.total_bounds(polygons).tolist(),
                }
            },
        },
        "valid_time": moment.isoformat(timespec="seconds"),
        "issued_at": issued_at.isoformat(timespec="seconds"),
    }
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
    }
    out = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(texts), out, compression="zstd")
    write_atomic(path, out.getvalue().to_pybytes())
    return int(rows.num_rows)


def _row(state: CellState) -> dict[str, Any]:
    feature = cell_feature(state)
    polygon = shapely.Polygon(feature["geometry"]["coordinates"][0])
    return {
        **feature["properties"],
        "valid_time": state.at,
        "known_until": state.known_until,
        GEOMETRY: shapely.to_wkb(polygon),
    }
