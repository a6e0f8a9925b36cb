"""Following the segment log: new segments at once, whatever the log's length.

The next segment of a stream has a known name, so one look per stream finds it. A
listing of the folder finds new streams; a long folder is listed the less often.

How far alerts have come, told as Spark tells it: the log is trimmed behind it.

The table holds the truth; this copy, written after it, is what the retention of the
log reads beside the checkpoints of Spark's queries.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from backend_spark.ingest.segment_log import SegmentName, list_segments
from backend_spark.streaming.sources import Offset, advance, between, newest
from service_runtime.files import fsync_file, fsync_folder, make_folder

LISTING_SHARE: Final = 0.02
"""Most of our time that goes into listings."""

LISTING_S: Final = 0.1
"""Listings of a short folder are so far apart."""


@dataclass
class LogTail:
    """Where a reader of the log is, and what comes next.

    Attributes:
        folder: The log.
        monotonic_s: Clock.
        offset: What has been read.
    """

    folder: Path
    monotonic_s: Callable[[], float]
    offset: Offset = field(default_factory=dict)
    _streams: set[str] = field(default_factory=set)
    _list_at_s: float = 0.0

    def waiting(self, at_most: int) -> list[SegmentName]:
        """Segments after the offset, streams taking turns; none when up to date."""
        names = self._probed(at_most)
        if not names and self.monotonic_s() >= self._list_at_s:
            names = self._listed()[:at_most]
        return names

    def done(self, names: list[SegmentName]) -> None:
        """Move the offset past segments."""
        self.offset = advance(self.offset, names)

    def _probed(self, at_most: int) -> list[SegmentName]:
        found: list[SegmentName] = []
        heads = dict.fromkeys(self._streams, 0)
        while heads and len(found) < at_most:
            for stream in list(heads):
                heads[stream] += 1
                seq = self.offset.get(stream, -1) + heads[stream]
                name = SegmentName(stream, seq)
                if (self.folder / str(name)).exists():
                    found.append(name)
                else:
                    del heads[stream]
        return found[:at_most]

    def _listed(self) -> list[SegmentName]:
        """A listing shows a segment and may miss an earlier one: see a second one."""
        began_s = self.monotonic_s()
        seen = newest(list_segments(self.folder))
        self._streams = set(seen)
        names = between(list_segments(self.folder), self.offset, seen)
        ended_s = self.monotonic_s()
        rest_s = (ended_s - began_s) / LISTING_SHARE
        self._list_at_s = ended_s + max(LISTING_S, rest_s)
        return names


BATCH: Final = "0"
HEAD: Final = "v1\n{}\n"
"""Version and settings, which come before the offset."""


@dataclass(frozen=True)
class Progress:
    """A checkpoint of one batch that is written anew each time.

    Attributes:
        folder: Below the folder of checkpoints.
    """

    folder: Path

    def tell(self, offset: Offset) -> None:
        """Say that everything up to an offset is in the table."""
        for name, text in (("offsets", HEAD + json.dumps(offset)), ("commits", "v1\n")):
            path = self.folder / name / BATCH
            make_folder(path.parent)
            unfinished = path.with_name(f".{BATCH}.unfinished")
            unfinished.write_text(text, encoding="utf-8")
            fsync_file(unfinished)
            unfinished.rename(path)
            fsync_folder(path.parent)
