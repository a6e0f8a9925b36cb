"""Message ids in the log, to remove duplicates.

At start they are read from the segments' id columns, and from one file per ingester
with the ids of segments that have been deleted.
"""

import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.errors import SegmentError
from backend_spark.ingest.log import MessageLog
from backend_spark.ingest.segment_log import (
    LogOffset,
    SegmentName,
    advance_offset,
    list_segments,
    open_arrow_file,
    read_segment_ids,
    report_damage,
)
from service_runtime.files import fsync_folder
from service_runtime.watchdog import Heartbeat, no_heartbeat
from spatial_mqtt.custody import IntervalSet, group_ids
from spatial_mqtt.senml import MessageId

log = logging.getLogger(__name__)

SEGMENTS_AT_ONCE: Final = 500
_PREFIX = ".ids-"
_UNFINISHED = ".unfinished-ids-"
_DAMAGED = ".damaged-ids-"
_SCHEMA = pa.schema([
    pa.field("node", pa.string()),
    pa.field("boot", pa.string()),
    pa.field("low", pa.int64()),
    pa.field("high", pa.int64()),
    pa.field("last_us", pa.int64()),
])
_Key = tuple[str, str]
"""(node, boot)"""


MIN_ARCHIVED_RANGES: Final = 50_000
"""Archived ranges up to which age removes none: the ids of a machine whose clock was
wrong look old, too. They take some 30 MB of memory at most."""

MAX_NODES: Final = 200_000
MAX_RANGES_OF_NODE: Final = 20_000
"""A real node has one range for each of its boots: sequence numbers grow."""


