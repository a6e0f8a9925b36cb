"""What an ingester tells Prometheus."""

from collections.abc import Callable
from dataclasses import dataclass

from backend_spark.ingest.ingester import Ingest
from backend_spark.ingest.messages import Inbox
from backend_spark.ingest.retention import unscored
from backend_spark.ingest.segment_log import list_segments
from service_runtime.metrics import Metric, Sample, gauge, loops
from service_runtime.watchdog import Pulse


@dataclass(frozen=True)
class Measures:
    """Collects from the parts of an ingester.

    Attributes:
        ingest: The loop.
        inbox: What waits for it.
        pulse: Listens to all loops.
        scored: Sequence of the last segment of each stream that is scored.
        is_up: Whether the broker is reached.
    """

    ingest: Ingest
    inbox: Inbox
    pulse: Pulse
    scored: Callable[[], dict[str, int]]
    is_up: Callable[[], bool]

    def collect(self) -> list[Metric]:
        """Everything, as it is now."""
        return [
            *self._counters(),
            gauge("yamamori_ingest_up", "Whether the broker is reached.", self.is_up()),
            gauge(
                "yamamori_ingest_waiting_bytes",
                "Memory of the messages that wait for the loop.",
                self.inbox.waiting_bytes,
            ),
            gauge(
                "yamamori_ingest_lag_seconds",
                "How long the oldest message in hand waits for the disk.",
                self.ingest.lag_s(),
            ),
            gauge(
                "yamamori_ingest_disk_full",
                "Whether the disk is full and nothing is acknowledged.",
                self.ingest.patience.is_full,
            ),
            *self._log(),
            loops(self.pulse),
        ]

    def _counters(self) -> list[Metric]:
        counts = self.ingest.counts
        told = (
            ("received_total", "Messages that came.", counts.received),
            ("logged_total", "Messages that were written to the log.", counts.logged),
            ("duplicates_total", "Messages that the log had.", counts.duplicates),
            ("quarantined_total", "Messages put into quarantine.", counts.quarantined),
            ("impostors_total", "Those under another's name.", counts.impostors),
            ("segments_total", "Segments that were written.", counts.segments),
            ("written_bytes_total", "Bytes that were written.", counts.written_bytes),
            (
                "flush_seconds_total",
                "Time that writing and fsync of segments took.",
                counts.flush_s,
            ),
        )
        return [
            Metric(f"yamamori_ingest_{name}", "counter", doc, (Sample(value),))
            for name, doc, value in told
        ]

    def _log(self) -> list[Metric]:
        names = list_segments(self.ingest.writer.folder)
        return [
            gauge(
                "yamamori_log_segments",
                "Segments in the log, of all ingesters.",
                len(names),
            ),
            gauge(
                "yamamori_log_unscored_segments",
                "Segments that some query has not committed.",
                unscored(names, self.scored()),
            ),
        ]
