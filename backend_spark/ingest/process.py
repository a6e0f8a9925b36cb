"""The ingest process: its turn, its link, its loop, and the thread that trims.

Composition of the ingest process: its clock, its disk, its broker, its signals.
"""

import logging
import math
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    QUARANTINE_FOLDER,
    IngestSection,
    Settings,
    broker_of,
)
from backend_spark.ingest.deduplication import SeenIds, past_path
from backend_spark.ingest.identity_check import Places
from backend_spark.ingest.ingester import Ingest, Patience
from backend_spark.ingest.messages import Batch, Came, Inbox, Stop, Up
from backend_spark.ingest.metrics import Measures
from backend_spark.ingest.retention import (
    DAY_S,
    Limits,
    Quarantined,
    Retention,
    committed,
)
from backend_spark.ingest.segment_log import SegmentWriter, remove_unfinished
from backend_spark.ingest.standby import Turn
from service_runtime.files import fsync_folder, is_disk_full
from service_runtime.lifecycle import (
    EXIT_CRASH,
    Supervision,
    die_on_unknown_errors,
    serve,
    start_loop,
)
from service_runtime.metrics import MetricsServer, serve_metrics
from service_runtime.tls import Endpoint
from service_runtime.watchdog import Beat, Pulse, unheard
from spatial_mqtt.connection import Backoff, Connection
from spatial_mqtt.transport import NO_TAKER, Incoming, Session

SILENCE_S = 60.0
"""What a sick disk may take for one flush; beyond that it hangs."""

TRIM_S = 600.0
TRIM_SILENCE_S = 2 * TRIM_S
"""What one pass over a large log may take beside the wait for the next."""

FULL_S = 5.0
"""Between two passes while the disk is full."""

log = logging.getLogger(__name__)


class Mailbox:
    """Connection handler that hands every event to the loop.

    It waits with a message while the inbox is full, so that TCP holds the broker back.

    Args:
        settings: Of the ingester.
        inbox: Of the loop.
        now_us: Unix time, in microseconds.
    """

    def __init__(
        self, settings: IngestSection, inbox: Inbox, now_us: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.inbox = inbox
        self.now_us = now_us
        self.beat: Beat = unheard

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """Tell the loop, which then makes its offer."""
        log.debug("session %s, limit %d", session_present, receive_maximum)
        # The broker's limit is for our publications; ours is for what it sends.
        self.inbox.put(Up(self.settings.receive_maximum))

    def on_down(self, reason: str) -> None:
        """Name the loss of the link; the connection comes back by itself."""
        log.info("%s is down: %s", self.settings.id, reason)

    def on_message(self, message: Incoming) -> None:
        """Stamp and queue."""
        self.inbox.put_message(Came(message, self.now_us()), self.beat)

    def on_published(self, token: int, refused: str | None) -> None:
        """Name a refusal: the sender will send again for want of a receipt."""
        if refused not in {None, NO_TAKER}:
            log.error("broker refused publication %d: %s", token, refused)

    def on_subscribed(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Process:
    """The loop and what is around it, as systemd sees them.

    Attributes:
        link: Connection to the broker.
        ingest: The loop.
        inbox: What the loop serves.
        retentions: Trim the log and the quarantine.
        turn: Whether we work or wait.
        open_metrics: Makes the servers for Prometheus, when our turn comes.
        now_s: Unix time.
        stopped: Set when we are to stop.
    """

    link: Connection
    ingest: Ingest
    inbox: Inbox
    retentions: tuple[Retention, ...]
    turn: Turn
    open_metrics: Callable[[], list[MetricsServer]]
    now_s: Callable[[], float]
    stopped: threading.Event

    def run(self) -> None:
        """Work until `stop`, when it is our turn.

        Raises:
            AlreadyRunningError: It is another's, and we are not to wait.
            SegmentError: The log is damaged.
            SettingsError: The address for Prometheus is not to be had.
        """
        if not self._wait():
            return
        left = remove_unfinished(self.ingest.writer.folder, self.ingest.name)
        if left:
            log.info("removed %d unfinished segments of earlier runs", left)
        self._catch_up()
        # The last one may have died between naming a segment and making that durable.
        fsync_folder(self.ingest.writer.folder)
        servers = self.open_metrics()
        for server in servers:
            server.start()
        self._work()
        for server in servers:
            server.stop()
        self.turn.give_up()

    def stop(self) -> None:
        """End `run`; what has come is on disk then."""
        self.stopped.set()
        self.inbox.put(Stop())

    def status(self) -> str:
        """One line for a person."""
        if not self.turn.is_ours:
            return f"standby for {self.turn.path}"
        state = "up" if self.link.is_up else "DOWN"
        full = "DISK FULL; " if self.ingest.patience.is_full else ""
        return f"{full}{self.link.endpoint} {state}; {self.ingest.counts}"

    def _work(self) -> None:
        pulse = self.link.pulse
        self.link.start()
        trimming = start_loop(pulse, "trim", TRIM_SILENCE_S, self._trim)
        with pulse.expects("ingest", SILENCE_S) as beat:
            self.ingest.run(self.inbox, partial(self._beat, beat))
        self.stopped.set()
        self.link.stop()
        trimming.join()

    def _wait(self) -> bool:
        """Wait for our turn, knowing what the other one writes."""
        with self.link.pulse.expects("standby", SILENCE_S) as beat:

            def meanwhile() -> None:
                beat()
                self._catch_up()

            return self.turn.take(meanwhile)

    def _catch_up(self) -> None:
        self.ingest.seen.catch_up(self.ingest.writer.folder)

    def _beat(self, beat: Beat) -> None:
        beat()
        if not self.link.pulse.late():  # one that hangs is enough to be replaced
            self.turn.show()

    def _trim(self, beat: Beat) -> None:
        while not self.stopped.is_set():
            for each in self.retentions:
                beat()
                self._trim_one(each)
            left_s = TRIM_S
            while left_s > 0 and not self.stopped.wait(FULL_S):
                left_s -= TRIM_S if self.ingest.patience.is_full else FULL_S

    def _trim_one(self, retention: Retention) -> None:
        try:
            done = retention.trim(self.now_s(), self.ingest.patience.is_full)
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.error("%s: no room even for ids, nothing trimmed", retention.folder)  # noqa: TRY400 - no bug
            return
        if done.removed or done.held:
            words = "%s: %d segments removed, %d held until they are scored"
            log.info(words, retention.folder, done.removed, done.held)


RETRY_CAP_S = 3.0


def run(settings: Settings, *, standby: bool = False) -> None:
    """Ingest until SIGTERM or SIGINT.

    Args:
        settings: All settings.
        standby: Whether to wait while another process ingests under this id here.

    Raises:
        SettingsError: No broker is set.
        AlreadyRunningError: One does, and we are not to wait.
        SegmentError: The log is damaged.
    """
    endpoint = broker_of(settings.ingest)
    die_on_unknown_errors()
    sys.excepthook = _die
    made = _process(settings, endpoint, standby=standby)
    pulse = made.link.pulse
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, made.status))


