"""Ingest process: composes lock, connection, loop, retention thread and metrics.

A standby waits for the lock of the active process of the same id. The kernel releases
it when that process dies. One that hangs stops touching the lock file; the standby then
kills it before it takes over, so that two are never active. Modification times are only
compared for equality, so only the local clock matters.
"""

import logging
import math
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    QUARANTINE_FOLDER,
    BackendSettings,
    IngestSection,
    parse_broker,
)
from backend_spark.ingest.deduplication import MessageIdSet, archived_ids_path
from backend_spark.ingest.ingester import (
    AppendRetry,
    IngestLog,
    IngestLoop,
    IngestMetrics,
    KafkaTopic,
    SegmentFolder,
)
from backend_spark.ingest.log import (
    LogWriter,
    check_not_replaced,
    open_log,
    require_kafka_library,
)
from backend_spark.ingest.messages import (
    ClockCorrection,
    ConnectionUp,
    IngestBatch,
    IngestInbox,
    MessageArrived,
    PublisherAreaCheck,
    StopRequested,
)
from backend_spark.ingest.retention import (
    DAY_S,
    LogLimits,
    RemovedIngesters,
    SegmentRetention,
    last_segments,
    read_committed_offsets,
)
from backend_spark.ingest.segment_log import SegmentWriter
from service_runtime.crash_guard import make_crash_guard
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import LockHolder, acquire_lock, is_disk_full, make_folder
from service_runtime.lifecycle import (
    EXIT_CONFIG,
    LogLimit,
    SystemdSupervisor,
    end_after,
    exit_on_thread_error,
    run_service,
    start_watched_loop,
)
from service_runtime.metrics import MetricsServer, make_metrics_servers
from service_runtime.settings import SettingsError
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Heartbeat, LoopWatchdog, no_heartbeat
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    BaseConnectionHandler,
    IncomingMessage,
    Session,
)

log = logging.getLogger(__name__)

SILENCE_S: Final = 60.0
"""Longest flush on a failing disk; after that the loop counts as hung."""

TRIM_S: Final = 600.0
TRIM_SILENCE_S: Final = 2 * TRIM_S
"""The wait for the next pass, and as long for a pass over a large log."""

FULL_S: Final = 5.0
"""Time between two passes while the disk is full."""

RETRY_CAP_S: Final = 3.0
KEEPALIVE_S: Final = 10
"""As of the gateway's own links: on a connection that is dead in the direction of
ingest, all messages wait for about twice that."""
SCRAPE_S: Final = 2.0
POLL_S: Final = 0.2
"""Time between two touches of the lock, and between two looks of a standby at it."""

CATCH_UP_S: Final = 2.0
"""Time between two readings of new ids by a standby."""


