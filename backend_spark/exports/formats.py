"""Formats of exports: tables as CSV or Parquet, cells, readings as SensorThings.

Sources: RFC 7946 for GeoJSON (longitude before latitude, WGS 84, rings closed and
counter-clockwise); OGC SensorThings API part 1: sensing 1.1 (18-088), section 8.2;
GeoParquet 1.1.0 (without ``crs``: longitude and latitude in WGS 84).
"""

import base64
import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import shapely

from backend_spark.errors import ExportError
from backend_spark.exports.cell_states import CellState
from backend_spark.i18n import level_name
from backend_spark.tables.reader import DeltaTables, sql_literal
from backend_spark.tables.schemas import TABLES, TEXTS, UTC_TIME
from service_runtime.files import write_atomic
from spatial_mqtt.cells import Cell

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters that make a spreadsheet treat text as a formula; a Japanese Excel
also the wide ones. Source: OWASP, CSV Injection."""


PART_ROWS: Final = 4096
"""Rows of a part of a document."""

MAX_READINGS: Final = 500_000
"""Readings of one SensorThings document, which is in memory as a whole."""

GEOJSON: Final = "application/geo+json"
"""Media type."""

ZONES: Final = {"UTC": "UTC", "JST": "Asia/Tokyo"}
"""Zones of exported times, with their names in the time zone database."""


@dataclass(frozen=True)
class RowSelection:
    """Rows of a table that are exported.

    Attributes:
        table: Name of the table.
        begin: First moment, with its zone; None means the first row.
        end: Moment after the last; None means the last row.
        cell: Token of a cell; None means all.
        node: Id of a node; None means all.

    Raises:
        ExportError: The table has no cells or no nodes.
    """

    table: str
    begin: datetime | None = None
    end: datetime | None = None
    cell: str | None = None
    node: str | None = None

    def __post_init__(self) -> None:
        """Check that the table has the columns."""
        for column in self.texts:
            if column not in TABLES[self.table].names:
                having = [name for name in TABLES if column in TABLES[name].names]
                rule = f"given for a table with nodes or cells ({', '.join(having)})"
                remedy = "choose another --table"
                raise ExportError(f"--{column}", rule, self.table, remedy)

    @property
    def texts(self) -> dict[str, str]:
        """Columns whose value is given."""
        given = {"cell": self.cell, "node": self.node}
        return {column: text for column, text in given.items() if text is not None}

    @property
    def conditions(self) -> list[str]:
        """What holds for the rows, in SQL."""
        time = time_column(self.table)
        found = [f"{name} = {sql_literal(text)}" for name, text in self.texts.items()]
        for sign, moment in ((">=", self.begin), ("<", self.end)):
            found += [] if moment is None else [f"{time} {sign} {sql_literal(moment)}"]
        return found


def read_batches(tables: DeltaTables, wanted: RowSelection) -> Iterator[pa.RecordBatch]:
    """Rows of a table, in batches."""
    name, begin, end = wanted.table, wanted.begin, wanted.end
    time = pc.field(time_column(name))
    within = None
    if begin is not None:
        within = time >= begin
    if end is not None:
        within = time < end if within is None else within & (time < end)
    columns = TABLES[name].names
    for batch in tables.dataset(name).to_batches(columns=columns, filter=within):
        # Not in the filter: Arrow cannot compare the string views of merged files.
        yield _with_texts(batch, wanted.texts)


def _with_texts(batch: pa.RecordBatch, texts: Mapping[str, str]) -> pa.RecordBatch:
    for column, text in texts.items():
        batch = batch.filter(pc.equal(batch[column].cast(pa.string()), text))
    return batch


def time_column(name: str) -> str:
    """Column that holds the time of a table's rows."""
    return "at" if "at" in TABLES[name].names else "received_at"


