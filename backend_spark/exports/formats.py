"""Formats of exports, and the command ``export``, which writes one of them.

A table is written as CSV or Parquet, readings as SensorThings; cells see `cell_states`.
Source: OGC SensorThings API part 1: sensing 1.1 (18-088), section 8.2.
"""

import base64
import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backend_spark.config import BackendSection
from backend_spark.console.places import NO_PLACES, Gazetteer, StoredPlaces
from backend_spark.errors import ExportError
from backend_spark.exports import cap
from backend_spark.exports.cell_states import (
    GEOJSON,
    CellState,
    cell_ring,
    feature_collection,
    finite_or_none,
    read_cell_states,
    write_geoparquet,
)
from backend_spark.scoring.holds import NO_LIMITS, HoldLimits
from backend_spark.sensorthings.catalogue import stream_id
from backend_spark.sensorthings.entities import (
    COUNTER_NOTES,
    MEASURED,
    TRUTH,
    counter_properties,
    unit_of_measurement,
)
from backend_spark.tables.reader import DeltaTables, open_tables, sql_literal
from backend_spark.tables.schemas import TABLES, UTC_TIME
from service_runtime.files import write_atomic

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters that make a spreadsheet treat text as a formula; a Japanese Excel
also the wide ones. Source: OWASP, CSV Injection."""


PART_ROWS: Final = 4096
"""Rows of a part of a document."""

MAX_READINGS: Final = 500_000
"""Readings of one SensorThings document, which is in memory as a whole."""

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


@dataclass(frozen=True)
class ExportRequest:
    """Tables, time range and destination of an export.

    Attributes:
        tables: Tables to read.
        now: Time of the export.
        table: Name of the table, for csv and parquet.
        at: Moment for cap, geojson and geoparquet; None means the present.
        begin: First moment for the other formats; None means the first row.
        end: Moment after the last for the other formats; None means the last row.
        out: File to write; None means standard output.
        header: Header for cap.
        min_level: Lowest level for cap.
        cell: Cell for the other formats; None means all.
        node: Node for the other formats; None means all.
        zone: Zone of the times for csv and parquet.
        limits: When holds of levels end.
        places: Names of the cells.
    """

    tables: DeltaTables
    now: datetime
    table: str
    at: datetime | None
    begin: datetime | None
    end: datetime | None
    out: Path | None
    header: cap.CapHeader | None
    min_level: int
    cell: str | None = None
    node: str | None = None
    zone: str = "UTC"
    limits: HoldLimits = NO_LIMITS
    places: Gazetteer = NO_PLACES

    def cell_states(self) -> tuple[datetime, list[CellState]]:
        """The moment, and the state of each cell."""
        return read_cell_states(
            self.tables, self.now, self.at, self.limits, self.places
        )

    def wanted(self, table: str) -> RowSelection:
        """The rows of a table that are exported."""
        return RowSelection(table, self.begin, self.end, self.cell, self.node)


def write_export(
    section: BackendSection,
    form: str,
    out: Path | None,
    more: Mapping[str, object],
    limits: HoldLimits = NO_LIMITS,
) -> None:
    """Write an export.

    Args:
        section: Place of the tables.
        form: Format, a key of `_WRITERS`.
        out: File to write; None means standard output.
        more: The other options by name.
        limits: When holds of levels end.

    Raises:
        ExportError: The options are invalid, or there are no such data.
    """
    if more["table"] not in TABLES:
        rule = f"one of {', '.join(sorted(TABLES))}"
        raise ExportError(
            "--table", rule, str(more["table"]), "see docs/reference/data"
        )
    request = _request(open_tables(section), form, out, more)
    places = StoredPlaces(Path(section.data)).now
    _WRITERS[form](replace(request, limits=limits, places=places))


_OPTIONS: Final = (
    "table",
    "at",
    "begin",
    "end",
    "min_level",
    "cell",
    "node",
    "zone",
)
"""Options of the command that are attributes of a request."""


def _request(
    tables: DeltaTables, form: str, out: Path | None, more: Mapping[str, object]
) -> ExportRequest:
    now = datetime.now(UTC)  # noqa: TID251 - composition root of the command
    header = _header(now, more) if form == "cap" else None
    if form in {"parquet", "geoparquet"} and out is None:
        raise ExportError("--out", "a file", "none", "Parquet cannot go to a screen")
    if out is not None and not out.name:
        raise ExportError("--out", "the name of a file", "none", "name one")
    return ExportRequest(
        tables=tables,
        now=now,
        out=out,
        header=header,
        **{name: more[name] for name in _OPTIONS},  # type: ignore[arg-type]
    )


def _header(now: datetime, more: Mapping[str, object]) -> cap.CapHeader:
    updated, cancelled = _references(more["updated"]), _references(more["cancelled"])
    sender = more["sender"]
    if sender is None:
        rule = "given for cap"
        remedy = "give an address such as bosai@city.example"
        raise ExportError("--sender", rule, "none", remedy)
    if updated and cancelled:
        rule = "without --cancels"
        raise ExportError("--updates", rule, "both", "write two messages")
    return cap.CapHeader(
        sender=str(sender),
        sender_name=str(more["sender_name"] or sender),
        sent=now,
        status=cap.CapStatus(str(more["status"])),
        replaces=updated or cancelled,
        is_cancel=bool(cancelled),
        at=more["at"] if isinstance(more["at"], datetime) else None,
    )


def _references(paths: object) -> list[cap.CapReference]:
    found = []
    for path in paths if isinstance(paths, tuple) else ():
        try:
            found.append(cap.read_reference(path.read_bytes()))
        except OSError as error:
            problem = error.strerror or str(error)
            raise ExportError("CAP file", "readable", str(path), problem) from error
    return found


def _cap(request: ExportRequest) -> None:
    header = request.header
    if header is None:  # for mypy: _request made one
        raise AssertionError
    states = [] if header.is_cancel else request.cell_states()[1]
    _write(request.out, cap.alert_xml(states, header, request.min_level))


def _geojson(request: ExportRequest) -> None:
    moment, states = request.cell_states()
    _write(request.out, _json(feature_collection(states, moment, request.now)))


def _geoparquet(request: ExportRequest) -> None:
    if request.out is not None:
        moment, states = request.cell_states()
        with writing(request.out):
            count = write_geoparquet(states, moment, request.now, request.out)
        sys.stderr.write(f"{request.out}: {count} cells\n")


def _csv(request: ExportRequest) -> None:
    rows = read_batches(request.tables, request.wanted(request.table))
    parts = csv_parts(request.table, rows, request.zone)
    _write_parts(request.out, parts)


def _parquet(request: ExportRequest) -> None:
    if request.out is not None:
        rows = read_batches(request.tables, request.wanted(request.table))
        count = write_parquet(request.table, rows, request.out, request.zone)
        sys.stderr.write(f"{request.out}: {count} rows\n")


def _sensor_things(request: ExportRequest) -> None:
    wanted = request.wanted("silver")
    count = request.tables.count("silver", wanted.conditions)
    if count > MAX_READINGS:
        rule = f"sensorthings of at most {MAX_READINGS} readings"
        remedy = "give --from and --to, or --node, or take parquet"
        raise ExportError("--format", rule, f"{count}", remedy)
    batches = read_batches(request.tables, wanted)
    rows = (row for batch in batches for row in batch.to_pylist())
    _write_parts(request.out, sensor_things(rows))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _write(out: Path | None, content: bytes) -> None:
    """Write a file atomically, or standard output."""
    if out is None:
        sys.stdout.buffer.write(content)
        return
    with writing(out):
        write_atomic(out, content)


def _write_parts(out: Path | None, parts: Iterable[bytes]) -> None:
    """Write a file atomically, or standard output, part by part."""
    if out is not None:
        write_parts(parts, out)
        return
    for part in parts:
        sys.stdout.buffer.write(part)


_WRITERS: dict[str, Callable[[ExportRequest], None]] = {
    "cap": _cap,
    "csv": _csv,
    "geojson": _geojson,
    "geoparquet": _geoparquet,
    "parquet": _parquet,
    "sensorthings": _sensor_things,
}
