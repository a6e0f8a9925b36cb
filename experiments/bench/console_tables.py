"""Tables of a storm over many cells, as the scoring job writes them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.maintenance import renew_current
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, NODES, SILVER, SPARK_TABLES
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.topics import cell_topic

STEP_S = 600
STEPS = 433
SILVER_STEPS = 36
MICRO = 1_000_000


@dataclass(frozen=True)
class Size:
    """Amount of data to show."""

    cells: int
    nodes: int


def write_tables(data: Path, size: Size, end_s: int) -> None:
    """Write the tables of a storm over all cells."""
    folder = data / "tables"
    create_tables(folder, SPARK_TABLES)
    locations = _locations(size.nodes, size.cells)
    tokens = list(dict.fromkeys(token for _, token in locations))
    for first in range(0, STEPS, 36):
        steps = range(first, min(first + 36, STEPS))
        rows = pa.concat_tables(_levels(tokens, end_s, step) for step in steps)
        write_deltalake(str(folder / "levels"), rows, mode="append")
    for step in reversed(range(SILVER_STEPS)):
        rows = _silver(locations, end_s - step * STEP_S)
        write_deltalake(str(folder / "silver"), rows, mode="append")
    write_deltalake(str(folder / "nodes"), _nodes(locations, end_s), mode="append")
    renew_current(folder)


def write_pass(data: Path, size: Size) -> None:
    """Write one more step, as a pass of the job does."""
    folder = data / "tables"
    end_s = round(DeltaTables(folder).newest()["at"].to_pylist()[0].timestamp())
    locations = _locations(size.nodes, size.cells)
    tokens = list(dict.fromkeys(token for _, token in locations))
    levels = _levels(tokens, end_s, STEPS)
    write_deltalake(
        str(folder / "silver"), _silver(locations, end_s + STEP_S), mode="append"
    )
    write_deltalake(str(folder / "levels"), levels, mode="append")
    renew_current(folder)


def _locations(nodes: int, cells: int) -> list[tuple[str, str]]:
    """Return topic and analysis cell of each node; the nodes form a grid of cells."""
    side = math.ceil(math.sqrt(cells))
    found = []
    for at in range(nodes):
        index = at % cells
        latitude = 33.0 + (index // side) * 0.0094
        longitude = 133.0 + (index % side) * 0.0100 + (at // cells) * 0.0005
        cell = Cell.at(latitude, longitude)
        found.append((cell_topic(cell), cell.parent(ANALYSIS_LEVEL).token))
    return found


def _levels(tokens: list[str], end_s: int, step: int) -> pa.Table:
    count = len(tokens)
    wet = np.sin(np.arange(count) / 700.0) ** 2 * step / STEPS
    level = 1 + (wet[:, None] > np.array([0.35, 0.55, 0.75, 0.92])).sum(axis=1)
    reason = [
        [f"soil water index {w * 300:.1f} mm >= warning criterion 150.0 mm"]
        for w in wet
    ]
    columns: dict[str, Any] = {
        "cell": tokens,
        "at": pa.array(np.full(count, (end_s - (STEPS - 1 - step) * STEP_S) * MICRO)),
        "r60_mm": wet * 40,
        "swi_mm": wet * 300,
        "s1_mm": wet * 100,
        "s2_mm": wet * 100,
        "s3_mm": wet * 100,
        "lower_bound": [False] * count,
        "rain_known": [True] * count,
        "level": level,
        "reasons": reason,
        "n_nodes": [2] * count,
    }
    return _table(columns, LEVELS, count)


def _silver(locations: list[tuple[str, str]], at_s: int) -> pa.Table:
    count = len(locations)
    tables = []
    for name, unit in (("rain", "mm"), ("tilt/x", "deg"), ("tilt/y", "deg")):
        moment = np.full(count, at_s * MICRO)
        columns: dict[str, Any] = {
            "node": [f"node-{at:05d}" for at in range(count)],
            "boot": ["b"] * count,
            "cell": [token for _, token in locations],
            "topic": [topic for topic, _ in locations],
            "name": [name] * count,
            "unit": [unit] * count,
            "value": np.full(count, 0.1),
            "at": moment,
            "received_at": moment,
            "synchronised": [True] * count,
        }
        tables.append(_table(columns, SILVER, count))
    return pa.concat_tables(tables)


def _nodes(locations: list[tuple[str, str]], at_s: int) -> pa.Table:
    count = len(locations)
    moment = np.full(count, at_s * MICRO)
    columns: dict[str, Any] = {
        "node": [f"node-{at:05d}" for at in range(count)],
        "cell": [token for _, token in locations],
        "topic": [topic for topic, _ in locations],
        "boot": ["b"] * count,
        "at": moment,
        "received_at": moment,
        "synchronised": [True] * count,
        "reported_at": moment,
        "queued": ["none"] * count,
        "gateway": [f"gateway-{at % 40}:8883" for at in range(count)],
    }
    return _table(columns, NODES, count)


def _table(columns: dict[str, Any], schema: pa.Schema, count: int) -> pa.Table:
    arrays = [
        pa.array(columns[f.name]).cast(f.type)
        if f.name in columns
        else pa.nulls(count, f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)
