"""The ingest process: its turn, its link, its loop, and the thread that trims."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from backend_spark.durability import fsync_folder, is_full
from backend_spark.ingest.inbox import Came, Inbox, Stop, Up
from backend_spark.ingest.log import remove_unfinished
from backend_spark.ingest.retention import Retention
from backend_spark.ingest.service import Ingest
from backend_spark.ingest.standby import Turn
from backend_spark.sections import IngestSettings
from spatial_mqtt.connection import Connection
from spatial_mqtt.daemon import start_loop
from spatial_mqtt.link import NO_TAKER, Incoming
from spatial_mqtt.metrics import MetricsServer
from spatial_mqtt.pulse import Beat, unheard

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
        self, settings: IngestSettings, inbox: Inbox, now_us: Callable[[], int]
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
            if not is_full(error):
                raise
            log.error("%s: no room even for ids, nothing trimmed", retention.folder)  # noqa: TRY400 - no bug
            return
        if done.removed or done.held:
            words = "%s: %d segments removed, %d held until they are scored"
            log.info(words, retention.folder, done.removed, done.held)
