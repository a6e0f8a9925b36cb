"""The ingest loop: take, write, fsync, and only then acknowledge and receipt.

A full disk: wait until there is room, and acknowledge nothing meanwhile.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from backend_spark.ingest.deduplication import SeenIds
from backend_spark.ingest.identity_check import Places
from backend_spark.ingest.messages import (
    MAX_MESSAGES,
    Arrival,
    Batch,
    Came,
    Event,
    Inbox,
    Plan,
    Stop,
    Up,
    classify,
    plan,
    receipts,
)
from backend_spark.ingest.segment_log import LogRow, SegmentWriter
from service_runtime.files import is_disk_full
from service_runtime.watchdog import Beat, unheard
from spatial_mqtt.custody import Offer
from spatial_mqtt.topics import offer_topic
from spatial_mqtt.transport import Incoming, Publication

RETRY_S: Final = 0.5


@dataclass
class Patience:
    """Appends to the log, however long it takes.

    Attributes:
        rest: Waits for so many seconds; whether we are told to stop.
        is_full: Whether the disk is, as far as we know.
    """

    rest: Callable[[float], bool]
    is_full: bool = False

    def append(
        self, writer: SegmentWriter, rows: Sequence[LogRow], beat: Callable[[], None]
    ) -> int | None:
        """Write a segment, when there is room for it.

        Returns:
            Its bytes; None when we were told to stop before it was on disk.

        Raises:
            OSError: The disk refused for another reason than being full.
        """
        while True:
            try:
                path = writer.append(rows)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._tell(writer, error)
                beat()
                if self.rest(RETRY_S):
                    return None
            else:
                self.is_full = False
                return path.stat().st_size

    def _tell(self, writer: SegmentWriter, error: OSError) -> None:
        if not self.is_full:
            words = "%s: %s; nothing is acknowledged until there is room"
            log.error(words, writer.folder, error.strerror)
        self.is_full = True


log = logging.getLogger(__name__)

SUMMARY_S: Final = 60.0
IDLE_S: Final = 1.0


class Link(Protocol):
    """What the loop needs of a connection."""

    def publish_together(self, publications: Sequence[Publication]) -> object:
        """Send in one write; nothing when the link is down."""

    def acknowledge(self, *messages: Incoming) -> object:
        """Tell the broker to forget messages, in one write."""


@dataclass
class Counts:
    """What happened since the start."""

    logged: int = 0
    duplicates: int = 0
    quarantined: int = 0
    impostors: int = 0
    segments: int = 0
    received: int = 0
    written_bytes: int = 0
    flush_s: float = 0.0

    def __str__(self) -> str:
        """For the log."""
        return (
            f"{self.logged} messages in {self.segments} segments, "
            f"{self.duplicates} duplicates, {self.quarantined} in quarantine"
        )


@dataclass
class Ingest:
    """Moves messages from a queue of events to the log.

    Attributes:
        name: Id of this ingester, as offered to senders.
        filters: Topics that it gives receipts for.
        link: Connection to the broker.
        batch: What waits for the next flush.
        writer: Appends to the log.
        quarantine: Appends messages without an id to another folder.
        seen: Ids in the log.
        monotonic_s: Clock.
        patience: Waits for room on the disk.
        places: Where each name may speak from.
        counts: What happened.
    """

    name: str
    filters: tuple[str, ...]
    link: Link
    batch: Batch
    writer: SegmentWriter
    quarantine: SegmentWriter
    seen: SeenIds
    monotonic_s: Callable[[], float]
    patience: Patience
    places: Places
    counts: Counts = field(default_factory=Counts)
    _summary_s: float = 0.0
    _summary: str = ""
    _beat: Beat = unheard
    _flushing_s: float | None = None

    def run(self, events: Inbox, beat: Beat = unheard) -> None:
        """Work until `Stop`; what came before it is on disk then."""
        self._beat = beat
        self._summary_s = self.monotonic_s()
        self._summary = str(self.counts)
        while not isinstance(event := self._next(events), Stop):
            beat()
            match event:
                case Up(window):
                    self._greet(window)
                case Came(message, received_us):
                    self.counts.received += 1
                    arrival = self.places.judged(classify(message, received_us))
                    self.batch.add(arrival, self.monotonic_s())
                case None:
                    pass  # only time has passed
            if self.batch.is_due(self.monotonic_s(), not events.empty()):
                self.flush()
            self._report()
        self.flush()
        log.info("%s stops: %s", self.name, self.counts)

    def flush(self) -> None:
        """Put the batch on disk, then acknowledge it in the order of arrival."""
        self._flushing_s = self.batch.since_s
        self.places.look()
        arrivals = self.batch.take()
        if arrivals:
            self._flush(arrivals)
        self._flushing_s = None

    def _flush(self, arrivals: list[Arrival]) -> None:
        todo = plan(arrivals, self.seen)
        if todo.log and not self._append(self.writer, todo.log):
            return
        self.seen.add(todo.new_ids)
        if todo.quarantine:
            if not self._append(self.quarantine, todo.quarantine):
                return
            log.warning(
                "%d messages to quarantine, the first from %s: %s",
                len(todo.quarantine),
                todo.quarantine[0].topic,
                todo.quarantine[0].reason,
            )
        self._count(todo)
        self._answer(arrivals)

    def lag_s(self) -> float:
        """How long the oldest message in hand waits for the disk, in seconds."""
        since_s = self._flushing_s
        if since_s is None:
            since_s = self.batch.since_s
        return 0.0 if since_s is None else self.monotonic_s() - since_s

    def _append(self, writer: SegmentWriter, rows: list[LogRow]) -> bool:
        """Whether rows are on disk; else we were told to stop before."""
        began_s = self.monotonic_s()
        size_bytes = self.patience.append(writer, rows, self._beat)
        if size_bytes is None:
            return False
        self.counts.flush_s += self.monotonic_s() - began_s
        self.counts.written_bytes += size_bytes
        self.counts.segments += writer is self.writer
        return True

    def _answer(self, arrivals: list[Arrival]) -> None:
        # MQTT-4.6.0-2: acknowledgements go out in the order of the messages.
        self.link.acknowledge(*(arrival.message for arrival in arrivals))
        # Lost when the link is down: the sender asks again.
        self.link.publish_together([Publication(*each) for each in receipts(arrivals)])

    def _greet(self, window: int) -> None:
        self.batch.window = min(window, MAX_MESSAGES)
        offer = Offer(self.name, self.filters).encode()
        where = offer_topic(self.name)
        self.link.publish_together([Publication(where, offer, retain=True)])
        log.info(
            "%s is up, %d ids known, %d messages in flight",
            self.name,
            self.seen.count(),
            window,
        )

    def _next(self, events: Inbox) -> Event | None:
        due_s = self.batch.due_s
        wait_s = IDLE_S if due_s is None else max(0.0, due_s - self.monotonic_s())
        return events.get(wait_s)

    def _count(self, done: Plan) -> None:
        self.counts.logged += len(done.log)
        self.counts.duplicates += done.duplicates
        self.counts.quarantined += len(done.quarantine)
        self.counts.impostors += done.impostors

    def _report(self) -> None:
        now_s = self.monotonic_s()
        if now_s - self._summary_s < SUMMARY_S:
            return
        self._summary_s = now_s
        if str(self.counts) != self._summary:
            self._summary = str(self.counts)
            log.info("%s: %s", self.name, self._summary)
