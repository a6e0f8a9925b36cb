"""Export command: reads its options and writes one format."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from backend_spark.config import BackendSection
from backend_spark.console.places import NO_PLACES, Gazetteer, StoredPlaces
from backend_spark.errors import ExportError
from backend_spark.exports import cap, formats
from backend_spark.exports.cell_states import CellState, read_cell_states
from backend_spark.scoring.holds import NO_LIMITS, HoldLimits
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import TABLES
from service_runtime.files import write_atomic


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

    def wanted(self, table: str) -> formats.RowSelection:
        """The rows of a table that are exported."""
        return formats.RowSelection(table, self.begin, self.end, self.cell, self.node)


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
    _write(request.out, _json(formats.feature_collection(states, moment, request.now)))


def _geoparquet(request: ExportRequest) -> None:
    if request.out is not None:
        moment, states = request.cell_states()
        with formats.writing(request.out):
            count = formats.write_geoparquet(states, moment, request.now, request.out)
        sys.stderr.write(f"{request.out}: {count} cells\n")


def _csv(request: ExportRequest) -> None:
    rows = formats.read_batches(request.tables, request.wanted(request.table))
    parts = formats.csv_parts(request.table, rows, request.zone)
    _write_parts(request.out, parts)


def _parquet(request: ExportRequest) -> None:
    if request.out is not None:
        rows = formats.read_batches(request.tables, request.wanted(request.table))
        count = formats.write_parquet(request.table, rows, request.out, request.zone)
        sys.stderr.write(f"{request.out}: {count} rows\n")


def _sensor_things(request: ExportRequest) -> None:
    wanted = request.wanted("silver")
    count = request.tables.count("silver", wanted.conditions)
    if count > formats.MAX_READINGS:
        rule = f"sensorthings of at most {formats.MAX_READINGS} readings"
        remedy = "give --from and --to, or --node, or take parquet"
        raise ExportError("--format", rule, f"{count}", remedy)
    batches = formats.read_batches(request.tables, wanted)
    rows = (row for batch in batches for row in batch.to_pylist())
    _write_parts(request.out, formats.sensor_things(rows))


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _write(out: Path | None, content: bytes) -> None:
    """Write a file atomically, or standard output."""
    if out is None:
        sys.stdout.buffer.write(content)
        return
    with formats.writing(out):
        write_atomic(out, content)


def _write_parts(out: Path | None, parts: Iterable[bytes]) -> None:
    """Write a file atomically, or standard output, part by part."""
    if out is not None:
        formats.write_parts(parts, out)
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