class IngestHandler(BaseConnectionHandler):
    """Connection handler that passes events to the loop.

    It blocks while the inbox is full, so that TCP throttles the broker.

    Args:
        settings: Settings of the ingester.
        inbox: Inbox of the loop.
        now_us: Unix time, in microseconds.
        monotonic_s: Clock.
    """

    def __init__(
        self,
        settings: IngestSection,
        inbox: IngestInbox,
        now_us: Callable[[], int],
        monotonic_s: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.inbox = inbox
        self.now_us = now_us
        self.monotonic_s = monotonic_s
        self.beat: Heartbeat = no_heartbeat

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        log.debug("session %s, limit %d", session_present, receive_maximum)
        # `receive_maximum` limits our publications, the setting what the broker sends.
        self.inbox.put(ConnectionUp(self.settings.receive_maximum))

    def on_down(self, reason: str) -> None:
        log.info("%s is down: %s", self.settings.id, reason)

    def on_message(self, message: IncomingMessage) -> None:
        arrival = MessageArrived(message, self.now_us(), self.monotonic_s())
        self.inbox.put_message(arrival, self.beat)

    def on_published(self, token: int, refused: str | None) -> None:
        # The sender repeats its message when it gets no receipt.
        if refused not in {None, NO_SUBSCRIBERS}:
            log.error("broker refused publication %d: %s", token, refused)


@dataclass
class IngesterLock:
    """Acquires the lock of an ingester, now or when it becomes free.

    Attributes:
        path: Lock file.
        takeover_s: Silence after which the holder counts as hung; None does not wait.
        monotonic_s: Clock.
        wait: Waits for the given seconds; returns whether to stop.
        is_held: Whether the lock is held.
    """

    path: Path
    takeover_s: float | None
    monotonic_s: Callable[[], float]
    wait: Callable[[float], bool]
    is_held: bool = False
    _descriptor: int = -1
    _touched_s: float = 0.0
    _holder_touched_ns: int = -1
    _silent_since_s: float = 0.0

    def acquire(self, while_waiting: Callable[[], None]) -> bool:
        """Acquire the lock; wait while another process holds it.

        Args:
            while_waiting: Called every `CATCH_UP_S` while waiting.

        Returns:
            True with the lock; False if stopped while waiting.

        Raises:
            AlreadyRunningError: Another process holds it, and `takeover_s` is None.
        """
        next_s = self.monotonic_s()
        while not self._try_lock():
            self._check_holder()
            if self.monotonic_s() >= next_s:
                while_waiting()
                next_s = self.monotonic_s() + CATCH_UP_S
            if self.wait(POLL_S):
                return False
        self.is_held = True
        return True

    def touch(self) -> None:
        """Touch the lock file, which shows a standby that this process is alive."""
        now_s = self.monotonic_s()
        if now_s - self._touched_s >= POLL_S:
            self._touched_s = now_s
            os.utime(self._descriptor)

    def release(self) -> None:
        """Release the lock."""
        self.is_held = False
        os.close(self._descriptor)

    def _try_lock(self) -> bool:
        try:
            self._descriptor = acquire_lock(self.path)
        except AlreadyRunningError:
            if self.takeover_s is None:
                raise
            return False
        return True

    def _check_holder(self) -> None:
        now_s, touched_ns = self.monotonic_s(), self.path.stat().st_mtime_ns
        silence_s = now_s - self._silent_since_s
        if touched_ns != self._holder_touched_ns:
            self._holder_touched_ns, self._silent_since_s = touched_ns, now_s
        elif self.takeover_s is not None and silence_s > self.takeover_s:
            self._kill_holder(silence_s)
            self._silent_since_s = now_s

    def _kill_holder(self, silence_s: float) -> None:
        holder = LockHolder.read(self.path)
        if holder is None:
            log.warning("%s: holder not found, silent for %.0f s", self.path, silence_s)
            return
        log.error("%s hangs, silent for %.0f s: killing it", holder, silence_s)
        try:
            holder.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            log.error("%s belongs to another user: kill it manually", holder)  # noqa: TRY400 - no bug


@dataclass(frozen=True)
class IngestService:
    """Ingest loop with its lock, its retention thread and its metrics server.

    Attributes:
        connection: Connection to the broker.
        loop: Ingest loop.
        inbox: Inbox of the loop.
        log: The log, as its ingester uses it besides appending.
        retentions: Trim the log and the quarantine.
        lock: Lock of this ingester id.
        check_place: Raises a `SettingsError` if the log must not be written any more.
        open_metrics: Opens the metrics servers, once the lock is held.
        now_s: Unix time.
        stopped: Set by `stop`.
    """

    connection: Connection
    loop: IngestLoop
    inbox: IngestInbox
    log: "IngestLog"
    retentions: tuple[SegmentRetention | RemovedIngesters, ...]
    lock: IngesterLock
    check_place: Callable[[], object]
    open_metrics: Callable[[], list[MetricsServer]]
    now_s: Callable[[], float]
    stopped: threading.Event

    def run(self) -> None:
        """Wait for the lock, then ingest until `stop`.

        Raises:
            AlreadyRunningError: Another process holds the lock, and this is no standby.
            SegmentError: A file of ids is damaged.
            SettingsError: The address for Prometheus cannot be used, or another machine
                has taken over the tables.
        """
        if not self._wait_for_lock():
            return
        self.check_place()
        if not self._prepare():
            return
        servers = self.open_metrics()
        for server in servers:
            server.start()
        self._ingest()
        for server in servers:
            server.stop()
        self.lock.release()

    def stop(self) -> None:
        """End `run`; received messages are on disk then."""
        self.stopped.set()
        self.inbox.put(StopRequested())

    def status(self) -> str:
        """Status line."""
        if not self.lock.is_held:
            return f"standby for {self.lock.path}"
        state = "up" if self.connection.is_up else "DOWN"
        full = "DISK FULL; " if self.loop.append_retry.is_full else ""
        behind_s = self.loop.clock_correction.offset_s
        full += "LOG UNAVAILABLE; " if self.loop.append_retry.is_unavailable else ""
        full += f"CLOCK {behind_s:.0f} s BEHIND the nodes'; " if behind_s else ""
        return f"{full}{self.connection.endpoint} {state}; {self.loop.counts}"

    def _ingest(self) -> None:
        pulse = self.connection.watchdog
        self.connection.start()
        trim_thread = start_watched_loop(pulse, "trim", TRIM_SILENCE_S, self._trim)
        with pulse.watch_loop("ingest", SILENCE_S) as beat:
            self.loop.run(self.inbox, partial(self._beat, beat))
        self.stopped.set()
        self.connection.stop()
        trim_thread.join()

    def _wait_for_lock(self) -> bool:
        """Wait for the lock; meanwhile read what the active process writes."""
        with self.connection.watchdog.watch_loop("standby", SILENCE_S) as beat:

            def beat_and_catch_up() -> None:
                beat()
                self.log.read_ids(self.loop.logged_ids, beat)

            return self.lock.acquire(beat_and_catch_up)

    def _prepare(self) -> bool:
        with self.connection.watchdog.watch_loop("prepare", SILENCE_S) as beat:
            beat_and_touch = partial(self._beat, beat)
            if not self.log.prepare(self.loop.name, beat_and_touch):
                return False
            self.log.read_ids(self.loop.logged_ids, beat_and_touch)
            return True

    def _beat(self, beat: Heartbeat) -> None:
        beat()
        if (
            not self.connection.watchdog.find_late_loops()
        ):  # any hung loop lets a standby take over
            self.lock.touch()

    def _trim(self, beat: Heartbeat) -> None:
        while not self.stopped.is_set():
            for retention in self.retentions:
                beat()
                self._trim_one(retention)
            remaining_s = TRIM_S
            while remaining_s > 0 and not self.stopped.wait(FULL_S):
                self.check_place()
                remaining_s -= TRIM_S if self.loop.append_retry.is_full else FULL_S

    def _trim_one(self, retention: SegmentRetention | RemovedIngesters) -> None:
        try:
            result = retention.trim(self.now_s(), self.loop.append_retry.is_full)
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.error("%s: no space for the id file, nothing trimmed", retention.folder)  # noqa: TRY400 - no bug
            return
        if result.removed or result.held:
            log.info(
                "%s: %d segments removed, %d held until they are scored",
                retention.folder,
                result.removed,
                result.held,
            )


def run(settings: BackendSettings, *, standby: bool = False) -> None:
    """Ingest until SIGTERM or SIGINT.

    Args:
        settings: All settings.
        standby: Whether to wait while another process ingests with the same id.

    Raises:
        SettingsError: No broker is set.
        AlreadyRunningError: Another process ingests, and `standby` is False.
        SegmentError: A file of ids is damaged.
    """
    endpoint = parse_broker(settings.ingest)
    exit_on_thread_error({SettingsError: EXIT_CONFIG})
    sys.excepthook = _exit_on_error
    process = _make_process(settings, endpoint, standby=standby)
    pulse = process.connection.watchdog
    run_service(
        process,
        SystemdSupervisor.from_environment(
            os.environ, os.getpid(), pulse, process.status
        ),
    )


def _make_process(
    settings: BackendSettings, endpoint: Endpoint, *, standby: bool
) -> IngestService:
    section, data = settings.ingest, Path(settings.backend.data)
    stopped = threading.Event()
    turn = IngesterLock(
        data / LOG_FOLDER / f".lock-{section.id}",
        section.takeover_s if standby else None,
        time.monotonic,
        stopped.wait,
    )
    inbox = IngestInbox(section.buffer_bytes, stopped.wait)
    mailbox = IngestHandler(
        section, inbox, lambda: time.time_ns() // 1000, time.monotonic
    )
    link = _make_connection(settings, endpoint, mailbox)
    ingest = _make_ingester(settings, link, AppendRetry(stopped.wait))
    scored = partial(read_committed_offsets, data / CHECKPOINTS_FOLDER)
    # Prometheus does not wait long, and the thread of a scrape needs its own client.
    brief = replace(settings.kafka, timeout_s=SCRAPE_S)
    measures = IngestMetrics(
        ingest,
        inbox,
        open_log(data / LOG_FOLDER, brief),
        link.watchdog,
        data / CHECKPOINTS_FOLDER,
        lambda: link.is_up,
    )
    return IngestService(
        link,
        ingest,
        inbox,
        _make_ingest_log(settings, ingest),
        _make_retentions(settings, scored),
        turn,
        partial(_check_place, settings),
        partial(make_metrics_servers, settings.metrics, measures.collect, settings.tls),
        time.time,
        stopped,
    )


def _check_place(settings: BackendSettings) -> None:
    if settings.kafka.servers is None:  # else any machine reads the log
        check_not_replaced(Path(settings.backend.data) / CHECKPOINTS_FOLDER)


def _make_connection(
    settings: BackendSettings, endpoint: Endpoint, mailbox: IngestHandler
) -> Connection:
    session = Session(
        client_id=settings.ingest.id,
        filters=[(topic_filter, 1) for topic_filter in settings.ingest.filters],
        expiry_s=settings.ingest.session_expiry_s,
        manual_ack=True,
        receive_maximum=settings.ingest.receive_maximum,
        keepalive_s=KEEPALIVE_S,
    )
    # Alarms wait for this connection; a single client may retry quickly.
    backoff = Backoff(random.Random(), cap_s=RETRY_CAP_S)  # noqa: S311 - jitter
    link = Connection(
        endpoint,
        session,
        mailbox,
        settings.tls,
        backoff,
        watchdog=LoopWatchdog(time.monotonic),
    )
    mailbox.beat = link.send_heartbeat
    return link


def _make_ingester(
    whole: BackendSettings, link: Connection, patience: AppendRetry
) -> IngestLoop:
    data, settings = Path(whole.backend.data), whole.ingest
    # Sortable by start time, and unique even when a clock jumps back.
    stream = f"{settings.id}.{time.time_ns():016x}{secrets.token_hex(4)}"
    return IngestLoop(
        name=settings.id,
        filters=settings.filters,
        connection=link,
        batch=IngestBatch(settings.flush_ms / 1000),
        writer=_make_writer(whole, stream),
        quarantine=SegmentWriter(data / QUARANTINE_FOLDER, stream),
        logged_ids=MessageIdSet(),
        monotonic_s=time.monotonic,
        append_retry=patience,
        identity_check=PublisherAreaCheck(
            Path(settings.places) if settings.places else None
        ),
        crash_guard=make_crash_guard(data, settings.id),
        log_limit=LogLimit(time.monotonic),
        clock_correction=ClockCorrection(),
    )


def _make_ingest_log(settings: BackendSettings, ingest: IngestLoop) -> IngestLog:
    folder = Path(settings.backend.data) / LOG_FOLDER
    if settings.kafka.servers is None:
        return SegmentFolder(folder)
    require_kafka_library()
    from backend_spark.ingest.kafka_log import KafkaLog  # noqa: PLC0415 - optional

    messages = KafkaLog(settings.kafka)
    return KafkaTopic(
        folder, messages, messages.replicas, ingest.writer, ingest.append_retry
    )


def _make_writer(settings: BackendSettings, stream: str) -> LogWriter:
    folder = Path(settings.backend.data) / LOG_FOLDER
    if settings.kafka.servers is None:
        return SegmentWriter(folder, stream)
    require_kafka_library()
    from backend_spark.ingest.kafka_log import KafkaWriter  # noqa: PLC0415 - optional

    make_folder(folder)  # the lock of the ingester is there
    return KafkaWriter(settings.kafka, settings.ingest.id)


def _make_retentions(
    whole: BackendSettings, scored: Callable[[], dict[str, int]]
) -> tuple[SegmentRetention | RemovedIngesters, ...]:
    """Retention of the log, also of removed ingesters, and of the quarantine.

    Kafka's own trims a topic, this one the files from before the change to Kafka.
    """
    data, settings = Path(whole.backend.data), whole.ingest
    limits = LogLimits(
        settings.keep_days * DAY_S, settings.keep_bytes, settings.keep_segments
    )
    log_folder, quarantine = data / LOG_FOLDER, data / QUARANTINE_FOLDER
    of_quarantine = SegmentRetention(
        quarantine,
        settings.id,
        LogLimits(math.inf, settings.quarantine_bytes, sys.maxsize),
        partial(last_segments, quarantine),  # scoring does not read it
        None,
    )
    archive = archived_ids_path(log_folder, settings.id)
    of_log = SegmentRetention(log_folder, settings.id, limits, scored, archive)
    known = frozenset({settings.id, *(shard.id for shard in whole.shard)})
    return of_log, RemovedIngesters(of_log, known), of_quarantine


def _exit_on_error(
    _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
) -> None:
    """`sys.excepthook` that ends the process, as `exit_on_thread_error` in threads."""
    end_after(error, "unknown error")
