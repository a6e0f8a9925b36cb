"""Which messages are in the log: the memory that removes duplicates.

It needs no store of its own; the log's id columns are read again at start, and the
ids of segments that are gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from backend_spark.errors import SegmentError
from backend_spark.ingest.log import SegmentName, list_segments, read_segment
from backend_spark.ingest.past import past_files, past_ranges
from spatial_mqtt.custody import SeqRanges
from spatial_mqtt.envelope import MessageId


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
