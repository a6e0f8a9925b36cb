"""The segment log: immutable Arrow files, each complete and fsynced or absent.

A segment is ``<ingester>.<run>-<sequence>.arrow``. The run is unique per process
start, so that two ingesters by accident can never write over each other (with
rename and no run, 2,342 of 5,000 messages were lost in a test).
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from backend_spark.errors import SegmentError
from backend_spark.tables.schemas import LOG
from service_runtime.files import fsync_folder, make_folder

_NAME = re.compile(r"(?P<stream>.+\.[0-9a-f]+)-(?P<seq>[0-9]{10})\.arrow")
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, order=True)
class SegmentName:
    """The name of a segment.

    Attributes:
        stream: ``<ingester>.<run>``.
        seq: Grows by one with each segment of a stream, from 0.
    """

    stream: str
    seq: int

    def __str__(self) -> str:
        """The file name."""
        return f"{self.stream}-{self.seq:010d}.arrow"

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        """The segment of a file name; None for any other file."""
        match = None if name.startswith(".") else _NAME.fullmatch(name)
        return cls(match["stream"], int(match["seq"])) if match else None


class LogRow(NamedTuple):
    """One message of a segment, its fields in the order of `schemas.LOG`.

    Attributes:
        received_us: Unix time of receipt, in microseconds.
        topic: Where it was published.
        payload: As received.
        node: Of the message id; None in quarantine, as are boot and seq.
        boot: Of the message id.
        seq: Of the message id.
        pri: Its priority; None in quarantine.
        reason: Why it is in quarantine.
        age_s: How long it waited in queues on its way; None when it was not late.
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
        folder: Where; made when missing.
        stream: ``<ingester>.<run>``, used by no other process ever.
        next_seq: Sequence of the next segment.
    """

    folder: Path
    stream: str
    next_seq: int = 0

    def __post_init__(self) -> None:
        """Make the folder."""
        make_folder(self.folder)

    def append(self, rows: Sequence[LogRow]) -> Path:
        """Write one segment; when this returns it survives a loss of power.

        Raises:
            OSError: The disk refused; nothing is published then.
        """
        name = SegmentName(self.stream, self.next_seq)
        final = self.folder / str(name)
        unfinished = self.folder / f"{_UNFINISHED}{name}"
        try:
            with unfinished.open("wb") as file:
                _write(file, rows)
                file.flush()
                os.fsync(file.fileno())
            # A link, unlike a rename, never replaces what is there.
            final.hardlink_to(unfinished)
        finally:
            # A full disk has no room for halves.
            unfinished.unlink(missing_ok=True)
        fsync_folder(self.folder)
        self.next_seq += 1
        return final


def remove_unfinished(folder: Path, ingester: str) -> int:
    """Remove what earlier runs of an ingester left half written.

    Call it under the ingester's lock only. Returns how many files there were.
    """
    left = list(folder.glob(f"{_UNFINISHED}{ingester}.*"))
    for path in left:
        path.unlink()
    return len(left)


def list_segments(folder: Path) -> list[SegmentName]:
    """Names of all finished segments, sorted; none when there is no folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [SegmentName.parse(entry.name) for entry in entries]
    return sorted(name for name in names if name is not None)


def read_segments(
    folder: Path | str, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, pa.Table]]:
    """Every finished segment and its rows, in the order of the names.

    Raises:
        SegmentError: A segment cannot be read.
    """
    folder = Path(folder)
    for name in list_segments(folder):
        path = folder / str(name)
        yield path, read_segment(path, columns)


def read_segment(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one segment, whole or some columns of them.

    Raises:
        SegmentError: It cannot be read.
    """
    wanted = LOG.names if columns is None else list(columns)
    try:
        with pa.memory_map(str(path)) as source:
            there = pa.ipc.open_file(source).schema
            indices = [there.get_field_index(n) for n in wanted if n in there.names]
            options = pa.ipc.IpcReadOptions(included_fields=indices)
            table = pa.ipc.open_file(source, options=options).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise SegmentError(path, str(error)) from error
    # Segments of earlier versions lack the columns that came later.
    for name in set(wanted).difference(table.column_names):
        nothing = pa.nulls(table.num_rows, LOG.field(name).type)
        table = table.append_column(LOG.field(name), nothing)
    return table.select(wanted)


def _write(file: object, rows: Sequence[LogRow]) -> None:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, LOG, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=LOG)
    with pa.ipc.new_file(file, LOG) as writer:
        writer.write_table(table)
