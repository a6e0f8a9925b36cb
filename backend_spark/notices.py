"""Publisher of notices at the Managers' brokers: ``backend-spark notify``.

Notices are retained there, and gateways forward them to their nodes.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from backend_spark.config import CONSOLE_FOLDER, BackendSettings
from backend_spark.notice_state import (
    DRILLS_FILE,
    NOTICES_FILE,
    CurrentLevel,
    DeliveryRecord,
    DrillRequests,
    LevelReader,
    NoticePolicy,
    NoticeState,
    due_drills,
)
from backend_spark.scoring.holds import HELD, HoldLimits
from backend_spark.tables.reader import open_tables
from service_runtime.errors import FieldError
from service_runtime.files import acquire_lock
from service_runtime.lifecycle import (
    LoopService,
    SystemdSupervisor,
    exit_on_thread_error,
    run_service,
)
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import Heartbeat, LoopWatchdog
from spatial_mqtt.announcements import Drill, Notice, NoticeSigner
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    BaseConnectionHandler,
    ConnectionHandler,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

Connector = Callable[[Session, ConnectionHandler], Connection]
Seal = Callable[[str, bytes], bytes]

SAVE_EVERY_S = 1.0
"""Shortest time between two writings of the record within a round."""

BEAT_S = 5.0
"""Longest time between two heartbeats of the loop."""

SILENCE_S = 120.0
"""Longest reading of the levels of a large table."""


class NoticePublisher:
    """Loop that publishes notices.

    Args:
        state: State of the notices.
        read_levels: Gives the current level of each cell.
        seal: Signs the JSON of a notice for a topic.
        unix_s: Unix time.
        monotonic_s: Monotonic time.
        every_s: Time between two readings of the levels.

    Attributes:
        drills: Requests of the console for drills; None without. Set before `run`.
        record: Record of what the brokers accepted; None without. Set before `run`.
    """

    def __init__(
        self,
        state: NoticeState,
        read_levels: Callable[[float], Mapping[str, CurrentLevel]],
        seal: Seal,
        *,
        unix_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        every_s: float,
    ) -> None:
        self.drills: DrillRequests | None = None
        self.record: DeliveryRecord | None = None
        self._published: dict[str, Drill] = {}
        self._saved_s = 0.0
        self._unacknowledged: dict[tuple[int, int], tuple[str, float]] = {}
        self._refused: set[tuple[int, str]] = set()
        self._board = state
        self._levels = read_levels
        self._seal = seal
        self._wall_s = unix_s
        self._mono_s = monotonic_s
        self._every_s = every_s
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = threading.Event()
        self._links: list[Connection] = []

    def connect(self, session: Session, connects: Sequence[Connector]) -> None:
        """Connect to the brokers; call it before `run`."""
        for number, connect in enumerate(connects):
            handler = _BrokerHandler(
                self._events,
                partial(self._publish_all, number),
                partial(self._answered, number),
            )
            self._links.append(connect(session, handler))

    def run(self, beat: Heartbeat) -> None:
        """Publish until `stop`."""
        for link in self._links:
            link.start()
        due_s = self._mono_s()
        while not self._stop.is_set():
            beat()
            if self._mono_s() >= due_s:
                self.publish_changes()
                due_s = self._mono_s() + self._every_s
            try:
                self._events.get(timeout=min(BEAT_S, self._every_s))()
            except Empty:
                continue
        for link in self._links:
            link.stop()

    def stop(self) -> None:
        """End `run`; published notices stay retained."""
        self._stop.set()
        self._events.put(lambda: None)

    def publish_changes(self) -> None:
        """Publish the notices that changed."""
        new = self._board.update(self._levels(self._wall_s()), self._wall_s())
        for topic, notice in new.items():
            log.info("%s: %s", topic, notice)
            for number in range(len(self._links)):
                self._publish(number, topic, notice)
        self._publish_drills()
        self._publish_refused()
        if self.record is not None:
            self.record.save()

    def _publish_drills(self) -> None:
        """Publish the drills that were requested since the last round."""
        if self.drills is None:
            return
        due = due_drills(self.drills, self._wall_s())
        for topic, drill in due.items():
            if self._published.get(topic) == drill:
                continue
            log.warning("DRILL %s: %s", topic, drill)
            for number in range(len(self._links)):
                self._publish(number, topic, drill)
        self._published = due

    def _publish_refused(self) -> None:
        """Publish the current order of each topic that a broker refused."""
        waiting = {
            (number, topic) for (number, _), (topic, _) in self._unacknowledged.items()
        }
        for number, topic in self._refused - waiting:
            order = self._board.notices.get(topic) or self._published.get(topic)
            if order is None:
                self._refused.discard((number, topic))
            else:
                self._publish(number, topic, order)

    def status(self) -> str:
        """Status line."""
        up = sum(link.is_up for link in self._links)
        notices = [n for n in self._board.notices.values() if not n.withdrawn]
        held = sum(n.state == HELD for n in notices)
        of_them = f", {held} held" if held else ""
        links = f"{up} of {len(self._links)} brokers connected"
        return f"{links}; {len(notices)} notices{of_them}"

    def _publish_all(self, number: int) -> None:
        lost = [key for key in self._unacknowledged if key[0] == number]
        for key in lost:  # publications of an earlier connection are never answered
            del self._unacknowledged[key]
        for topic, notice in self._board.notices.items():
            self._publish(number, topic, notice)
        for topic, drill in self._published.items():
            self._publish(number, topic, drill)

    def _publish(self, number: int, topic: str, order: Notice | Drill) -> None:
        """Publish a notice; if the broker is down, `_publish_all` does it later."""
        payload = self._seal(topic, order.encode())
        token = self._links[number].publish(Publication(topic, payload, retain=True))
        if token is not None:
            self._unacknowledged[number, token] = topic, order.at_s

    def _answered(self, number: int, token: int, refused: str | None) -> None:
        """Handle the answer of a broker to a publication."""
        order = self._unacknowledged.pop((number, token), None)
        if order is None:
            return
        (topic, at_s), broker = order, str(self._links[number].endpoint)
        if refused not in {None, NO_SUBSCRIBERS}:
            if (number, topic) not in self._refused:  # once, not in each round
                log.error("%s refused %s: %s", broker, topic, refused)
            self._refused.add((number, topic))
            return
        self._refused.discard((number, topic))
        if self.record is None:
            return
        self.record.accept(topic, at_s, broker, self._wall_s())
        # A burst of answers must not write the file for each of them.
        if self._events.empty() and self._mono_s() - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = self._mono_s()
            self.record.save()


class _BrokerHandler(BaseConnectionHandler):
    """Connection handler that publishes all notices when the broker is up again."""

    def __init__(
        self,
        events: SimpleQueue[Callable[[], None]],
        publish_all: Callable[[], None],
        on_answer: Callable[[int, str | None], None],
    ) -> None:
        self._events = events
        self._publish_all = publish_all
        self._on_answer = on_answer

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._events.put(self._publish_all)

    def on_down(self, reason: str) -> None:
        log.info("a broker is down: %s", reason)

    def on_published(self, token: int, refused: str | None) -> None:
        self._events.put(lambda: self._on_answer(token, refused))


def run(settings: BackendSettings) -> None:
    """Publish notices until SIGTERM or SIGINT.

    Raises:
        SettingsError: No broker is set, or the key cannot be used.
        AlreadyRunningError: Another process publishes notices of this data folder.
    """
    section = settings.notify
    if not section.brokers:
        remedy = "write brokers = ['mqtts://manager:port'], those of the Managers"
        raise SettingsError([Problem("notify.brokers", "must be given", [], remedy)])
    seal = _read_seal(section.key_file)
    exit_on_thread_error()
    data = Path(settings.backend.data)
    lock = acquire_lock(data / ".lock-notify")
    tables, pulse = open_tables(settings.backend), LoopWatchdog(time.monotonic)
    terms = NoticePolicy(section.from_level, section.hold_s, section.calm_s)
    limits = HoldLimits(settings.score.hold_s)
    notify = NoticePublisher(
        NoticeState(terms, data / NOTICES_FILE, limits),
        LevelReader(tables, section.max_age_s, limits),
        seal,
        unix_s=time.time,
        monotonic_s=time.monotonic,
        every_s=section.every_s,
    )
    notify.drills = DrillRequests(data / CONSOLE_FOLDER / DRILLS_FILE)
    notify.record = DeliveryRecord(data)
    session = Session(section.id, keepalive_s=10)
    connects = [_connector(url, settings.tls, pulse) for url in section.brokers]
    notify.connect(session, connects)
    service = LoopService(pulse, "notify", SILENCE_S, notify.run, notify.stop)
    run_service(
        service,
        SystemdSupervisor.from_environment(
            os.environ, os.getpid(), pulse, notify.status
        ),
    )
    os.close(lock)


def _read_seal(key_file: str | None) -> Seal:
    if key_file is None:
        return lambda _topic, body: body
    try:
        return NoticeSigner(key_file).sign
    except FieldError as error:
        raise SettingsError([Problem.of(error, "notify.key_file")]) from error


def _connector(url: str, tls: TlsFiles, pulse: LoopWatchdog) -> Connector:
    def connect(session: Session, handler: ConnectionHandler) -> Connection:
        return Connection(Endpoint.parse(url), session, handler, tls, watchdog=pulse)

    return connect
