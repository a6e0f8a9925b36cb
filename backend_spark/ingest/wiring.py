"""Composition of the ingest process: its clock, its disk, its broker, its signals."""

import logging
import math
import os
import random
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    QUARANTINE_FOLDER,
    IngestSettings,
    Settings,
    broker_of,
)
from backend_spark.ingest.batch import Batch
from backend_spark.ingest.log import SegmentWriter, remove_unfinished
from backend_spark.ingest.past import past_path
from backend_spark.ingest.retention import DAY_S, Limits, Quarantined, Retention
from backend_spark.ingest.scored import committed
from backend_spark.ingest.seen import SeenIds
from backend_spark.ingest.service import Came, Event, Ingest, Stop, Up
from backend_spark.ingest.standby import Turn
from spatial_mqtt.backoff import Backoff
from spatial_mqtt.connection import Connection
from spatial_mqtt.daemon import EXIT_CRASH, die_on_unknown_errors, start_loop
from spatial_mqtt.link import NO_TAKER, Incoming, Session
from spatial_mqtt.pulse import Beat, Pulse
from spatial_mqtt.supervision import Supervision, serve

RETRY_CAP_S = 3.0
SILENCE_S = 60.0
"""What a sick disk may take for one flush; beyond that it hangs."""

TRIM_S = 600.0
TRIM_SILENCE_S = 2 * TRIM_S
"""What one pass over a large log may take beside the wait for the next."""

log = logging.getLogger(__name__)


class Mailbox:
    """Connection handler that hands every event to the loop and never blocks."""

    def __init__(self, settings: IngestSettings, events: SimpleQueue[Event]) -> None:
        self.settings = settings
        self.events = events

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        """Tell the loop, which then makes its offer."""
        log.debug("session %s, limit %d", session_present, receive_maximum)
        # The broker's limit is for our publications; ours is for what it sends.
        self.events.put(Up(self.settings.receive_maximum))

    def on_down(self, reason: str) -> None:
        """Name the loss of the link; the connection comes back by itself."""
        log.info("%s is down: %s", self.settings.id, reason)

    def on_message(self, message: Incoming) -> None:
        """Stamp and queue."""
        self.events.put(Came(message, time.time_ns() // 1000))

    def on_published(self, token: int, refused: str | None) -> None:
        """Name a refusal: the sender will send again for want of a receipt."""
        if refused not in {None, NO_TAKER}:
            log.error("broker refused publication %d: %s", token, refused)

    def on_subscribed(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Process:
    """The loop and its link, as systemd sees them.

    Attributes:
        link: Connection to the broker.
        ingest: The loop.
        events: What the loop serves.
        pulse: Listens to it.
    """

    link: Connection
    ingest: Ingest
    events: SimpleQueue[Event]
    pulse: Pulse
    retentions: tuple[Retention, ...]
    turn: Turn
    stopped: threading.Event

    def run(self) -> None:
        """Work until `stop`, when it is our turn."""
        if not self._wait():
            return
        left = remove_unfinished(self.ingest.writer.folder, self.ingest.name)
        if left:
            log.info("removed %d unfinished segments of earlier runs", left)
        self._catch_up()
        self.link.start()
        trimming = start_loop(self.pulse, "trim", TRIM_SILENCE_S, self._trim)
        with self.pulse.expects("ingest", SILENCE_S) as beat:
            self.ingest.run(self.events, partial(self._beat, beat))
        self.stopped.set()
        self.link.stop()
        trimming.join()
        self.turn.give_up()

    def _wait(self) -> bool:
        """Wait for our turn, knowing what the other one writes."""
        with self.pulse.expects("standby", SILENCE_S) as beat:

            def meanwhile() -> None:
                beat()
                self._catch_up()

            return self.turn.take(meanwhile)

    def _catch_up(self) -> None:
        self.ingest.seen.catch_up(self.ingest.writer.folder)

    def _beat(self, beat: Beat) -> None:
        beat()
        if not self.pulse.late():  # one loop that hangs is enough to be replaced
            self.turn.show()

    def _trim(self, beat: Beat) -> None:
        while not self.stopped.is_set():
            for each in self.retentions:
                beat()
                done = each.trim(time.time())
                if done.removed or done.held:
                    words = "%s: %d segments removed, %d held until they are scored"
                    log.info(words, each.folder, done.removed, done.held)
            self.stopped.wait(TRIM_S)

    def stop(self) -> None:
        """End `run`; what has come is on disk then."""
        self.stopped.set()
        self.events.put(Stop())

    def status(self) -> str:
        """One line for a person."""
        if not self.turn.is_ours:
            return f"standby for {self.turn.path}"
        state = "up" if self.link.is_up else "DOWN"
        return f"{self.link.endpoint} {state}; {self.ingest.counts}"


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
    data = Path(settings.backend.data)
    name = settings.ingest.id
    stopped = threading.Event()
    turn = Turn(
        data / LOG_FOLDER / f".lock-{name}",
        settings.ingest.takeover_s if standby else None,
        time.monotonic,
        stopped.wait,
    )
    events: SimpleQueue[Event] = SimpleQueue()
    session = Session(
        client_id=name,
        filters=[(topic_filter, 1) for topic_filter in settings.ingest.filters],
        expiry_s=settings.ingest.session_expiry_s,
        manual_ack=True,
        receive_maximum=settings.ingest.receive_maximum,
    )
    mailbox = Mailbox(settings.ingest, events)
    # Alarms wait for us; one ingest hurts no broker, a thousand nodes would.
    backoff = Backoff(random.Random(), cap_s=RETRY_CAP_S)  # noqa: S311 - jitter
    pulse = Pulse(time.monotonic)
    link = Connection(endpoint, session, mailbox, settings.tls, backoff, pulse=pulse)
    ingest = _ingest(data, settings.ingest, link)
    trims = _retentions(data, settings.ingest)
    made = Process(link, ingest, events, pulse, trims, turn, stopped)
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, made.status))


def _ingest(data: Path, settings: IngestSettings, link: Connection) -> Ingest:
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
    )


def _retentions(data: Path, settings: IngestSettings) -> tuple[Retention, ...]:
    limits = Limits(
        settings.keep_days * DAY_S, settings.keep_bytes, settings.keep_segments
    )
    logged, aside = data / LOG_FOLDER, data / QUARANTINE_FOLDER
    return (
        Retention(
            logged,
            settings.id,
            limits,
            partial(committed, data / CHECKPOINTS_FOLDER),
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
