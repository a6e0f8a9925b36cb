"""Follower of the segment log for alerts: its position, and the checkpoint of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from backend_spark.ingest.log import MessageLog, end_of
from backend_spark.ingest.segment_log import (
    LogOffset,
    SegmentLog,
    SegmentName,
    advance_offset,
    end_offset,
    list_segments,
)
from service_runtime.files import make_folder, write_atomic

LISTING_SHARE: Final = 0.02
"""Largest share of the time spent on listing the folder."""

LISTING_S: Final = 0.1
"""Shortest time between two listings."""


@dataclass
class LogFollower:
    """Position of a reader in the log, and the segments after it.

    The name of a stream's next segment is known, so one `stat` per stream finds it
    whatever the length of the log. New streams are found by listing the folder, the
    less often the longer that takes.

    Attributes:
        folder: Folder of the log.
        monotonic_s: Clock.
        offset: Offset up to which the log has been read.
    """

    folder: Path
    monotonic_s: Callable[[], float]
    offset: LogOffset = field(default_factory=dict)
    _streams: set[str] = field(default_factory=set)
    _list_at_s: float = 0.0

    def next_segments(self, max_count: int) -> list[SegmentName]:
        """Segments after the offset, round-robin over the streams."""
        # Also while known streams go on: a storm at one must not hide a new one.
        if self.monotonic_s() >= self._list_at_s:
            return self._list()[:max_count]
        return self._probe(max_count)

    def mark_read(self, names: list[SegmentName]) -> None:
        """Move the offset past segments."""
        self.offset = advance_offset(self.offset, names)

    def _probe(self, at_most: int) -> list[SegmentName]:
        found: list[SegmentName] = []
        steps = dict.fromkeys(self._streams, 0)
        while steps and len(found) < at_most:
            for stream in list(steps):
                steps[stream] += 1
                seq = self.offset.get(stream, -1) + steps[stream]
                name = SegmentName(stream, seq)
                if (self.folder / str(name)).exists():
                    found.append(name)
                else:
                    del steps[stream]
        return found[:at_most]

    def _list(self) -> list[SegmentName]:
        """List twice: a listing may show a segment and miss an earlier one."""
        began_s = self.monotonic_s()
        end = end_offset(list_segments(self.folder))
        self._streams = set(end)
        names = SegmentLog(self.folder).between(self.offset, end)
        ended_s = self.monotonic_s()
        pause_s = (ended_s - began_s) / LISTING_SHARE
        self._list_at_s = ended_s + max(LISTING_S, pause_s)
        return names


@dataclass
class LogPoller:
    """`LogFollower` of any log: asks for its end at each call.

    Attributes:
        log: The log.
        offset: Offset up to which the log has been read.
    """

    log: MessageLog
    offset: LogOffset = field(default_factory=dict)

    def next_segments(self, max_count: int) -> list[SegmentName]:
        """Segments after the offset, round-robin over the streams."""
        return self.log.between(self.offset, end_of(self.log), max_count)

    def mark_read(self, names: list[SegmentName]) -> None:
        """Move the offset past segments."""
        self.offset = advance_offset(self.offset, names)


BATCH: Final = "0"
HEADER: Final = "v1\n{}\n"
"""Version and settings, the lines before the offset."""


@dataclass(frozen=True)
class AlertCheckpoint:
    """Offset of alerts in the format of a Spark checkpoint with one batch.

    The table holds the authoritative offset. This copy, written after it, is read by
    the retention of the log together with the checkpoints of Spark's queries.

    Attributes:
        folder: Folder below the folder of checkpoints.
    """

    folder: Path

    def write(self, offset: LogOffset) -> None:
        """Record that everything up to an offset is in the table."""
        header_and_offset = HEADER + json.dumps(offset)
        for name, text in (("offsets", header_and_offset), ("commits", "v1\n")):
            path = self.folder / name / BATCH
            make_folder(path.parent)
            write_atomic(path, text.encode())
