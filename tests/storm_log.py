"""A storm over two cells in the ingester's log, and helpers to compare tables."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY, NODE_KEY, SENSOR_KEY
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

T0 = 1_750_000_200  # a full ten minutes
CELLS = (Cell.at(33.56, 133.53), Cell.at(34.40, 132.46))
ID = ("node", "boot", "seq")
TABLE_KEYS = {
    "bronze": ID,
    "silver": (*ID, "name"),
    "rejected": ID,
    "messages": ID,
    "levels": LEVEL_KEY,
    "current": ("cell",),
    "sensors": SENSOR_KEY,
    "revisions": (*LEVEL_KEY, "version"),
    "sensor_revisions": (*SENSOR_KEY, "version"),
    "memories": LEVEL_KEY,
    "nodes": NODE_KEY,
    "alerts": ID,
}
"""Key of each table; rows are unique by it."""
TOKENS = [cell.parent(ANALYSIS_LEVEL).token for cell in CELLS]


def message(
    seq: int,
    node: int = 0,
    *,
    is_cut: bool = False,
    knock_deg: float = 0.0,
    waited_s: int = 2,
    status: Sequence[Reading] = (),
) -> LogRow:
    """Log row of a pack from a node with a rain gauge, a tilt meter and a wire."""
    at_s = T0 + 600 * seq
    readings = (
        Reading("rain", "mm", 4.0, 4.0 * seq),
        Reading("tilt/x", "deg", 0.002 * seq + knock_deg),
        Reading("tilt/y", "deg", 0.0),
        Reading("wire", None, is_cut),
        *status,
    )
    name = f"node-{node}"
    payload = encode_cbor(Pack(MessageId(name, "b", seq), 5, at_s, readings))
    received_us = (at_s + waited_s) * 1_000_000
    return LogRow(received_us, cell_topic(CELLS[node % 2]), payload, name, "b", seq, 5)


def write(log: Path, run: str, segments: Sequence[Sequence[LogRow]]) -> None:
    """Write segments of one run of an ingester."""
    writer = SegmentWriter(log, f"ingest-0.{run}")
    for rows in segments:
        writer.append(rows)


def ids(table: pa.Table) -> Counter[tuple[str, int]]:
    """Number of rows of each message in a table."""
    return Counter(
        zip(table["node"].to_pylist(), table["seq"].to_pylist(), strict=True)
    )


def by_key(levels: pa.Table) -> list[dict[str, Any]]:
    """Rows of levels, ordered by cell and time."""
    return levels.sort_by([("cell", "ascending"), ("at", "ascending")]).to_pylist()  # type: ignore[no-any-return]


def count_doubled(tables: DeltaTables) -> dict[str, int]:
    """Number of rows in each table whose key another row has."""
    doubled = {}
    for name, key in TABLE_KEYS.items():
        rows = tables.read(name, list(key))
        doubled[name] = len(rows) - len(rows.group_by(list(key)).aggregate([]))
    return doubled
