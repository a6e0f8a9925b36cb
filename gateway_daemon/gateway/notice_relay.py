"""Brings what is said of areas from the Managers to the nodes of a gateway.

Notices, and rollouts likewise, are retained at the Managers' brokers and, from there,
at the gateway's own. Who signed them is the node's business; here only the newest of an
area counts, as one Manager may have slept through what another knows.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from service_runtime.lifecycle import start_loop
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.announcements import MAX_NOTICE_BYTES, Opened, made_at_s
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import NoticeError
from spatial_mqtt.topics import NOTICES
from spatial_mqtt.transport import (
    NO_TAKER,
    ConnectionHandler,
    Incoming,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

SILENCE_S = 30.0
LOOK_S = 5.0
MOST_AREAS = 20_000

Connect = Callable[[Session, ConnectionHandler], Connection]


class NoticeRelay:
    """Passes notices on.

    Args:
        name: Of the sessions.
        managers: Make the connections to the Managers' brokers.
        own: Makes the one to the gateway's own broker.
        pulse: Listens to our loop.
        filter_: What is passed on.
        opened: Opens a signed notice; None where they need no signature. Without
            it anybody who may publish there can hide the true ones.
    """

    def __init__(
        self,
        name: str,
        managers: Sequence[Connect],
        own: Connect,
        pulse: Pulse,
        *,
        filter_: str = NOTICES,
        opened: Opened | None = None,
    ) -> None:
        self._opened = opened
        self._pulse = pulse
        self._known: dict[str, bytes] = {}
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = threading.Event()
        listens = Session(name, [(filter_, 1)])
        self._in = [manager(listens, _Ear(self._hear)) for manager in managers]
        tells = Session(f"{name}-out")
        self._out = own(tells, _Ear(up=self._tell_all))

    def start(self) -> None:
        """Begin to connect."""
        start_loop(self._pulse, "notices", SILENCE_S, self._run)
        for connection in (self._out, *self._in):
            connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._stop.set()
        for connection in (*self._in, self._out):
            connection.stop()

    def _run(self, beat: Beat) -> None:
        """Publish outside the callbacks, which hold what publishing needs."""
        while not self._stop.is_set():
            beat()
            try:
                event = self._events.get(timeout=LOOK_S)
            except Empty:
                continue
            event()

    def _hear(self, message: Incoming) -> None:
        self._events.put(lambda: self._take(message.topic, message.payload))

    def _tell_all(self) -> None:
        self._events.put(self._tell_known)

    def _tell_known(self) -> None:
        for topic in self._known:
            self._tell(topic)

    def _take(self, topic: str, payload: bytes) -> None:
        known = self._known.get(topic)
        if payload == known:
            return
        is_new_area = known is None and len(self._known) >= MOST_AREAS
        # Signed and in base64 JSON of it is at most so much longer.
        if is_new_area or len(payload) > 2 * MAX_NOTICE_BYTES:
            log.warning("notice on %s is too much: %d bytes", topic, len(payload))
            return
        if self._opened is not None:
            try:
                self._opened(topic, payload)
            except NoticeError as error:
                log.warning("on %s, not passed on: %s", topic, error)
                return
        if payload and 0 < made_at_s(payload) < made_at_s(known or b""):
            log.info("notice on %s is an older one, not passed on", topic)
            return
        self._known[topic] = payload
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        """Publish; when our broker is away, its return does."""
        self._out.publish(Publication(topic, self._known[topic], retain=True))


class _Ear:
    """Handler of one connection."""

    def __init__(
        self,
        hear: Callable[[Incoming], object] = lambda _: None,
        up: Callable[[], object] = lambda: None,
    ) -> None:
        self._hear = hear
        self._up = up

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._up()

    def on_down(self, reason: str) -> None:
        """See `ConnectionHandler`."""

    def on_message(self, message: Incoming) -> None:
        self._hear(message)

    def on_published(self, token: int, refused: str | None) -> None:
        if refused not in {None, NO_TAKER}:
            log.error("the own broker refused a notice: %s", refused)

    def on_subscribed(self) -> None:
        """See `ConnectionHandler`."""
