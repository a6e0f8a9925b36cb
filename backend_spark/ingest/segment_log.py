"""Segment log: immutable Arrow files, each complete and fsynced or absent.

Each row has a checksum, because disks and memory change bits: a damaged row or segment
costs its own messages only, and is reported where they would have been.

A segment is ``<ingester>.<run>-<sequence>.arrow``. The run is unique per process start,
so that two ingesters started by mistake never overwrite each other's segments (with
rename and without a run, 2,342 of 5,000 messages were lost in a test).
"""

import errno
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from backend_spark.errors import SegmentError
from backend_spark.tables.schemas import LOG
from service_runtime.files import fsync_folder, make_folder

log = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<stream>.+\.[0-9a-f]+)-(?P<seq>[0-9]{10})\.arrow")
_UNFINISHED = ".unfinished-"

PAYLOAD_SUM, ROW_SUM = "payload_crc32", "row_crc32"
SEGMENT = pa.schema([
    *LOG,
    pa.field(PAYLOAD_SUM, pa.uint32()),
    pa.field(ROW_SUM, pa.uint32()),  # of all other columns
])
"""Columns of a segment; those of earlier versions lack ``age_s`` or the checksums."""

_ROWS = b"rows"
_ADDED_LATER = {"age_s", PAYLOAD_SUM, ROW_SUM}

DAMAGED_ROW = "damaged in the log: its checksum does not match"
DAMAGED_FOLDER = "damaged"
"""Folder in that of the log for segments that cannot be read."""

_BAD_SECTORS = {errno.EIO, errno.EBADMSG, errno.EUCLEAN}
"""Errors of a disk or file system that a retry does not clear."""


@dataclass(frozen=True, order=True)
class SegmentName:
    """Name of a segment.

    Attributes:
        stream: ``<ingester>.<run>``.
        seq: Sequence number within the stream, from 0.
    """

    stream: str
    seq: int

    def __str__(self) -> str:
        """File name."""
        return f"{self.stream}-{self.seq:010d}.arrow"

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        """Parse a file name; None if it is not a segment."""
        match = None if name.startswith(".") else _NAME.fullmatch(name)
        return cls(match["stream"], int(match["seq"])) if match else None


LogOffset = dict[str, int]
"""Position of a reader: sequence number of the last segment read, by stream."""


class LogRow(NamedTuple):
    """One message of a segment; the fields are in the order of `schemas.LOG`.

    Attributes:
        received_us: Unix time of receipt, in microseconds.
        topic: MQTT topic.
        payload: Payload as received.
        node: Node of the message id; None in quarantine, as are boot and seq.
        boot: Boot of the message id.
        seq: Sequence number of the message id.
        pri: Priority; None in quarantine.
        reason: Why the message is in quarantine.
        age_s: Time the message waited in queues; None if it was not late.
    """

    received_us: int
    topic: str
    payload: bytes
    node: str | None = None
    boot: str | None = None
    seq: int | None = None
    pri: int | None = None
    reason: str | None = None
    age_s: int | None = None


@dataclass
class SegmentWriter:
    """Appends segments of one stream to a folder.

    Attributes:
        folder: Folder of the log; created if missing.
        stream: ``<ingester>.<run>``, never used by another process.
        next_seq: Sequence number of the next segment.
    """

    folder: Path
    stream: str
    next_seq: int = 0

    def __post_init__(self) -> None:
        """Create the folder."""
        make_folder(self.folder)

    def append(self, rows: Sequence[LogRow]) -> Path:
        """Write one segment; it survives a power cut when this returns.

        Raises:
            OSError: Disk error; the segment is not in the log.
        """
        name = SegmentName(self.stream, self.next_seq)
        final = self.folder / str(name)
        unfinished = self.folder / f"{_UNFINISHED}{name}"
        try:
            with unfinished.open("wb") as file:
                _write(file, rows)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces an existing file.
            final.hardlink_to(unfinished)
        finally:
            # On a full disk a partial file would only take up space.
            unfinished.unlink(missing_ok=True)
        fsync_folder(self.folder)
        self.next_seq += 1
        return final

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def max_payload_bytes(self) -> None:
        """Any payload fits a file."""

    def write(self, rows: Sequence[LogRow]) -> int:
        """Write one segment, as `append`; returns its size in bytes."""
        return self.append(rows).stat().st_size


