"""The loop of the urgent path: read, write, fsync, commit with the offset in it.

How far the log is read stands in the table, in the very commit that holds the
rows: a kill at any moment leaves both or neither. Segments without an urgent
message are told to the table now and then, so that a restart need not read them.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Transaction

from backend_spark.ingest.log import SegmentName, list_segments, read_segment
from backend_spark.ingest.seen import SeenIds
from backend_spark.schemas import ALERTS
from backend_spark.sinks.commits import commit_files
from backend_spark.sinks.parts import write_part
from backend_spark.sinks.trim import EVERY_S
from backend_spark.sinks.upkeep import keep_up
from backend_spark.sources.offsets import Offset
from backend_spark.tables import Tables
from backend_spark.urgent.progress import Progress
from backend_spark.urgent.rows import alerts, urgent
from backend_spark.urgent.tail import LogTail
from spatial_mqtt.envelope import MessageId
from spatial_mqtt.pulse import Beat, unheard

log = logging.getLogger(__name__)

POLL_S: Final = 0.02
GATHER_S: Final = 0.25
"""Two commits are so far apart: a storm makes 14,000 files an hour, not 100,000."""

MOST_SEGMENTS: Final = 200
WHOLE_BYTES: Final = 500_000
COMPACT_EVERY: Final = 50
"""Alarms wait while files are put together: few at a time, and none that is large."""

TELL_AFTER: Final = 1000
"""Segments without an urgent message after which the offset is committed."""


def read_offset(table: Path, folder: Path) -> Offset:
    """How far the log has come into the table; what is not in it counts as unread."""
    delta = DeltaTable(str(table))
    versions = {
        stream: delta.transaction_version(stream)
        for stream in {name.stream for name in list_segments(folder)}
    }
    return {s: seq for s, seq in sorted(versions.items()) if seq is not None}


def known_ids(tables: Tables) -> SeenIds:
    """Ids that the table has."""
    columns = ("node", "boot", "seq")
    there = tables.alerts(list(columns))
    seen = SeenIds()
    rows = zip(*(there[name].to_pylist() for name in columns), strict=True)
    seen.add(MessageId(*row) for row in rows)
    return seen


@dataclass
class Alerts:
    """Writes alerts until it is stopped.

    Attributes:
        table: Folder of the table, which exists.
        tail: Follows the log.
        seen: Ids that the table has.
        monotonic_s: Clock.
        trim: Deletes rows that are too old.
        progress: Told of every commit.
        written: Rows written since the start.
        commits: Commits made since the start.
    """

    table: Path
    tail: LogTail
    seen: SeenIds
    monotonic_s: Callable[[], float]
    trim: Callable[[], object]
    progress: Progress
    written: int = 0
    commits: int = 0
    _untold: set[str] = field(default_factory=set)
    _silent: int = 0

    def run(self, stop: threading.Event, beat: Beat = unheard) -> None:
        """Work until stopped; what is committed then stays."""
        wait_s, trim_at_s = 0.0, self.monotonic_s()
        while not stop.wait(wait_s):
            beat()
            began_s = self.monotonic_s()
            if began_s >= trim_at_s:
                self.trim()
                trim_at_s = began_s + EVERY_S
            has_written = self.step()
            rest_s = GATHER_S - (self.monotonic_s() - began_s) if has_written else 0.0
            wait_s = max(POLL_S, rest_s)

    def step(self) -> bool:
        """Bring what waits in the log into the table; whether rows were written."""
        names = self.tail.waiting(MOST_SEGMENTS)
        rows = [row for name in names for row in self._new(name)]
        self.tail.done(names)
        self._untold |= {name.stream for name in names}
        self._silent += len(names)
        if rows or self._silent >= TELL_AFTER:
            self._commit(rows)
        return bool(rows)

    def status(self) -> str:
        """One line for a person."""
        return f"{self.written} alerts in {self.commits} commits since the start"

    def _new(self, name: SegmentName) -> list[dict[str, Any]]:
        """Urgent rows of a segment that the table does not have, each once."""
        fresh = []
        for row in urgent(read_segment(self.tail.folder / str(name))):
            message_id = MessageId(row["node"], row["boot"], row["seq"])
            if message_id not in self.seen:
                self.seen.add([message_id])
                fresh.append(row)
        return fresh

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        reached = [Transaction(s, self.tail.offset[s]) for s in sorted(self._untold)]
        parts = [write_part(self.table, alerts(rows), ALERTS)] if rows else []
        properties = CommitProperties(app_transactions=reached)
        commit_files(DeltaTable(str(self.table)), self.table, parts, properties)
        self.progress.tell(self.tail.offset)
        keep_up([self.table], self.commits, WHOLE_BYTES, COMPACT_EVERY)
        self._untold.clear()
        self._silent = 0
        self.commits += 1
        self.written += len(rows)
