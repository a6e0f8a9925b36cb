"""Ingest loop, and its metrics: writes a batch to the log, then acknowledges it.

A batch is acknowledged, and receipts are sent, when it is durable. While the log cannot
be written the loop waits and acknowledges nothing.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from backend_spark.errors import LogUnavailableError
from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.log import (
    LogWriter,
    MessageLog,
)
from backend_spark.ingest.messages import (
    MAX_MESSAGES,
    ClassifiedMessage,
    ClockCorrection,
    ConnectionUp,
    IngestBatch,
    IngestInbox,
    MessageArrived,
    PublisherAreaCheck,
    classify_guarded,
    make_receipts,
    plan_flush,
)
from backend_spark.ingest.retention import (
    ALERTS_QUERY,
    SCORING_QUERY,
    read_query_offset,
)
from backend_spark.ingest.segment_log import LogRow, remove_unfinished
from service_runtime.crash_guard import CrashGuard
from service_runtime.errors import FieldError
from service_runtime.files import fsync_folder, is_disk_full
from service_runtime.lifecycle import LogLimit
from service_runtime.metrics import (
    Metric,
    MetricSample,
    collect_loop_silence,
    gauge,
)
from service_runtime.watchdog import Heartbeat, LoopWatchdog, no_heartbeat
from spatial_mqtt.custody import COMPACT_FORM, CustodyOffer
from spatial_mqtt.topics import offer_topic
from spatial_mqtt.transport import (
    IncomingMessage,
    Publication,
)

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
SUMMARY_S: Final = 60.0
IDLE_S: Final = 1.0


@dataclass
class AppendRetry:
    """Appends to the log, and retries while the disk is full or brokers do not answer.

    Attributes:
        wait: Waits for the given seconds; returns whether to stop.
        is_full: Whether the disk was full at the last attempt.
        is_unavailable: Whether the brokers of the log did not answer to it.
    """

    wait: Callable[[float], bool]
    is_full: bool = False
    is_unavailable: bool = False

    def append(
        self, writer: LogWriter, rows: Sequence[LogRow], beat: Callable[[], None]
    ) -> int | None:
        """Write rows; wait while that is not possible.

        Returns:
            Bytes written; None if stopped before they were.

        Raises:
            FieldError: The log refuses the rows.
            OSError: Disk error other than a full disk.
        """
        while True:
            try:
                size_bytes = writer.write(rows)
            except OSError as error:
                is_unavailable = isinstance(error, LogUnavailableError)
                if not is_unavailable and not is_disk_full(error):
                    raise
                if not (self.is_full or self.is_unavailable):
                    log.error(  # noqa: TRY400 - no bug
                        "%s; nothing is acknowledged until there is %s",
                        error
                        if is_unavailable
                        else f"{writer.place}: {error.strerror}",
                        "an answer" if is_unavailable else "space",
                    )
                self.is_full, self.is_unavailable = not is_unavailable, is_unavailable
                beat()
                if self.wait(RETRY_S):
                    return None
            else:
                self.is_full = self.is_unavailable = False
                return size_bytes


class IngestConnection(Protocol):
    """Connection to the broker, as far as the loop uses it."""

    def publish_together(self, publications: Sequence[Publication]) -> object:
        """Send publications in one write; drop them if the connection is down."""

    def acknowledge(self, *messages: IncomingMessage) -> object:
        """Acknowledge messages in one write."""


@dataclass
class IngestCounts:
    """Counters since the start."""

    logged: int = 0
    duplicates: int = 0
    quarantined: int = 0
    impostors: int = 0
    segments: int = 0
    received: int = 0
    written_bytes: int = 0
    flush_s: float = 0.0

    def __str__(self) -> str:
        """Text for the log and the status line."""
        return (
            f"{self.logged} messages in {self.segments} segments, "
            f"{self.duplicates} duplicates, {self.quarantined} in quarantine"
        )


@dataclass
class IngestLoop:
    """Moves messages from the inbox to the log.

    Attributes:
        name: Id of this ingester, published in its offer of receipts.
        filters: Topic filters of the offer.
        connection: Connection to the broker.
        batch: Messages that wait for the next flush.
        writer: Appends to the log.
        quarantine: Appends to the quarantine.
        logged_ids: Ids in the log.
        monotonic_s: Clock.
        append_retry: Retries while the log cannot be written.
        identity_check: Checks node ids against their areas.
        crash_guard: Puts messages aside that ended the program twice.
        log_limit: Limits the lines about quarantine.
        clock_correction: Corrects times of receipt by the clocks of the nodes.
        counts: Counters.
    """

    name: str
    filters: tuple[str, ...]
    connection: IngestConnection
    batch: IngestBatch
    writer: LogWriter
    quarantine: LogWriter
    logged_ids: MessageIdSet
    monotonic_s: Callable[[], float]
    append_retry: AppendRetry
    identity_check: PublisherAreaCheck
    crash_guard: CrashGuard
    log_limit: LogLimit
    clock_correction: ClockCorrection
    counts: IngestCounts = field(default_factory=IngestCounts)
    _summary_at_s: float = 0.0
    _summary: str = ""
    _beat: Heartbeat = no_heartbeat
    _flushing_since_s: float | None = None
    _is_given_up: bool = False

    def run(self, events: IngestInbox, beat: Heartbeat = no_heartbeat) -> None:
        """Process events until `StopRequested`; earlier messages are on disk then."""
        self._beat = beat
        self.crash_guard.open()
        self._summary_at_s = self.monotonic_s()
        self._summary = str(self.counts)
        is_stopping = False
        while not is_stopping:
            burst = events.take(self._wait_s())
            beat()
            for event in burst:
                if isinstance(event, MessageArrived):
                    self._add(event)
                elif isinstance(event, ConnectionUp):
                    self._publish_offer(event.window)
                else:
                    is_stopping = True
            if self.batch.is_due(self.monotonic_s(), not events.is_empty()):
                self.flush()
            self._log_summary()
        self.flush()
        log.info("%s stops: %s", self.name, self.counts)

    def _add(self, event: MessageArrived) -> None:
        """Classify and check a message, and add it to the batch."""
        self.counts.received += 1
        arrival = self.identity_check.check(
            classify_guarded(event.message, event.received_us, self.crash_guard)
        )
        arrival = self.clock_correction.correct(arrival, event.monotonic_s)
        arrival = self._check_size(arrival)
        self.batch.add(arrival, self.monotonic_s())

    def flush(self) -> None:
        """Write the batch to disk, then acknowledge it in the order of arrival.

        Once a batch was given up at a stop, later ones are dropped: the broker delivers
        all of them again, in order.
        """
        self._flushing_since_s = self.batch.oldest_since_s
        self.identity_check.reload_if_changed()
        arrivals = self.batch.take_all()
        if arrivals and not self._is_given_up:
            self._flush(arrivals)
        self._flushing_since_s = None

    def lag_s(self) -> float:
        """Time that the oldest message has waited for the disk, in seconds."""
        since_s = self._flushing_since_s
        if since_s is None:
            since_s = self.batch.oldest_since_s
        return 0.0 if since_s is None else self.monotonic_s() - since_s

    def _flush(self, arrivals: list[ClassifiedMessage]) -> None:
        batch = plan_flush(arrivals, self.logged_ids)
        if batch.log and not self._append(self.writer, batch.log):
            return
        self.logged_ids.add(batch.new_ids)
        if batch.quarantine:
            if not self._append(self.quarantine, batch.quarantine):
                return
            self._log_quarantine(batch.quarantine)
        self.counts.logged += len(batch.log)
        self.counts.duplicates += batch.duplicates
        self.counts.quarantined += len(batch.quarantine)
        self.counts.impostors += batch.impostors
        # MQTT-4.6.0-2: acknowledgements go out in the order of the messages.
        self.connection.acknowledge(*(arrival.message for arrival in arrivals))
        # Lost while the connection is down: the sender repeats the message then.
        self.connection.publish_together([
            Publication(*each) for each in make_receipts(arrivals)
        ])

    def _check_size(self, arrival: ClassifiedMessage) -> ClassifiedMessage:
        """The message, marked for quarantine if the log cannot store it."""
        limit, size_bytes = self.writer.max_payload_bytes, len(arrival.row.payload)
        if limit is None or size_bytes <= limit or arrival.is_quarantined:
            return arrival
        return arrival.to_quarantine(
            f"payload must be at most {limit} bytes, half of kafka.max_record_bytes, "
            f"got {size_bytes}"
        )

    def _log_quarantine(self, rows: Sequence[LogRow]) -> None:
        if (count := self.log_limit.count("quarantine", len(rows))) is not None:
            log.warning(
                "%d messages to quarantine, the last from %.80s: %s",
                count,
                rows[-1].topic,
                rows[-1].reason,
            )

    def _append(self, writer: LogWriter, rows: list[LogRow]) -> bool:
        """Write rows; False if stopped before they were on disk."""
        began_s = self.monotonic_s()
        size_bytes = self.append_retry.append(writer, rows, self._beat)
        if size_bytes is None:
            self._is_given_up = True
            return False
        self.counts.flush_s += self.monotonic_s() - began_s
        self.counts.written_bytes += size_bytes
        self.counts.segments += writer is self.writer
        return True

    def _publish_offer(self, window: int) -> None:
        self.batch.window = min(window, MAX_MESSAGES)
        offer = CustodyOffer(self.name, self.filters, (COMPACT_FORM,)).encode()
        topic = offer_topic(self.name)
        self.connection.publish_together([Publication(topic, offer, retain=True)])
        log.info(
            "%s is up, %d ids known, %d messages in flight",
            self.name,
            self.logged_ids.count(),
            window,
        )

    def _wait_s(self) -> float:
        """Time until the batch is due; `IDLE_S` without one."""
        due_s = self.batch.due_s
        return IDLE_S if due_s is None else max(0.0, due_s - self.monotonic_s())

    def _log_summary(self) -> None:
        now_s = self.monotonic_s()
        if now_s - self._summary_at_s < SUMMARY_S:
            return
        self._summary_at_s = now_s
        if str(self.counts) != self._summary:
            self._summary = str(self.counts)
            log.info("%s: %s", self.name, self._summary)


@dataclass(frozen=True)
class IngestMetrics:
    """Collects the metrics of an ingester.

    Attributes:
        loop: Ingest loop.
        inbox: Its inbox.
        log: The log.
        pulse: Watchdog of all loops.
        checkpoints: Folder of the checkpoints of scoring and of alerts.
        is_up: Whether the broker is connected.
    """

    loop: IngestLoop
    inbox: IngestInbox
    log: MessageLog
    pulse: LoopWatchdog
    checkpoints: Path
    is_up: Callable[[], bool]

    def collect(self) -> list[Metric]:
        """Current values of all metrics."""
        return [
            *self._counters(),
            gauge(
                "yamamori_ingest_up", "Whether the broker is connected.", self.is_up()
            ),
            gauge(
                "yamamori_ingest_waiting_bytes",
                "Memory of the messages that wait for the loop.",
                self.inbox.waiting_bytes,
            ),
            gauge(
                "yamamori_ingest_lag_seconds",
                "Time that the oldest message has waited for the disk.",
                self.loop.lag_s(),
            ),
            gauge(
                "yamamori_ingest_disk_full",
                "Whether the disk is full and nothing is acknowledged.",
                self.loop.append_retry.is_full,
            ),
            gauge(
                "yamamori_ingest_log_unavailable",
                "Whether Kafka does not confirm records and nothing is acknowledged.",
                self.loop.append_retry.is_unavailable,
            ),
            gauge(
                "yamamori_ingest_clock_behind_seconds",
                "Lead of most nodes' clocks by which times of receipt are corrected.",
                self.loop.clock_correction.offset_s,
            ),
            *self._log(),
            *collect_loop_silence(self.pulse),
        ]

    def _counters(self) -> list[Metric]:
        counts = self.loop.counts
        counters = (
            ("received_total", "Messages received.", counts.received),
            ("logged_total", "Messages written to the log.", counts.logged),
            ("duplicates_total", "Messages already in the log.", counts.duplicates),
            ("quarantined_total", "Messages put into quarantine.", counts.quarantined),
            ("impostors_total", "Messages with another node's id.", counts.impostors),
            (
                "dead_letters_total",
                "Messages put aside because decoding them ended the program twice.",
                self.loop.crash_guard.put_aside,
            ),
            (
                "forgotten_id_ranges_total",
                "Ranges of ids that were forgotten because one node sent too many.",
                self.loop.logged_ids.ranges.forgotten,
            ),
            ("segments_total", "Segments written.", counts.segments),
            ("written_bytes_total", "Bytes written.", counts.written_bytes),
            (
                "flush_seconds_total",
                "Time spent on writing and fsync of segments.",
                counts.flush_s,
            ),
        )
        return [
            Metric(f"yamamori_ingest_{name}", "counter", doc, (MetricSample(value),))
            for name, doc, value in counters
        ]

    def _log(self) -> list[Metric]:
        try:
            bounds, segments = self.log.bounds(), self.log.count({})
            unscored = self.log.count(self._committed(SCORING_QUERY))
            unread = self.log.count(self._committed(ALERTS_QUERY))
        except FieldError:
            return []  # Kafka does not answer, which the metrics above say
        has_alerts = (self.checkpoints / ALERTS_QUERY).exists()
        unreadable = (
            bounds[name.stream][0] <= name.seq <= bounds[name.stream][1]
            for name in self.loop.logged_ids.unreadable
            if name.stream in bounds
        )
        return [
            gauge(
                "yamamori_log_segments",
                "Segments in the log, written by all ingesters.",
                segments,
            ),
            gauge(
                "yamamori_log_unreadable_segments",
                "Damaged segments in the log; `rejected` has those not scored before.",
                sum(unreadable),
            ),
            gauge(
                "yamamori_log_unscored_segments",
                "Segments that scoring has not committed.",
                unscored,
            ),
            Metric(
                "yamamori_alerts_unread_segments",
                "gauge",
                "Segments that alerts has not committed.",
                (MetricSample(unread),) if has_alerts else (),
            ),
        ]

    def _committed(self, query: str) -> dict[str, int]:
        return read_query_offset(self.checkpoints / query) or {}


class IngestLog(Protocol):
    """What an ingester does with its log besides appending."""

    def prepare(self, ingester: str, beat: Heartbeat) -> bool:
        """Settle what an earlier run left; call it under the ingester's lock.

        Returns:
            False if stopped before that was possible.
        """

    def read_ids(self, ids: MessageIdSet, beat: Heartbeat) -> None:
        """Add the ids of messages that are new in the log."""


@dataclass(frozen=True)
class SegmentFolder:
    """`IngestLog` of segment files.

    Attributes:
        folder: Folder of the log.
    """

    folder: Path

    def prepare(self, ingester: str, beat: Heartbeat) -> bool:
        beat()
        if removed := remove_unfinished(self.folder, ingester):
            log.info("removed %d unfinished segments of earlier runs", removed)
        # An earlier run may have been killed between linking and fsyncing a segment.
        fsync_folder(self.folder)
        return True

    def read_ids(self, ids: MessageIdSet, beat: Heartbeat) -> None:
        ids.read_new_segments(self.folder, beat)


@dataclass(frozen=True)
class KafkaTopic:
    """`IngestLog` of a topic.

    Attributes:
        folder: Folder of the segment files from before the change to Kafka.
        messages: The log.
        replicas: Gives the number of brokers that have each record.
        writer: Appends to the topic.
        append_retry: Retries while the brokers do not answer.
    """

    folder: Path
    messages: MessageLog
    replicas: Callable[[], int]
    writer: LogWriter
    append_retry: AppendRetry

    def prepare(self, ingester: str, beat: Heartbeat) -> bool:
        """Append an empty record, and wait until it is confirmed.

        Brokers show a record when all replicas have it. What an earlier run sent, and
        some do not have yet, is before this one: its ids are seen from then on.
        """
        replicas = self.replicas()
        log.info("%s writes to Kafka, %d replicas", ingester, replicas)
        if replicas == 1:
            log.warning(
                "kafka.topic must have 2 replicas or more, got 1: a receipt rests on "
                "one broker; create it with --replication-factor 3"
            )
        return self.append_retry.append(self.writer, [], beat) is not None

    def read_ids(self, ids: MessageIdSet, beat: Heartbeat) -> None:
        ids.read_new_segments(self.folder, beat)
        ids.read_new_rows(self.messages, beat)