def csv_parts(
    name: str, rows: Iterable[pa.RecordBatch], zone: str = "UTC"
) -> Iterator[bytes]:
    """A table as CSV in UTF-8 with a header line, in parts of some thousand rows.

    Times are ISO 8601 with the offset of the zone, lists are joined by "; ", bytes are
    base64, and null is empty.

    Args:
        name: Name of the table.
        rows: Its rows.
        zone: One of `ZONES`.
    """
    # With a byte order mark; spreadsheets in Japan assume Shift JIS without one.
    yield b"\xef\xbb\xbf" + _csv_lines([TABLES[name].names])
    for batch in rows:
        zoned = batch.cast(zoned_schema(name, zone))
        for begin in range(0, zoned.num_rows, PART_ROWS):
            part = zoned.slice(begin, PART_ROWS).to_pylist()
            yield _csv_lines([map(csv_value, row.values()) for row in part])


def _csv_lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def zoned_schema(name: str, zone: str) -> pa.Schema:
    """Schema of a table with its times in a zone; they stay the same moments."""
    time = pa.timestamp("us", tz=ZONES[zone])
    return pa.schema([
        field.with_type(time) if field.type == UTC_TIME else field
        for field in TABLES[name]
    ])


def write_parquet(
    name: str, rows: Iterable[pa.RecordBatch], path: Path, zone: str = "UTC"
) -> int:
    """Write a table to one file atomically, and return the number of rows.

    Raises:
        ExportError: The file cannot be written.
    """
    schema = zoned_schema(name, zone)
    count = 0
    with unfinished_file(path) as unfinished:
        with writing(path):
            writer = pq.ParquetWriter(unfinished, schema, compression="zstd")
        for batch in rows:  # an error of reading is another one
            with writing(path):
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))
            count += batch.num_rows
        with writing(path):
            writer.close()
    return count


def write_parts(parts: Iterable[bytes], path: Path) -> None:
    """Write a file atomically, part by part.

    Raises:
        ExportError: The file cannot be written.
    """
    with unfinished_file(path) as unfinished:
        with writing(path):
            unfinished.write_bytes(b"")
        for part in parts:  # an error of reading is another one
            with writing(path), unfinished.open("ab") as file:
                file.write(part)
        with writing(path), unfinished.open("ab") as file:
            os.fsync(file.fileno())


@contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """File to write, which replaces another one at the end; none is left by an error.

    Raises:
        ExportError: The file cannot be replaced.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        yield unfinished
        with writing(path):
            unfinished.replace(path)
    finally:
        with suppress(OSError):  # the folder is none
            unfinished.unlink()


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn an error of writing a file into one that names it.

    Raises:
        ExportError: The file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ExportError.of_writing("--out", out, error) from error


def csv_value(value: Any) -> str | int | float | bool | None:  # noqa: ANN401 - any column
    """A value as a field of CSV: no formula, times in ISO 8601, bytes in base64."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULAS) else value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list):
        return csv_value("; ".join(map(str, value)))
    return value  # type: ignore[no-any-return]


DEGREE_DIGITS = 7
"""About a centimetre; RFC 7946 section 11.2 advises against more precision."""


def feature_collection(
    states: Iterable[CellState],
    moment: datetime,
    issued_at: datetime,
    *,
    is_exercise: bool = False,
) -> dict[str, Any]:
    """All cells as polygons.

    Args:
        states: States of the cells.
        moment: Time of the states.
        issued_at: Time of the export.
        is_exercise: Whether past data are taken as the present.
    """
    return {
        "type": "FeatureCollection",
        "valid_time": moment.isoformat(timespec="seconds"),
        "issued_at": issued_at.isoformat(timespec="seconds"),
        **exercise_mark(is_exercise),
        "features": [cell_feature(state, is_exercise=is_exercise) for state in states],
    }


def exercise_mark(is_exercise: bool) -> dict[str, bool]:
    """Property of what has past data as the present."""
    return {"exercise": True} if is_exercise else {}


def cell_ring(cell: str) -> list[list[float]]:
    """Closed outline of a cell: longitude and latitude in degrees."""
    corners = Cell.from_token(cell).corners()
    points = [
        [round(lon, DEGREE_DIGITS), round(lat, DEGREE_DIGITS)] for lat, lon in corners
    ]
    return [*points, points[0]]


