"""Composition of the alerts process: its clock, its lock, its signals.

The loop of the urgent path: read, write, fsync, commit with the offset in it.

How far the log is read stands in the table, in the very commit that holds the
rows: a kill at any moment leaves both or neither. Segments without an urgent
message are told to the table now and then, so that a restart need not read them.

From a segment's urgent messages to rows of alerts: pure, one row a message.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction

from backend_spark.alerts.log_follower import LogTail, Progress
from backend_spark.config import CHECKPOINTS_FOLDER, LOG_FOLDER, TABLES_FOLDER, Settings
from backend_spark.ingest.deduplication import SeenIds
from backend_spark.ingest.messages import URGENT_FROM
from backend_spark.ingest.segment_log import SegmentName, list_segments, read_segment
from backend_spark.scoring.decode import parse, reason_codes
from backend_spark.streaming.sources import Offset
from backend_spark.tables.delta_writer import commit_files, make_tables, write_part
from backend_spark.tables.maintenance import EVERY_S, keep_up, trim
from backend_spark.tables.reader import Tables, open_tables
from backend_spark.tables.schemas import ALERTS
from service_runtime.lifecycle import Supervision, die_on_unknown_errors, serve
from service_runtime.locks import hold
from service_runtime.watchdog import Beat, Pulse, unheard
from spatial_mqtt.senml import MessageId

SHARED = ("node", "boot", "seq", "pri", "topic", "cell", "received_at", "age_s")


def urgent(segment: pa.Table) -> list[dict[str, Any]]:
    """Rows of a segment whose priority cannot wait.

    Shape:
        in: schemas.LOG.
    """
    rows: list[dict[str, Any]] = segment.filter(
        pc.greater_equal(segment["pri"], URGENT_FROM)
    ).to_pylist()
    return rows


def alerts(messages: Iterable[Mapping[str, Any]]) -> pa.Table:
    """One row a message; one that does not decode has its reason instead.

    Shape:
        in: schemas.LOG rows.
        out: schemas.ALERTS.
    """
    return pa.Table.from_pylist([alert(row) for row in messages], schema=ALERTS)


def alert(message: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one message."""
    readings = parse(message)
    first = readings[0]
    return {name: first[name] for name in SHARED} | {
        "at": first.get("pack_at"),
        "synchronised": first.get("synchronised"),
        "why": first.get("why"),
        "readings": list(_said(readings)),
        "reason": first.get("reason"),
        "reason_codes": reason_codes(message["payload"]),
    }


def _said(readings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for reading in readings:
        if reading.get("name") is not None:
            told = reading["value_text"] or reading["value"]
            told = reading["sum"] if told is None else told
            shown = f"{told:g}" if isinstance(told, float) else str(told)
            yield " ".join(filter(None, (reading["name"], shown, reading["unit"])))


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


SILENCE_S: Final = 60.0
"""What a sick disk may take for one commit; beyond that it hangs."""

TABLE: Final = "alerts"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """The loop, as systemd sees it.

    Attributes:
        alerts: The loop.
        pulse: Listens to it.
        stopping: Ends it.
    """

    alerts: Alerts
    pulse: Pulse
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Work until `stop`."""
        with self.pulse.expects("alerts", SILENCE_S) as beat:
            self.alerts.run(self.stopping, beat)

    def stop(self) -> None:
        """End `run`."""
        self.stopping.set()


def run(settings: Settings) -> None:
    """Write alerts until SIGTERM or SIGINT.

    Raises:
        AlreadyRunningError: Another process writes these alerts.
        SegmentError: The log is damaged.
    """
    die_on_unknown_errors()
    data = Path(settings.backend.data)
    lock = hold(data / TABLES_FOLDER / f".lock-{TABLE}")
    folder = data / LOG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    make_tables(data / TABLES_FOLDER, [TABLE])
    table = data / TABLES_FOLDER / TABLE
    tail = LogTail(folder, time.monotonic, read_offset(table, folder))

    def trim_alerts() -> None:
        trim(data / TABLES_FOLDER, [TABLE], settings.keep, time.time())

    known = known_ids(open_tables(data))
    progress = Progress(data / CHECKPOINTS_FOLDER / TABLE)
    progress.tell(tail.offset)
    loop = Alerts(table, tail, known, time.monotonic, trim_alerts, progress)
    log.info(
        "%d alerts known, %d streams of the log", loop.seen.count(), len(tail.offset)
    )
    pulse = Pulse(time.monotonic)
    made = Process(loop, pulse)
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, loop.status))
    os.close(lock)
