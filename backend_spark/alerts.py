"""Alerts process: copies urgent messages from the log to a table, without Spark.

The offset in the log is committed in the same transaction as the rows, so a kill leaves
both or neither. The offset is also committed after some seconds, or many segments,
without an urgent message, so that a restart need not read them again.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    TABLES_FOLDER,
    BackendSettings,
)
from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.kafka_settings import KafkaSection
from backend_spark.ingest.log import MessageLog, end_of, open_log
from backend_spark.ingest.messages import DEAD_LETTER
from backend_spark.ingest.retention import ALERTS_QUERY
from backend_spark.ingest.segment_log import (
    LogOffset,
    SegmentLog,
    SegmentName,
    advance_offset,
    end_offset,
    list_segments,
)
from backend_spark.scoring.decode import parse_message, read_reason_codes
from backend_spark.tables.delta_writer import commit_files, create_tables, write_file
from backend_spark.tables.maintenance import (
    DELETE_EVERY_S,
    maintain_tables,
    trim_tables,
)
from backend_spark.tables.reader import DeltaTables, read_transactions
from backend_spark.tables.schemas import ALERTS
from backend_spark.tables.store import Folder, open_table, tables_folder
from service_runtime.crash_guard import CrashGuard, make_crash_guard
from service_runtime.files import acquire_lock, make_folder, write_atomic
from service_runtime.lifecycle import (
    LoopService,
    SystemdSupervisor,
    exit_on_thread_error,
    run_service,
)
from service_runtime.watchdog import Heartbeat, LoopWatchdog, no_heartbeat
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

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


log = logging.getLogger(__name__)

TABLE: Final = "alerts"
MESSAGE_COLUMNS: Final = (
    "node",
    "boot",
    "seq",
    "pri",
    "topic",
    "cell",
    "received_at",
    "age_s",
)

POLL_S: Final = 0.02
MIN_COMMIT_INTERVAL_S: Final = 0.25
"""Shortest time between two commits: at most 14,000 files an hour in a storm."""

MAX_SEGMENTS: Final = 200
MIN_WHOLE_BYTES: Final = 500_000
COMPACT_EVERY: Final = 50
"""Commits between two compactions. Alerts wait during one, so it merges few files."""

COMMIT_AFTER_SEGMENTS: Final = 1000
COMMIT_AFTER_S: Final = 10.0
"""Segments, and seconds, without an urgent message until the offset is committed."""

SILENCE_S: Final = 60.0
"""Longest commit on a failing disk; after that the loop counts as hung."""


def urgent_rows(segment: pa.Table) -> list[dict[str, Any]]:
    """Urgent rows of a segment.

    Shape:
        in: schemas.LOG.
    """
    rows: list[dict[str, Any]] = segment.filter(
        pc.greater_equal(segment["pri"], LADDER.urgent_from)
    ).to_pylist()
    return rows


def alert_table(
    messages: Iterable[Mapping[str, Any]], guard: CrashGuard, max_ahead_s: float
) -> pa.Table:
    """One row per message; if it does not decode, the row has the reason.

    Args:
        messages: The messages.
        guard: Puts messages aside that ended the program twice.
        max_ahead_s: As in `read_pack`.

    Shape:
        in: schemas.LOG rows.
        out: schemas.ALERTS.
    """
    tables = [_guarded_table(message, guard, max_ahead_s) for message in messages]
    return pa.concat_tables([ALERTS.empty_table(), *tables])


def _guarded_table(
    message: Mapping[str, Any], guard: CrashGuard, max_ahead_s: float
) -> pa.Table:
    """Table of one message, which is not decoded if it is damaged or dangerous.

    A message that was damaged in the log has a reason; a dangerous one ended the
    program twice.
    """
    reason, table = message["reason"], None
    if reason is None:
        table = guard.decode(
            message["topic"],
            message["payload"],
            lambda: _table(alert_row(message, max_ahead_s)),
        )
    if table is not None:
        return table
    row = alert_row({**message, "payload": b""}, max_ahead_s)
    return _table(row | {"reason": reason or DEAD_LETTER})


def _table(row: Mapping[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([row], schema=ALERTS)


def alert_row(message: Mapping[str, Any], max_ahead_s: float) -> dict[str, Any]:
    """Row of one message."""
    readings = parse_message(message, max_ahead_s)
    first = readings[0]
    return {name: first[name] for name in MESSAGE_COLUMNS} | {
        "at": first.get("pack_at"),
        "synchronised": first.get("synchronised"),
        "why": first.get("why"),
        "readings": list(_format_readings(readings)),
        "reason": first.get("reason"),
        "reason_codes": read_reason_codes(message["payload"]),
    }


def _format_readings(readings: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for reading in readings:
        if reading.get("name") is not None:
            value = reading["value_text"] or reading["value"]
            value = reading["sum"] if value is None else value
            text = f"{value:g}" if isinstance(value, float) else str(value)
            yield " ".join(filter(None, (reading["name"], text, reading["unit"])))


def read_offset(table: Folder, *logs: MessageLog) -> LogOffset:
    """Read the committed offset; streams that the table does not have are unread."""
    streams = {stream for each in logs for stream in each.bounds()}
    return read_transactions(open_table(table), streams)


def read_alert_ids(tables: DeltaTables) -> MessageIdSet:
    """Read the message ids of the alerts table."""
    columns = ("node", "boot", "seq")
    rows = tables.alerts(list(columns))
    parts = zip(*(rows[name].to_pylist() for name in columns), strict=True)
    seen = MessageIdSet()
    seen.add(MessageId(*each) for each in parts)
    return seen


@dataclass
class AlertWriter:
    """Loop that writes alerts.

    Attributes:
        table: Folder of the table, which exists.
        log: The log.
        follower: Follower of the log.
        known_ids: Ids in the table.
        monotonic_s: Clock.
        trim: Deletes rows that are too old.
        checkpoint: Copy of the committed offset for the retention of the log.
        crash_guard: Puts messages aside that ended the program twice.
        max_ahead_s: Lead of a message over its receipt above which its time is wrong.
        written: Rows written since the start.
        commits: Commits since the start.
    """

    table: Folder
    log: MessageLog
    follower: LogFollower | LogPoller
    known_ids: MessageIdSet
    monotonic_s: Callable[[], float]
    trim: Callable[[], object]
    checkpoint: AlertCheckpoint
    crash_guard: CrashGuard
    max_ahead_s: float
    written: int = 0
    commits: int = 0
    _uncommitted_streams: set[str] = field(default_factory=set)
    _uncommitted_segments: int = 0
    _commit_due_s: float = 0.0

    def run(self, stop: threading.Event, beat: Heartbeat = no_heartbeat) -> None:
        """Write alerts until stopped."""
        wait_s, trim_at_s = 0.0, self.monotonic_s()
        while not stop.wait(wait_s):
            beat()
            began_s = self.monotonic_s()
            if began_s >= trim_at_s:
                self.trim()
                trim_at_s = began_s + DELETE_EVERY_S
            has_written = self.step()
            pause_s = (
                MIN_COMMIT_INTERVAL_S - (self.monotonic_s() - began_s)
                if has_written
                else 0.0
            )
            wait_s = max(POLL_S, pause_s)

    def step(self) -> bool:
        """Process waiting segments once; returns whether rows were written."""
        names = self.follower.next_segments(MAX_SEGMENTS)
        rows = [row for each in self.log.read(names) for row in self._find_new(each)]
        self.follower.mark_read(names)
        self._uncommitted_streams |= {name.stream for name in names}
        if names and not self._uncommitted_segments:
            self._commit_due_s = self.monotonic_s() + COMMIT_AFTER_S
        self._uncommitted_segments += len(names)
        if rows or self._is_commit_due():
            self._commit(rows)
        return bool(rows)

    def _is_commit_due(self) -> bool:
        count, now_s = self._uncommitted_segments, self.monotonic_s()
        return count >= COMMIT_AFTER_SEGMENTS or (
            count > 0 and now_s >= self._commit_due_s
        )

    def drain(self) -> None:
        """Write the alerts of all segments that the log has now, and its offset."""
        self.follower = LogPoller(self.log, self.follower.offset)
        before: LogOffset | None = None
        while self.follower.offset != before:
            before = self.follower.offset
            self.step()
        if self._uncommitted_segments:
            self._commit([])

    def status(self) -> str:
        """Status line."""
        text = f"{self.written} alerts in {self.commits} commits since the start"
        put_aside = self.crash_guard.put_aside
        return f"{text}, {put_aside} put aside undecoded" if put_aside else text

    def _find_new(self, messages: pa.Table) -> list[dict[str, Any]]:
        """Urgent rows of a segment that are not in the table, each once."""
        rows = []
        for row in urgent_rows(messages):
            message_id = MessageId(row["node"], row["boot"], row["seq"])
            if message_id not in self.known_ids:
                self.known_ids.add([message_id])
                rows.append(row)
        return rows

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        streams = sorted(self._uncommitted_streams)
        transactions = [Transaction(s, self.follower.offset[s]) for s in streams]
        parts = []
        if rows:
            table = alert_table(rows, self.crash_guard, self.max_ahead_s)
            parts = [write_file(self.table, table, ALERTS)]
        properties = CommitProperties(app_transactions=transactions)
        read = open_table(self.table)
        commit_files(self.table, parts, properties, read=read)
        self.checkpoint.write(self.follower.offset)
        maintain_tables([self.table], self.commits, MIN_WHOLE_BYTES, COMPACT_EVERY)
        self._uncommitted_streams.clear()
        self._uncommitted_segments = 0
        self.commits += 1
        self.written += len(rows)


def _follow(messages: MessageLog, offset: LogOffset) -> LogFollower | LogPoller:
    if isinstance(messages, SegmentLog):
        return LogFollower(messages.folder, time.monotonic, offset)
    return LogPoller(messages, offset)


def run(settings: BackendSettings) -> None:
    """Write alerts until SIGTERM or SIGINT.

    Raises:
        AlreadyRunningError: Another process writes the alerts of this data folder.
    """
    exit_on_thread_error()
    data, tables = Path(settings.backend.data), tables_folder(settings.backend)
    lock = acquire_lock(data / TABLES_FOLDER / f".lock-{TABLE}")
    folder, table = data / LOG_FOLDER, tables / TABLE
    folder.mkdir(parents=True, exist_ok=True)
    create_tables(tables, [TABLE])

    def trim_alerts() -> None:
        trim_tables(tables, [TABLE], settings.keep, time.time())

    known = read_alert_ids(DeltaTables(tables))
    progress = AlertCheckpoint(data / CHECKPOINTS_FOLDER / ALERTS_QUERY)
    guard = make_crash_guard(data, TABLE).open()

    def open_writer(kafka: KafkaSection) -> AlertWriter:
        messages = open_log(folder, kafka)
        tail = _follow(messages, read_offset(table, messages, SegmentLog(folder)))
        return AlertWriter(
            *(table, messages, tail, known, time.monotonic, trim_alerts, progress),
            *(guard, settings.score.max_ahead_s),
        )

    if settings.kafka.servers is not None:
        open_writer(KafkaSection()).drain()  # files from before the change to Kafka
    loop = open_writer(settings.kafka)
    offset = loop.follower.offset
    progress.write(offset)  # of files, too: ingest deletes up to it
    log.info("%d alerts known, %d streams of the log", known.count(), len(offset))
    pulse, stopping = LoopWatchdog(time.monotonic), threading.Event()
    service = LoopService(
        pulse, TABLE, SILENCE_S, partial(loop.run, stopping), stopping.set
    )
    run_service(
        service,
        SystemdSupervisor.from_environment(os.environ, os.getpid(), pulse, loop.status),
    )
    os.close(lock)