def remove_unfinished(folder: Path, ingester: str) -> int:
    """Delete partial segments of earlier runs of an ingester; returns their number.

    Call it under the ingester's lock only.
    """
    paths = list(folder.glob(f"{_UNFINISHED}{ingester}.*"))
    for path in paths:
        path.unlink()
    return len(paths)


def list_segments(folder: Path) -> list[SegmentName]:
    """Names of all finished segments, sorted; empty if the folder does not exist."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [SegmentName.parse(entry.name) for entry in entries]
    return sorted(name for name in names if name is not None)


def end_offset(names: Iterable[SegmentName]) -> LogOffset:
    """Offset after all of these segments, sorted by stream."""
    offset: LogOffset = {}
    for name in names:
        offset[name.stream] = max(name.seq, offset.get(name.stream, name.seq))
    return dict(sorted(offset.items()))


def segments_between(
    names: Iterable[SegmentName], start: LogOffset, end: LogOffset
) -> list[SegmentName]:
    """Segments after one offset up to another, round-robin over the streams.

    Round-robin keeps the backlog of one ingester from delaying the alarms of another.
    """
    streams: dict[str, list[SegmentName]] = {}
    for name in sorted(names):
        if start.get(name.stream, -1) < name.seq <= end.get(name.stream, -1):
            streams.setdefault(name.stream, []).append(name)
    rounds = zip_longest(*streams.values())
    return [name for each in rounds for name in each if name is not None]


def advance_offset(start: LogOffset, read: Iterable[SegmentName]) -> LogOffset:
    """Offset after some more segments; never before the start."""
    end = end_offset(read)
    streams = sorted(start.keys() | end.keys())
    return {s: max(start.get(s, -1), end.get(s, -1)) for s in streams}


def group_segments(
    names: Sequence[SegmentName], size_bytes: int, max_tasks: int, min_task_bytes: int
) -> list[list[SegmentName]]:
    """Distribute segments over tasks.

    Args:
        names: Segments to read.
        size_bytes: Size of all of them.
        max_tasks: Maximum number of tasks.
        min_task_bytes: Smallest size per task.
    """
    count = min(max_tasks, len(names), max(1, size_bytes // min_task_bytes))
    return [list(names[i::count]) for i in range(count)]


BYTES_PER_TASK = 256 * 1024
"""A thousand messages, a tenth of a second of work."""

SETTLED_S: Final = 120.0
"""Age of a segment from which on no client of NFS has an older listing in its cache,
nor caches that a file was missing (``acdirmax``: 60 s)."""


@dataclass(frozen=True)
class SegmentLog:
    """Reads the segments of a folder; the contract is `log.MessageLog`.

    Attributes:
        folder: Folder of the log.
        now_s: Unix time.
    """

    folder: Path
    now_s: Callable[[], float] = time.time  # noqa: TID251 - no other clock

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Number of the first and last segment of each stream."""
        found: dict[str, tuple[int, int]] = {}
        for name in list_segments(self.folder):  # sorted
            first, _ = found.get(name.stream, (name.seq, name.seq))
            found[name.stream] = first, name.seq
        return found

    def between(
        self, start: LogOffset, end: LogOffset, max_count: int | None = None
    ) -> list[SegmentName]:
        """Segments after one offset up to another, round-robin over the streams.

        A writer leaves no gaps, but the listing of a growing folder may: on NFS for as
        long as a client keeps it. Take the end from an earlier listing. What a listing
        lacks is looked up by name. A stream ends before a number that is missing, to
        be read later, until the next segment is `SETTLED_S` old: then it was deleted.
        """
        listed: dict[str, list[int]] = {}
        for name in list_segments(self.folder):  # sorted
            listed.setdefault(name.stream, []).append(name.seq)
        found = (
            self._unbroken(stream, listed.get(stream, []), start.get(stream, -1), last)
            for stream, last in end.items()
        )
        names = chain.from_iterable(found)
        return segments_between(names, start, end)[:max_count]

    def read(self, names: Sequence[SegmentName]) -> Iterator[pa.Table]:
        """Rows of segments."""
        return (read_intact_segment(self.folder / str(name)) for name in names)

    def split(
        self, names: Sequence[SegmentName], max_tasks: int
    ) -> list[list[SegmentName]]:
        """Distribute segments over tasks by their bytes."""
        size_bytes = sum((self.folder / str(name)).stat().st_size for name in names)
        return group_segments(names, size_bytes, max_tasks, BYTES_PER_TASK)

    def count(self, after: LogOffset) -> int:
        """Number of segments after an offset."""
        names = list_segments(self.folder)
        return sum(name.seq > after.get(name.stream, -1) for name in names)

    def _unbroken(
        self, stream: str, listed: list[int], start: int, last: int
    ) -> Iterator[SegmentName]:
        """Segments of a stream up to the first number that is missing."""
        expected = start + 1
        for seq in (*(n for n in listed if start < n <= last), last + 1):
            while expected < seq and self._path(stream, expected).exists():
                yield SegmentName(stream, expected)
                expected += 1
            if seq > last or (expected < seq and not self._is_settled(stream, seq)):
                return
            # Those before the first one of a new reader were trimmed.
            if start >= 0 and expected < seq:
                log.error("%s: segments %d to %d are gone", stream, expected, seq - 1)
            yield SegmentName(stream, seq)
            expected = seq + 1

    def _is_settled(self, stream: str, seq: int) -> bool:
        age_s = self.now_s() - self._path(stream, seq).stat().st_mtime
        return abs(age_s) > SETTLED_S  # it may be of a clock that was ahead

    def _path(self, stream: str, seq: int) -> Path:
        return self.folder / str(SegmentName(stream, seq))


