"""One export: what is asked for, and how each format is written."""

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from backend_spark.errors import ExportError
from backend_spark.exports import cap, formats
from backend_spark.exports.cell_states import cell_states
from backend_spark.tables.reader import Tables, open_tables
from backend_spark.tables.schemas import TABLES


@dataclass(frozen=True)
class Wish:
    """What is asked for.

    Attributes:
        tables: Where to read.
        now: The time.
        table: For csv and parquet.
        at: For cap and geojson; None is the newest.
        begin: For the others, from when on.
        end: Until when.
        out: File to write; None is standard output.
        header: For cap.
        min_level: For cap.
    """

    tables: Tables
    now: datetime
    table: str
    at: datetime | None
    begin: datetime | None
    end: datetime | None
    out: Path | None
    header: cap.Header | None
    min_level: int


def run(data: str, form: str, out: Path | None, more: Mapping[str, object]) -> None:
    """Write an export.

    Args:
        data: Folder of the backend.
        form: cap, csv, geojson, parquet or sensorthings.
        out: File to write; None is standard output.
        more: The other options by their names.

    Raises:
        ExportError: What is asked for cannot be given.
    """
    if more["table"] not in TABLES:
        rule = f"one of {', '.join(sorted(TABLES))}"
        raise ExportError(
            "--table", rule, str(more["table"]), "see docs/reference/data"
        )
    _FORMS[form](_wish(open_tables(data), form, out, more))


def _wish(
    tables: Tables, form: str, out: Path | None, more: Mapping[str, object]
) -> Wish:
    now = datetime.now(UTC)  # noqa: TID251 - the command is where time comes in
    header = _header(now, more) if form == "cap" else None
    if form == "parquet" and out is None:
        raise ExportError("--out", "a file", "none", "Parquet cannot go to a screen")
    return Wish(
        tables=tables,
        now=now,
        out=out,
        header=header,
        **{name: more[name] for name in ("table", "at", "begin", "end", "min_level")},  # type: ignore[arg-type]
    )


def _header(now: datetime, more: Mapping[str, object]) -> cap.Header:
    updated, cancelled = _references(more["updated"]), _references(more["cancelled"])
    sender = more["sender"]
    if sender is None:
        rule = "given for cap"
        remedy = "give an address such as bosai@city.example"
        raise ExportError("--sender", rule, "none", remedy)
    if updated and cancelled:
        rule = "without --cancels"
        raise ExportError("--updates", rule, "both", "write two messages")
    return cap.Header(
        sender=str(sender),
        sender_name=str(more["sender_name"] or sender),
        sent=now,
        status=cap.Status(str(more["status"])),
        replaces=updated or cancelled,
        is_cancel=bool(cancelled),
    )


def _references(paths: object) -> list[cap.Reference]:
    found = []
    for path in paths if isinstance(paths, tuple) else ():
        try:
            found.append(cap.reference_of(path.read_bytes()))
        except OSError as error:
            problem = error.strerror or str(error)
            raise ExportError("CAP file", "readable", str(path), problem) from error
    return found


def _cap(wish: Wish) -> None:
    header = wish.header
    if header is None:  # only for the type: _wish made one
        raise AssertionError
    states = [] if header.is_cancel else cell_states(wish.tables, wish.at)[1]
    _give(wish.out, cap.alert(states, header, wish.min_level))


def _geojson(wish: Wish) -> None:
    moment, states = cell_states(wish.tables, wish.at)
    made = formats.feature_collection(states, moment, wish.now)
    _give(wish.out, _json(made))


def _csv(wish: Wish) -> None:
    text = io.StringIO(newline="")
    formats.write_csv(wish.table, _rows(wish, wish.table), text)
    # A mark, or spreadsheets in Japan take it for Shift JIS.
    _give(wish.out, b"\xef\xbb\xbf" + text.getvalue().encode())


def _parquet(wish: Wish) -> None:
    if wish.out is not None:
        count = formats.write_parquet(wish.table, _rows(wish, wish.table), wish.out)
        sys.stderr.write(f"{wish.out}: {count} rows\n")


def _sensor_things(wish: Wish) -> None:
    rows = (row for batch in _rows(wish, "silver") for row in batch.to_pylist())
    _give(wish.out, _json(formats.things(rows)))


def _rows(wish: Wish, table: str) -> Iterator[pa.RecordBatch]:
    return formats.batches(wish.tables, table, wish.begin, wish.end)


def _json(made: object) -> bytes:
    return json.dumps(made, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _give(out: Path | None, content: bytes) -> None:
    """Write a file whole or not at all, or print."""
    if out is None:
        sys.stdout.buffer.write(content)
        return
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(out)
    except OSError as error:
        problem = error.strerror or str(error)
        raise ExportError("--out", "writable", str(out), problem) from error
    finally:
        unfinished.unlink(missing_ok=True)


_FORMS: dict[str, Callable[[Wish], None]] = {
    "cap": _cap,
    "csv": _csv,
    "geojson": _geojson,
    "parquet": _parquet,
    "sensorthings": _sensor_things,
}
