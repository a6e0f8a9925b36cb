"""Prometheus metrics of an ingester."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend_spark.ingest.ingester import IngestLoop
from backend_spark.ingest.log import MessageLog
from backend_spark.ingest.messages import IngestInbox
from backend_spark.ingest.retention import (
    ALERTS_QUERY,
    SCORING_QUERY,
    read_query_offset,
)
from service_runtime.errors import FieldError
from service_runtime.metrics import Metric, MetricSample, collect_loop_silence, gauge
from service_runtime.watchdog import LoopWatchdog


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