def _process(settings: Settings, endpoint: Endpoint, *, standby: bool) -> Process:
    ours, data = settings.ingest, Path(settings.backend.data)
    stopped = threading.Event()
    turn = Turn(
        data / LOG_FOLDER / f".lock-{ours.id}",
        ours.takeover_s if standby else None,
        time.monotonic,
        stopped.wait,
    )
    inbox = Inbox(ours.buffer_bytes, stopped.wait)
    mailbox = Mailbox(ours, inbox, lambda: time.time_ns() // 1000)
    link = _link(settings, endpoint, mailbox)
    ingest = _ingest(data, ours, link, Patience(stopped.wait))
    scored = partial(committed, data / CHECKPOINTS_FOLDER)
    measures = Measures(ingest, inbox, link.pulse, scored, lambda: link.is_up)
    return Process(
        link,
        ingest,
        inbox,
        _retentions(data, ours, scored),
        turn,
        partial(serve_metrics, settings.metrics, measures.collect, settings.tls),
        time.time,
        stopped,
    )


def _link(settings: Settings, endpoint: Endpoint, mailbox: Mailbox) -> Connection:
    session = Session(
        client_id=settings.ingest.id,
        filters=[(topic_filter, 1) for topic_filter in settings.ingest.filters],
        expiry_s=settings.ingest.session_expiry_s,
        manual_ack=True,
        receive_maximum=settings.ingest.receive_maximum,
    )
    # Alarms wait for us; one ingest hurts no broker, a thousand nodes would.
    backoff = Backoff(random.Random(), cap_s=RETRY_CAP_S)  # noqa: S311 - jitter
    link = Connection(
        endpoint, session, mailbox, settings.tls, backoff, pulse=Pulse(time.monotonic)
    )
    mailbox.beat = link.beat
    return link


def _ingest(
    data: Path, settings: IngestSection, link: Connection, patience: Patience
) -> Ingest:
    name = settings.id
    # Sortable by start, and unique even when a clock jumps back.
    stream = f"{name}.{time.time_ns():016x}{secrets.token_hex(4)}"
    return Ingest(
        name=name,
        filters=settings.filters,
        link=link,
        batch=Batch(settings.flush_ms / 1000),
        writer=SegmentWriter(data / LOG_FOLDER, stream),
        quarantine=SegmentWriter(data / QUARANTINE_FOLDER, stream),
        seen=SeenIds(),
        monotonic_s=time.monotonic,
        patience=patience,
        places=Places(Path(settings.places) if settings.places else None),
    )


def _retentions(
    data: Path, settings: IngestSection, scored: Callable[[], dict[str, int]]
) -> tuple[Retention, ...]:
    limits = Limits(
        settings.keep_days * DAY_S, settings.keep_bytes, settings.keep_segments
    )
    logged, aside = data / LOG_FOLDER, data / QUARANTINE_FOLDER
    return (
        Retention(
            logged,
            settings.id,
            limits,
            scored,
            past_path(logged, settings.id),
        ),
        Retention(
            aside,
            settings.id,
            Limits(math.inf, settings.quarantine_bytes, sys.maxsize),
            Quarantined(aside),
            None,
        ),
    )


def _die(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """End as `die_on_unknown_errors` does, for the main thread."""
    log.critical("unknown error: ending", exc_info=(kind, error, trace))
    logging.shutdown()
    os._exit(EXIT_CRASH)