def finite_or_none(number: float | None) -> float | None:
    """The number rounded to six digits; None if it is not finite."""
    return round(number, 6) if number is not None and math.isfinite(number) else None


def cell_feature(state: CellState, *, is_exercise: bool = False) -> dict[str, Any]:
    """A cell as a GeoJSON feature; of an exercise with a mark."""
    japanese, english = level_name(
        state.level, state.causes, is_silent=state.is_silent, is_held=state.is_held
    )
    return {
        "type": "Feature",
        "id": state.cell,
        "geometry": {"type": "Polygon", "coordinates": [cell_ring(state.cell)]},
        "properties": {
            "s2_token": state.cell,
            **exercise_mark(is_exercise),
            "place": state.place or None,
            "level": state.level,
            "causes": list(state.causes),
            "state": state.state,
            "known_until": state.known_until and state.known_until.isoformat(),
            "level_name": english,
            "level_name_ja": japanese,
            "valid_time": state.at.isoformat(),
            "r60_mm": finite_or_none(state.r60_mm),
            "swi_mm": finite_or_none(state.swi_mm),
            "swi_is_lower_bound": state.is_lower_bound,
            "cl_margin_mm": finite_or_none(state.margin_mm),
            "completeness": finite_or_none(state.completeness),
            "reasons": list(state.reasons),
            "assumed": list(state.assumed),
            "n_nodes": state.n_nodes,
        },
    }


_TYPES: Final = "http://www.opengis.net/def/observationType/OGC-OM/2.0/"
MEASURED: Final = f"{_TYPES}OM_Measurement"
TRUTH: Final = f"{_TYPES}OM_TruthObservation"
_UCUM: Final = "http://unitsofmeasure.org/ucum.html#para-"

COUNTER_NOTES: Final = {
    "": "",
    "result": ", counted up since the counter began: take differences",
    "parameters/sum": ", since the reading before; the counter is parameters/sum",
}
"""Where a rain gauge or another counter has its count; end of the description."""

UNITS: Final = {
    "mm": ("millimetre", "mm"),
    "deg": ("degree", "deg"),
    "Cel": ("degree Celsius", "Cel"),
    "Pa": ("pascal", "Pa"),
    "m": ("metre", "m"),
    "%": ("percent", "%"),
    "%RH": ("relative humidity", "%"),
    "V": ("volt", "V"),
    "A": ("ampere", "A"),
    "m/s2": ("metre per second squared", "m/s2"),
    "s": ("second", "s"),
    "/": ("ratio", "1"),
}
"""SenML units with their UCUM names and codes; other units keep their symbol."""