class IdRanges:
    """Sequence numbers by (node, boot), in bounded memory for each node.

    A node may invent boots and leave gaps. Above `MAX_RANGES_OF_NODE` its own oldest
    boot is removed, then its lowest numbers: a message of that node that is sent again
    after so many others is logged twice. An unknown id never counts as known.

    Attributes:
        forgotten: Ranges that were forgotten.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[str, OrderedDict[str, IntervalSet]] = OrderedDict()
        self._sizes: Counter[str] = Counter()
        self.forgotten = 0

    def __getitem__(self, key: _Key) -> IntervalSet:
        """The sequence numbers of (node, boot)."""
        return self._nodes[key[0]][key[1]]

    def __contains__(self, message_id: MessageId) -> bool:
        """Whether an id is known."""
        boots = self._nodes.get(message_id.node)
        ranges = None if boots is None else boots.get(message_id.boot)
        return ranges is not None and message_id.seq in ranges

    def __iter__(self) -> Iterator[_Key]:
        """All (node, boot)."""
        return ((node, boot) for node, boots in self._nodes.items() for boot in boots)

    def add(self, key: _Key, low: int, high: int) -> None:
        """Add a closed range of sequence numbers."""
        node, boot = key
        boots = self._nodes.get(node)
        if boots is None:
            boots = self._nodes[node] = OrderedDict()
            self._limit_nodes()
        self._nodes.move_to_end(node)
        ranges = boots.get(boot)
        if ranges is None:
            ranges = boots[boot] = IntervalSet()
        boots.move_to_end(boot)
        before = len(ranges)
        ranges.add(low, high)
        self._sizes[node] += len(ranges) - before
        if self._sizes[node] > MAX_RANGES_OF_NODE:
            self._limit(node, boots)

    def remove(self, key: _Key) -> None:
        """Remove the sequence numbers of (node, boot)."""
        node, boot = key
        self._sizes[node] -= len(self._nodes[node].pop(boot))
        if not self._nodes[node]:
            del self._nodes[node], self._sizes[node]

    def _limit(self, node: str, boots: OrderedDict[str, IntervalSet]) -> None:
        if len(boots) > 1:
            boot, oldest = next(iter(boots.items()))
            self.forgotten += len(oldest)
            self.remove((node, boot))
            return
        (ranges,) = boots.values()
        half = len(ranges) // 2
        ranges.drop_lowest(half)
        self._sizes[node] -= half
        self.forgotten += half

    def _limit_nodes(self) -> None:
        if len(self._nodes) > MAX_NODES:
            node, _ = self._nodes.popitem(last=False)
            self.forgotten += self._sizes.pop(node)


@dataclass
class ArchivedIds:
    """Ids of deleted segments, as ranges of sequence numbers; one file per ingester.

    Attributes:
        COLUMNS: Columns of a segment that `add_segment` reads.
        path: The file.
        ranges: Sequence numbers of each (node, boot).
        last_us: Unix time of the last receipt of each (node, boot), in microseconds.
    """

    path: Path
    ranges: IdRanges = field(default_factory=IdRanges)
    last_us: dict[_Key, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "ArchivedIds":
        """Read the file; no ids if it does not exist.

        A damaged one is moved aside: messages of deleted segments that are sent again
        are then logged again, which is better than no ingest.
        """
        past = cls(path)
        if not path.exists():
            return past
        try:
            rows = _read_ids(path)
        except ValueError as error:
            aside = path.with_name(f"{_DAMAGED}{path.name.removeprefix(_PREFIX)}")
            path.replace(aside)
            log.error("%s; moved to %s", error, aside)  # noqa: TRY400
            return past
        for node, boot, low, high, last_us in zip(*rows.values(), strict=True):
            past.add((node, boot), low, high, last_us)
        return past

    def add(self, key: _Key, low: int, high: int, last_us: int) -> None:
        """Add a closed range of sequence numbers, received up to `last_us`."""
        self.ranges.add(key, low, high)
        self.last_us[key] = max(last_us, self.last_us.get(key, last_us))

    def add_segment(self, rows: pa.Table) -> None:
        """Add the ids of a segment, read by `read_segment_ids`."""
        times = rows["received_at"].cast(pa.int64()).to_pylist()
        ids = (rows[name].to_pylist() for name in ("node", "boot", "seq"))
        for node, boot, seq, last_us in zip(*ids, times, strict=True):
            self.add((node, boot), seq, seq, last_us)

    def save(self, since_us: int) -> None:
        """Write the file, without the oldest pairs (node, boot).

        Args:
            since_us: Unix time in microseconds; pairs with later receipts remain, and
                of the others the newest, up to `MIN_ARCHIVED_RANGES` altogether.
        """
        self._forget(since_us)
        rows = [
            (*key, low, high, self.last_us[key])
            for key in self.ranges
            for low, high in self.ranges[key]
        ]
        columns = zip(*rows, strict=True) if rows else ([] for _ in _SCHEMA)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
        # Not `write_atomic`: on a full disk a partial file must not stay, and its name
        # must not match `.ids-*`.
        name = self.path.name.removeprefix(_PREFIX)
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

    def _forget(self, since_us: int) -> None:
        # Also pairs that the limit of a node removed have a time.
        self.last_us = {key: self.last_us[key] for key in self.ranges}
        surplus = sum(len(self.ranges[key]) for key in self.ranges)
        surplus -= MIN_ARCHIVED_RANGES
        for key, last_us in sorted(self.last_us.items(), key=itemgetter(1)):
            if surplus <= 0 or last_us >= since_us:
                return
            surplus -= len(self.ranges[key])
            self.ranges.remove(key)
            del self.last_us[key]


def _read_ids(path: Path) -> dict[str, list[Any]]:
    with report_damage(lambda error: ValueError(f"{path} cannot be read: {error}")):
        with open_arrow_file(path) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)
        if table.schema != _SCHEMA:
            raise ValueError(f"its columns are {table.column_names}")
        rows: dict[str, list[Any]] = table.to_pydict()
    return rows


def archived_ids_path(folder: Path, ingester: str) -> Path:
    """Path of the id file of an ingester, in the folder of the log."""
    return folder / f"{_PREFIX}{ingester}"


@dataclass
class MessageIdSet:
    """Set of message ids, stored as ranges per (node, boot).

    Attributes:
        ranges: Sequence numbers of each (node, boot).
        unreadable: Segments whose ids are unknown because they are damaged.
    """

    ranges: IdRanges = field(default_factory=IdRanges)
    unreadable: set[SegmentName] = field(default_factory=set)
    _segments: set[SegmentName] = field(default_factory=set)
    _offset: LogOffset = field(default_factory=dict)
    _file_versions: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read_log(cls, folder: Path) -> "MessageIdSet":
        """Read the ids of all segments in a folder."""
        seen = cls()
        seen.read_new_segments(folder)
        return seen

    def read_new_segments(self, folder: Path, beat: Heartbeat = no_heartbeat) -> None:
        """Read the ids of segments and id files that are new since the last call."""
        names = set(list_segments(folder))
        for name in sorted(names - self._segments):
            beat()
            path = folder / str(name)
            try:
                table = read_segment_ids(path)
            except FileNotFoundError:
                continue  # deleted meanwhile; its ids are in an id file
            except SegmentError as error:
                # A message that is sent again is logged again: better than none.
                log.error("%s", error)  # noqa: TRY400 - the trace adds nothing
                self.unreadable.add(name)
                continue
            columns = (table[name].to_pylist() for name in ("node", "boot", "seq"))
            self.add(MessageId(*parts) for parts in zip(*columns, strict=True))
        self._segments = names
        for path in sorted(folder.glob(f"{_PREFIX}*")):
            beat()
            with suppress(FileNotFoundError):
                self._read_archived(path)

    def read_new_rows(self, log: MessageLog, beat: Heartbeat = no_heartbeat) -> None:
        """Read the ids of a log that are new since the last call."""
        bounds = log.bounds()
        end = {stream: last for stream, (_, last) in bounds.items()}
        # Records that are not there any more were read by an earlier run.
        before = {stream: first - 1 for stream, (first, _) in bounds.items()}
        self._offset = before | self._offset
        while names := log.between(self._offset, end, SEGMENTS_AT_ONCE):
            for table in log.read(names):
                beat()
                # A row without an id, or with a damaged payload, is no duplicate.
                ids = table.filter(pc.is_null(table["reason"]))
                columns = (ids[part].to_pylist() for part in ("node", "boot", "seq"))
                self.add(MessageId(*parts) for parts in zip(*columns, strict=True))
            self._offset = advance_offset(self._offset, names)

    def _read_archived(self, path: Path) -> None:
        status = path.stat()
        version = (status.st_ino, status.st_mtime_ns)
        if self._file_versions.get(path) == version:
            return
        self._file_versions[path] = version
        archived = ArchivedIds.load(path).ranges
        for key in archived:
            for low, high in archived[key]:
                self.ranges.add(key, low, high)

    def __contains__(self, message_id: MessageId) -> bool:
        """Whether the set contains an id."""
        return message_id in self.ranges

    def add(self, ids: Iterable[MessageId]) -> None:
        """Add ids of messages that are on disk."""
        for key, ranges in group_ids(ids).items():
            for low, high in ranges:
                self.ranges.add(key, low, high)

    def count(self) -> int:
        """Number of ids."""
        return sum(self.ranges[key].count() for key in self.ranges)
