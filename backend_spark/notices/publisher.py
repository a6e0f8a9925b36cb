"""Publishes the board at the Managers' brokers; from there gateways take it along.

Composition of ``backend-spark notify``: its clocks, its key, its brokers.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from backend_spark.config import Settings
from backend_spark.notices.notice_state import Board, Terms, current_levels
from backend_spark.tables.reader import open_tables
from service_runtime.errors import FieldError
from service_runtime.lifecycle import Supervision, die_on_unknown_errors, serve
from service_runtime.locks import hold
from service_runtime.settings import Problem, SettingsError
from service_runtime.tls import Endpoint, TlsFiles
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.announcements import Notice, Signer
from spatial_mqtt.connection import Connection
from spatial_mqtt.transport import (
    NO_TAKER,
    ConnectionHandler,
    Incoming,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

Connect = Callable[[Session, ConnectionHandler], Connection]
Seal = Callable[[str, bytes], bytes]

LOOK_S = 5.0


class Notify:
    """The loop.

    Args:
        board: What notices say.
        levels: Gives the level of each cell now.
        seal: Signs the JSON of a notice for a topic.
        wall_s: Unix time.
        mono_s: Monotonic time.
        every_s: Time between two looks at the levels.
    """

    def __init__(
        self,
        board: Board,
        levels: Callable[[float], Mapping[str, int]],
        seal: Seal,
        *,
        wall_s: Callable[[], float],
        mono_s: Callable[[], float],
        every_s: float,
    ) -> None:
        self._board = board
        self._levels = levels
        self._seal = seal
        self._wall_s = wall_s
        self._mono_s = mono_s
        self._every_s = every_s
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = threading.Event()
        self._links: list[Connection] = []

    def attach(self, session: Session, connects: Sequence[Connect]) -> None:
        """Name the brokers; before `run`."""
        for number, connect in enumerate(connects):
            self._links.append(connect(session, _Up(self._events, self._greet(number))))

    def run(self, beat: Beat) -> None:
        """Publish until `stop`."""
        for link in self._links:
            link.start()
        due_s = self._mono_s()
        while not self._stop.is_set():
            beat()
            if self._mono_s() >= due_s:
                self.look()
                due_s = self._mono_s() + self._every_s
            try:
                self._events.get(timeout=min(LOOK_S, self._every_s))()
            except Empty:
                continue
        for link in self._links:
            link.stop()

    def stop(self) -> None:
        """End `run`; what is published stays."""
        self._stop.set()
        self._events.put(lambda: None)

    def look(self) -> None:
        """Publish what changed."""
        fresh = self._board.update(self._levels(self._wall_s()), self._wall_s())
        for topic, notice in fresh.items():
            log.info("%s: %s", topic, notice)
            for link in self._links:
                self._publish(link, topic, notice)

    def status(self) -> str:
        """One line for a person."""
        ups = sum(link.is_up for link in self._links)
        out = sum(not n.withdrawn for n in self._board.notices.values())
        return f"{ups} of {len(self._links)} brokers reached; {out} notices are out"

    def _greet(self, number: int) -> Callable[[], None]:
        def tell_all() -> None:
            for topic, notice in self._board.notices.items():
                self._publish(self._links[number], topic, notice)

        return tell_all

    def _publish(self, link: Connection, topic: str, notice: Notice) -> None:
        """Publish; while the broker is away, its return does."""
        payload = self._seal(topic, notice.encode())
        link.publish(Publication(topic, payload, retain=True))


class _Up:
    """Handler that hands the return of a broker to the loop."""

    def __init__(
        self, events: SimpleQueue[Callable[[], None]], greet: Callable[[], None]
    ) -> None:
        self._events = events
        self._greet = greet

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._events.put(self._greet)

    def on_down(self, reason: str) -> None:
        log.info("a broker is down: %s", reason)

    def on_message(self, message: Incoming) -> None:
        """See `ConnectionHandler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        if refused not in {None, NO_TAKER}:
            log.error("a broker refused a notice: %s", refused)

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""


SILENCE_S = 120.0
"""One look at the levels of a large table."""


@dataclass(frozen=True)
class Process:
    """The loop, as systemd sees it."""

    notify: Notify
    pulse: Pulse

    def run(self) -> None:
        """Work until `stop`."""
        with self.pulse.expects("notify", SILENCE_S) as beat:
            self.notify.run(beat)

    def stop(self) -> None:
        """End `run`."""
        self.notify.stop()


def run(settings: Settings) -> None:
    """Publish notices until SIGTERM or SIGINT.

    Raises:
        SettingsError: No broker is set, or the key cannot be used.
        AlreadyRunningError: Another process notifies from this data folder.
    """
    section = settings.notify
    if not section.brokers:
        remedy = "write brokers = ['mqtt://manager:port'], those of the Managers"
        raise SettingsError([Problem("notify.brokers", "must be given", [], remedy)])
    seal = _seal(section.key_file)
    die_on_unknown_errors()
    data = Path(settings.backend.data)
    lock = hold(data / ".lock-notify")
    tables, pulse = open_tables(data), Pulse(time.monotonic)
    terms = Terms(section.from_level, section.hold_s, section.calm_s)
    notify = Notify(
        Board(terms, data / "notices.json"),
        lambda now_s: current_levels(tables, now_s, section.max_age_s),
        seal,
        wall_s=time.time,
        mono_s=time.monotonic,
        every_s=section.every_s,
    )
    session = Session(section.id, keepalive_s=10)
    notify.attach(session, [_connect(u, settings.tls, pulse) for u in section.brokers])
    made = Process(notify, pulse)
    serve(made, Supervision.of(os.environ, os.getpid(), pulse, notify.status))
    os.close(lock)


def _seal(key_file: str | None) -> Seal:
    if key_file is None:
        return lambda _topic, body: body
    try:
        return Signer(key_file).seal
    except FieldError as error:
        raise SettingsError([Problem.of(error, "notify.key_file")]) from error


def _connect(url: str, tls: TlsFiles, pulse: Pulse) -> Connect:
    def connect(session: Session, handler: ConnectionHandler) -> Connection:
        return Connection(Endpoint.parse(url), session, handler, tls, pulse=pulse)

    return connect