def sensor_things(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Readings of silver as things, datastreams and observations: JSON in parts.

    Readings that failed quality control are included, with their flag as
    `resultQuality`. Readings without a number are left out.
    """
    nodes: dict[str, _Streams] = {}
    newest: dict[tuple[str, str], tuple[str, str]] = {}
    for row in rows:
        if row["value"] is None and row["sum"] is None:
            continue
        key = row["name"], row["unit"] or ""
        streams = nodes.setdefault(row["node"], {})
        stream = streams.setdefault(key, _stream(row))
        observation = _observation(row)
        # As text, which takes a fifth of the memory of the objects.
        stream["Observations"].append(msgspec.json.encode(observation))
        of_name = row["node"], row["name"]
        last = observation["phenomenonTime"] or "", key[1]
        newest[of_name] = max(newest.get(of_name, ("", "")), last)
    for node, streams in nodes.items():
        for (name, unit), stream in streams.items():
            is_replaced = newest[node, name][1] != unit
            stream["@iot.id"] = stream_id(node, name, unit if is_replaced else None)
    yield b'{"@iot.count":%d,"value":[' % len(nodes)
    for number, (node, streams) in enumerate(sorted(nodes.items())):
        yield b"," * (number > 0)
        yield from _thing_parts(node, streams)
    yield b"]}\n"


_Streams = dict[tuple[str, str], dict[str, Any]]
"""Datastreams by name and unit."""


def stream_id(node: str, name: str, unit: str | None = None) -> str:
    """Identifier of a datastream.

    Args:
        node: Node id.
        name: Name of its readings.
        unit: Unit of its readings if newer ones have another unit, else None.
    """
    return f"{node}/{name}" if unit is None else f"{node}/{name}@{unit}"


def _thing_parts(node: str, streams: _Streams) -> Iterator[bytes]:
    thing = {"@iot.id": node, "name": node, "description": "A node on a slope"}
    yield msgspec.json.encode(thing)[:-1] + b',"Datastreams":['
    for number, key in enumerate(sorted(streams)):
        readings = streams[key].pop("Observations")
        yield b"," * (number > 0)
        yield msgspec.json.encode(streams[key])[:-1] + b',"Observations":['
        for begin in range(0, len(readings), PART_ROWS):
            yield b"," * (begin > 0) + b",".join(readings[begin : begin + PART_ROWS])
        yield b"]}"
    yield b"]}"


def _stream(row: dict[str, Any]) -> dict[str, Any]:
    is_boolean = row["value_text"] is not None
    counter = "" if row["sum"] is None else "parameters/sum"
    counter = "result" if row["value"] is None else counter
    return {
        "@iot.id": "",
        "name": row["name"],
        "description": f"{row['name']} of {row['node']}{COUNTER_NOTES[counter]}",
        "observationType": TRUTH if is_boolean else MEASURED,
        "unitOfMeasurement": unit_of_measurement(row["unit"] or ""),
        "properties": counter_properties(counter),
        "ObservedProperty": {
            "name": row["name"].partition("/")[0],
            "description": f"{row['name']}{COUNTER_NOTES[counter]}",
        },
        "Observations": [],
    }


def counter_properties(counter: str) -> dict[str, bool | str | None]:
    """Properties of a datastream: where its count is, a key of `COUNTER_NOTES`."""
    return {"is_counted": counter == "result", "counter": counter or None}


def unit_of_measurement(symbol: str) -> dict[str, str | None]:
    """A unit of SenML as SensorThings writes it; all null without one."""
    if not symbol:
        return {"name": None, "symbol": None, "definition": None}
    name, code = UNITS.get(symbol, (symbol, symbol))
    return {"name": name, "symbol": symbol, "definition": f"{_UCUM}{code}"}


def _observation(row: dict[str, Any]) -> dict[str, Any]:
    number = row["value"] if row["value"] is not None else row["sum"]
    is_boolean = row["value_text"] is not None
    observation = {
        "phenomenonTime": _time(row["at"]),
        "resultTime": _time(row["received_at"]),
        "result": bool(number) if is_boolean else finite_or_none(number),
        "resultQuality": row["flag"],
        "parameters": dict(_parameters(row)),
    }
    if row["cell"] is not None:
        observation["FeatureOfInterest"] = _feature_of_interest(row["cell"])
    return observation


@lru_cache(maxsize=4096)
def _feature_of_interest(cell: str) -> dict[str, Any]:
    return {
        "name": cell,
        "description": "S2 cell of the node, level 13",
        "encodingType": GEOJSON,
        "feature": {"type": "Polygon", "coordinates": [cell_ring(cell)]},
    }


def _parameters(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "id", f"{row['node']}/{row['boot']}/{row['seq']}"
    yield "priority", row["pri"]
    for name in ("sum", "why", "flag_why", "synchronised"):
        if row[name] is not None:
            yield name, row[name]


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


GEOMETRY: Final = "geometry"
GEOPARQUET: Final = pa.schema([
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
    rows = pa.Table.from_pylist(
        [_geoparquet_row(state) for state in states], schema=GEOPARQUET
    )
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


def _geoparquet_row(state: CellState) -> dict[str, Any]:
    feature = cell_feature(state)
    polygon = shapely.Polygon(feature["geometry"]["coordinates"][0])
    return {
        **feature["properties"],
        "valid_time": state.at,
        "known_until": state.known_until,
        GEOMETRY: shapely.to_wkb(polygon),
    }
