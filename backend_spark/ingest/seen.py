"""Which messages are in the log: the memory that removes duplicates.

It needs no store of its own; the log's id columns are read again at start.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from backend_spark.ingest.log import read_segments
from spatial_mqtt.custody import SeqRanges
from spatial_mqtt.envelope import MessageId


@dataclass
class SeenIds:
    """A set of message ids, kept as ranges per node and boot.

    Attributes:
        ranges: Sequence numbers of each (node, boot).
    """

    ranges: dict[tuple[str, str], SeqRanges] = field(default_factory=dict)

    @classmethod
    def rebuilt_from(cls, folder: Path) -> "SeenIds":
        """Read the ids of every segment in a folder.

        Raises:
            SegmentError: A segment cannot be read.
        """
        seen = cls()
        for _, table in read_segments(folder, ("node", "boot", "seq")):
            columns = (table[name].to_pylist() for name in ("node", "boot", "seq"))
            seen.add(MessageId(*parts) for parts in zip(*columns, strict=True))
        return seen

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
