"""Publishes the board at the Managers' brokers; from there gateways take it along."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from backend_spark.notify.board import Board
from spatial_mqtt.connection import Connection
from spatial_mqtt.link import NO_TAKER, Handler, Incoming, Publication, Session
from spatial_mqtt.notice import Notice
from spatial_mqtt.pulse import Beat

log = logging.getLogger(__name__)

Connect = Callable[[Session, Handler], Connection]
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
        """See `Handler`."""
        self._events.put(self._greet)

    def on_down(self, reason: str) -> None:
        """See `Handler`."""
        log.info("a broker is down: %s", reason)

    def on_message(self, message: Incoming) -> None:
        """See `Handler`."""

    def on_published(self, token: int, refused: str | None) -> None:
        """See `Handler`."""
        if refused not in {None, NO_TAKER}:
            log.error("a broker refused a notice: %s", refused)

    def on_subscribed(self) -> None:
        """See `Handler`."""
