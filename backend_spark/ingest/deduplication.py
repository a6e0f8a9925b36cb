"""Which messages are in the log: the memory that removes duplicates.

It needs no store of its own; the log's id columns are read again at start, and the
ids of segments that are gone.

Ids of messages whose segments are gone, so that none comes into the log again.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from backend_spark.errors import SegmentError
from backend_spark.ingest.segment_log import SegmentName, list_segments, read_segment
from service_runtime.files import fsync_folder
from spatial_mqtt.custody import SeqRanges
from spatial_mqtt.senml import MessageId

PREFIX = ".ids-"
_UNFINISHED = ".unfinished-ids-"
_SCHEMA = pa.schema([
    pa.field("node", pa.string()),
    pa.field("boot", pa.string()),
    pa.field("low", pa.int64()),
    pa.field("high", pa.int64()),
    pa.field("last_us", pa.int64()),
])
_Key = tuple[str, str]


@dataclass
class PastIds:
    """Ids as ranges for each (node, boot), in one file of each ingester.

    Attributes:
        NEEDS: Columns of a segment that hold its ids.
        path: The file.
        ranges: Sequence numbers.
        last_us: Unix time of receipt of the newest, in microseconds.
    """

    NEEDS: ClassVar = ("node", "boot", "seq", "received_at")
    path: Path
    ranges: dict[_Key, SeqRanges] = field(default_factory=dict)
    last_us: dict[_Key, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "PastIds":
        """Read the file; no ids when there is none.

        Raises:
            SegmentError: It cannot be read.
        """
        past = cls(path)
        if not path.exists():
            return past
        try:
            with pa.memory_map(str(path)) as source:
                rows = pa.ipc.open_file(source).read_all().to_pydict()
        except (OSError, pa.ArrowInvalid) as error:
            raise SegmentError(path, str(error)) from error
        for node, boot, low, high, last_us in zip(*rows.values(), strict=True):
            past.add((node, boot), low, high, last_us)
        return past

    def add(self, key: _Key, low: int, high: int, last_us: int) -> None:
        """Remember a range of ids."""
        self.ranges.setdefault(key, SeqRanges()).add(low, high)
        self.last_us[key] = max(last_us, self.last_us.get(key, last_us))

    def add_rows(self, rows: pa.Table) -> None:
        """Remember the ids of a segment, of which `NEEDS` was read."""
        times = rows["received_at"].cast(pa.int64()).to_pylist()
        ids = (rows[name].to_pylist() for name in ("node", "boot", "seq"))
        for node, boot, seq, last_us in zip(*ids, times, strict=True):
            self.add((node, boot), seq, seq, last_us)

    def save(self, since_us: int) -> None:
        """Put the ids on disk, but for those of (node, boot) last heard before."""
        for key in [k for k, last_us in self.last_us.items() if last_us < since_us]:
            del self.ranges[key], self.last_us[key]
        ours = [
            (*key, low, high, self.last_us[key])
            for key, ranges in self.ranges.items()
            for low, high in ranges
        ]
        columns = zip(*ours, strict=True) if ours else ([] for _ in _SCHEMA)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
        name = self.path.name.removeprefix(PREFIX)
        unfinished = self.path.with_name(f"{_UNFINISHED}{name}")
        try:
            with unfinished.open("wb") as file:
                with pa.ipc.new_file(file, _SCHEMA) as writer:
                    writer.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.path)
        finally:
            unfinished.unlink(missing_ok=True)
        fsync_folder(self.path.parent)


def past_path(folder: Path, ingester: str) -> Path:
    """The file of an ingester."""
    return folder / f"{PREFIX}{ingester}"


def past_files(folder: Path) -> Iterable[Path]:
    """The files of all ingesters."""
    return sorted(folder.glob(f"{PREFIX}*"))


def past_ranges(path: Path) -> Iterator[tuple[_Key, int, int]]:
    """What one file holds: (node, boot) and closed ranges.

    Raises:
        SegmentError: It cannot be read.
    """
    for key, ranges in PastIds.load(path).ranges.items():
        for low, high in ranges:
            yield key, low, high


@dataclass
class SeenIds:
    """A set of message ids, kept as ranges per node and boot.

    Attributes:
        ranges: Sequence numbers of each (node, boot).
    """

    ranges: dict[tuple[str, str], SeqRanges] = field(default_factory=dict)
    _read: set[SegmentName] = field(default_factory=set)
    _past: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def rebuilt_from(cls, folder: Path) -> "SeenIds":
        """Read the ids of every segment in a folder.

        Raises:
            SegmentError: A segment cannot be read.
        """
        seen = cls()
        seen.catch_up(folder)
        return seen

    def catch_up(self, folder: Path) -> None:
        """Read the ids of what has come into a folder since the last time.

        Raises:
            SegmentError: A segment cannot be read.
        """
        names = set(list_segments(folder))
        for name in sorted(names - self._read):
            path = folder / str(name)
            try:
                table = read_segment(path, ("node", "boot", "seq"))
            except SegmentError:
                if path.exists():
                    raise
                continue  # trimmed meanwhile, its ids are among the past ones
            columns = (table[name].to_pylist() for name in ("node", "boot", "seq"))
            self.add(MessageId(*parts) for parts in zip(*columns, strict=True))
        self._read = names
        for path in past_files(folder):
            told = path.stat()
            version = (told.st_ino, told.st_mtime_ns)
            if self._past.get(path) == version:
                continue
            self._past[path] = version
            for key, low, high in past_ranges(path):
                self.ranges.setdefault(key, SeqRanges()).add(low, high)

    def __contains__(self, message_id: MessageId) -> bool:
        """Whether the message is in the log."""
        ranges = self.ranges.get((message_id.node, message_id.boot))
        return ranges is not None and message_id.seq in ranges

    def add(self, ids: Iterable[MessageId]) -> None:
        """Remember messages that are on disk now."""
        for message_id in ids:
            key = (message_id.node, message_id.boot)
            self.ranges.setdefault(key, SeqRanges()).add(message_id.seq)

    def count(self) -> int:
        """How many messages there are."""
        return sum(ranges.count() for ranges in self.ranges.values())