def read_segments(
    folder: Path | str, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, pa.Table]]:
    """All finished segments and their rows, sorted by name.

    Raises:
        SegmentError: A segment cannot be read.
    """
    folder = Path(folder)
    for name in list_segments(folder):
        path = folder / str(name)
        yield path, read_segment(path, columns)


def read_segment(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Rows of one segment, with all columns of `schemas.LOG` or some of `SEGMENT`.

    Raises:
        SegmentError: The segment is damaged.
        OSError: It is not there, or the system cannot read it now.
    """
    wanted = LOG.names if columns is None else list(columns)
    with (
        report_damage(lambda error: SegmentError(path, str(error))),
        open_arrow_file(path) as source,
    ):
        table = _read(source, wanted)
    return _with_columns(table, wanted)


def encode_segment(rows: Sequence[LogRow]) -> bytes:
    """A segment as bytes, the content of its file."""
    sink = pa.BufferOutputStream()
    _write(sink, rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_segment(data: bytes, name: str) -> pa.Table:
    """Rows of a segment with all columns of `SEGMENT`.

    Raises:
        SegmentError: The segment is damaged.
    """
    with report_damage(lambda error: SegmentError(name, str(error))):
        table = _read(pa.BufferReader(data), SEGMENT.names)
    return _with_columns(table, SEGMENT.names)


def _with_columns(table: pa.Table, wanted: Sequence[str]) -> pa.Table:
    for name in set(wanted).difference(table.column_names):
        nulls = pa.nulls(table.num_rows, SEGMENT.field(name).type)
        table = table.append_column(SEGMENT.field(name), nulls)
    return table.select(wanted).replace_schema_metadata()


def read_intact_segment(path: Path) -> pa.Table:
    """Rows of one segment, for a reader that continues after damage, by `make_intact`.

    Shape:
        out: schemas.LOG.
    """
    written_us = path.stat().st_mtime_ns // 1000
    return make_intact(lambda: read_segment(path, SEGMENT.names), path, written_us)


def make_intact(
    read: Callable[[], pa.Table], place: Path | str, written_us: int
) -> pa.Table:
    """Rows of a segment, and in place of damaged ones what is known of them.

    A row with a damaged payload has an empty one, and `DAMAGED_ROW` as its reason; one
    that is damaged elsewhere has no id either. A segment that cannot be read is one row
    without an id.

    Args:
        read: Reads the segment, with all columns of `SEGMENT`.
        place: Where it is, for the log.
        written_us: Unix time when it was written, in microseconds.

    Shape:
        out: schemas.LOG.
    """
    try:
        table = read()
    except SegmentError as error:
        log.error("%s", error)  # noqa: TRY400 - the trace adds nothing
        lost = LogRow(written_us, "", b"", reason=str(error))
        return _table([lost]).select(LOG.names)
    rows = _rows(table)
    payload_sums = table[PAYLOAD_SUM].to_pylist()
    damaged = 0
    for at, is_intact in enumerate(_intact(rows, table)):
        if not is_intact:
            rows[at] = LogRow(written_us, "", b"", reason=DAMAGED_ROW)
        elif payload_sums[at] not in {None, zlib.crc32(rows[at].payload)}:
            rows[at] = rows[at]._replace(payload=b"", reason=DAMAGED_ROW)
        else:
            continue
        damaged += 1
    if not damaged:
        return table.select(LOG.names)
    log.error("%d rows of segment %s are damaged", damaged, place)
    return _table(rows).select(LOG.names)


def open_arrow_file(path: Path) -> pa.OSFile:
    """Open an Arrow file for reading.

    Not memory-mapped: a bad sector of a mapped file ends the process by SIGBUS.
    """
    return pa.OSFile(str(path))


@contextmanager
def report_damage(make_error: Callable[[Exception], Exception]) -> Iterator[None]:
    """Raise another error for damage of an Arrow file or of its sectors.

    Any other error of the system, such as too many open files, passes: the file is
    intact and can be read later.
    """
    try:
        yield
    except (pa.ArrowMemoryError, pa.ArrowCancelled):
        raise
    except OSError as error:
        if error.errno is not None and error.errno not in _BAD_SECTORS:
            raise
        raise make_error(error) from error
    except (pa.ArrowException, ValueError, LookupError) as error:
        raise make_error(error) from error


def read_segment_ids(path: Path) -> pa.Table:
    """The columns node, boot, seq and received_at of the intact rows of a segment.

    Raises:
        SegmentError: The segment is damaged.
        OSError: It is not there, or the system cannot read it now.
    """
    names = [n for n in SEGMENT.names if n not in {"payload", PAYLOAD_SUM}]
    table = read_segment(path, names)
    ids = table.select(["node", "boot", "seq", "received_at"])
    return ids.filter(pa.array(_intact(_rows(table), table), pa.bool_()))


def set_segment_aside(path: Path) -> Path:
    """Move a segment that cannot be read out of the log; returns its new path."""
    folder = path.parent / DAMAGED_FOLDER
    make_folder(folder)
    return path.replace(folder / path.name)


def _read(source: pa.NativeFile, wanted: Sequence[str]) -> pa.Table:
    schema = pa.ipc.open_file(source).schema
    _check_schema(schema)
    indices = [schema.get_field_index(n) for n in wanted if n in schema.names]
    options = pa.ipc.IpcReadOptions(included_fields=indices)
    table = pa.ipc.open_file(source, options=options).read_all()
    # Arrow would read outside the file where an offset is damaged.
    table.validate(full=True)
    if ROW_SUM in schema.names and schema.metadata != _count(table.num_rows):
        raise ValueError(f"it has {table.num_rows} rows, not {schema.metadata}")
    return table


def _check_schema(schema: pa.Schema) -> None:
    expected = [field for field in SEGMENT if field.name in schema.names]
    missing = {*SEGMENT.names} - {*schema.names}
    if list(schema) != expected or not missing <= _ADDED_LATER:
        raise ValueError(
            f"its columns are {schema.to_string(show_field_metadata=False)}"
        )


def _count(rows: int) -> dict[bytes, bytes]:
    return {_ROWS: str(rows).encode()}


def _intact(rows: list[LogRow], table: pa.Table) -> list[bool]:
    """Whether the columns of each row but the payload are intact."""
    sums = table[ROW_SUM].to_pylist()
    return [c in {None, _row_sum(row)} for row, c in zip(rows, sums, strict=True)]


def _row_sum(row: LogRow) -> int:
    received_us, topic, _, node, boot, seq, pri, reason, age_s = row
    # The text of the tuple row[3:], written by columns, in three quarters of the time.
    rest = f"({node!r}, {boot!r}, {seq}, {pri}, {reason!r}, {age_s})"
    return zlib.crc32(f"{received_us} {topic} {rest}".encode())


def _rows(table: pa.Table) -> list[LogRow]:
    """Rows of schemas.LOG; the payloads are empty where the table has none."""
    columns = {name: table[name] for name in LOG.names if name in table.column_names}
    columns["received_at"] = columns["received_at"].cast(pa.int64())
    columns.setdefault("payload", pa.array([b""] * table.num_rows))
    values = (columns[name].to_pylist() for name in LOG.names)
    return [LogRow(*row) for row in zip(*values, strict=True)]


def _table(rows: Sequence[LogRow]) -> pa.Table:
    payload_sums = [zlib.crc32(row.payload) for row in rows]
    row_sums = [_row_sum(row) for row in rows]
    values = zip(*rows, strict=True) if rows else ([] for _ in LogRow._fields)
    columns = (*values, payload_sums, row_sums)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SEGMENT, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SEGMENT)


def _write(file: object, rows: Sequence[LogRow]) -> None:
    table = _table(rows).replace_schema_metadata(_count(len(rows)))
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
