"""Notices, rollouts and their bundles for the nodes at the gateway's own broker.

Notices and rollouts are retained messages about areas; nodes verify their signatures.
Only the newest message of an area is relayed from the Managers' brokers, because one
Manager may have missed what another one published. The bundle of a rollout is served
in chunks, each requested by a node.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from service_runtime.lifecycle import start_watched_loop
from service_runtime.watchdog import MAX_SILENCE_S, Heartbeat, LoopWatchdog
from spatial_mqtt.announcements import (
    MAX_NOTICE_BYTES,
    FileChunk,
    FileChunkRequest,
    OpenNotice,
    read_notice_time_s,
)
from spatial_mqtt.errors import FileChunkError, NoticeError, TopicError
from spatial_mqtt.topics import (
    FILE_REQUESTS,
    NOTICE_FILTER,
    file_chunk_topic,
    parse_file_request_topic,
)
from spatial_mqtt.transport import (
    NO_SUBSCRIBERS,
    BaseConnectionHandler,
    Connect,
    IncomingMessage,
    MessageHandler,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

SILENCE_S = 30.0
POLL_S = 5.0
MAX_AREAS = 20_000


class NoticeRelay(BaseConnectionHandler):
    """Relays notices; the handler of the connection to the own broker.

    Args:
        name: Prefix of the session names.
        managers: Make the connections to the Managers' brokers.
        own_broker: Makes the connection to the gateway's own broker.
        watchdog: Watchdog of the loop.
        filter_: Topic filter of the messages to relay.
        verify: Verifies a signed notice; None relays without a check. Then any client
            that may publish there can hide the genuine notices.
    """

    def __init__(
        self,
        name: str,
        managers: Sequence[Connect],
        own_broker: Connect,
        watchdog: LoopWatchdog,
        *,
        filter_: str = NOTICE_FILTER,
        verify: OpenNotice | None = None,
    ) -> None:
        self._verify = verify
        self._watchdog = watchdog
        self._newest: dict[str, bytes] = {}
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stop = threading.Event()
        session = Session(name, [(filter_, 1)])
        handler = MessageHandler(self._enqueue)
        self._in = [connect(session, handler) for connect in managers]
        self._out = own_broker(Session(f"{name}-out"), self)

    def start(self) -> None:
        """Begin to connect."""
        start_watched_loop(self._watchdog, "notices", SILENCE_S, self._run)
        for connection in (self._out, *self._in):
            connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._stop.set()
        for connection in (*self._in, self._out):
            connection.stop()

    def on_up(self, session_present: bool, receive_maximum: int) -> None:
        self._events.put(self._publish_all)

    def on_published(self, token: int, refused: str | None) -> None:
        if refused not in {None, NO_SUBSCRIBERS}:
            log.error("the own broker refused a notice: %s", refused)

    def _enqueue(self, message: IncomingMessage) -> None:
        self._events.put(lambda: self._relay(message.topic, message.payload))

    def _run(self, heartbeat: Heartbeat) -> None:
        """Publish outside the callbacks: they hold a lock that `publish` needs."""
        while not self._stop.is_set():
            heartbeat()
            try:
                event = self._events.get(timeout=POLL_S)
            except Empty:
                continue
            event()

    def _relay(self, topic: str, payload: bytes) -> None:
        newest = self._newest.get(topic)
        if payload == newest:
            return
        is_over_limit = newest is None and len(self._newest) >= MAX_AREAS
        # A signed notice is JSON with base64, at most twice as long.
        if is_over_limit or len(payload) > 2 * MAX_NOTICE_BYTES:
            log.warning("notice on %s is too much: %d bytes", topic, len(payload))
            return
        if self._verify is not None:
            try:
                self._verify(topic, payload)
            except NoticeError as error:
                log.warning("notice on %s not relayed: %s", topic, error)
                return
        if payload and 0 < read_notice_time_s(payload) < read_notice_time_s(
            newest or b""
        ):
            log.info("notice on %s not relayed: a newer one is known", topic)
            return
        self._newest[topic] = payload
        self._publish(topic)

    def _publish_all(self) -> None:
        for topic in self._newest:
            self._publish(topic)

    def _publish(self, topic: str) -> None:
        """Publish the newest notice; while disconnected, `on_up` does it later."""
        self._out.publish(Publication(topic, self._newest[topic], retain=True))


MAX_WAITING = 256
"""Requests that are queued; nodes repeat those that get no answer."""

BUNDLE_SUFFIX = ".update"


def read_chunk(folder: Path, request: FileChunkRequest) -> FileChunk:
    """Read the requested part of a bundle; empty if there is no such file.

    A file is named by its digest: with free names, a client could read other files.
    """
    path = folder / f"{request.sha256}{BUNDLE_SUFFIX}"
    if not request.sha256.isalnum() or not path.is_file():
        return FileChunk(request.sha256, request.at, b"")
    with path.open("rb") as file:
        file.seek(request.at)
        return FileChunk(request.sha256, request.at, file.read(request.size_bytes))


class UpdateServer:
    """Answers the requests of nodes for parts of bundles, without state.

    Args:
        name: Prefix of the session name.
        folder: Holds ``<sha256>.update``.
        connect: Makes the connection to the broker.
        watchdog: Watchdog of the loop.
    """

    def __init__(
        self, name: str, folder: Path, connect: Connect, watchdog: LoopWatchdog
    ) -> None:
        self._folder = folder
        self._watchdog = watchdog
        self._requests: SimpleQueue[IncomingMessage | None] = SimpleQueue()
        self._stop = threading.Event()
        session = Session(f"{name}-pieces", [(FILE_REQUESTS, 0)])
        self._connection = connect(session, MessageHandler(self._enqueue))

    def start(self) -> None:
        """Begin to serve."""
        self._folder.mkdir(parents=True, exist_ok=True)
        start_watched_loop(self._watchdog, "pieces", MAX_SILENCE_S, self._run)
        self._connection.start()

    def stop(self) -> None:
        """Disconnect."""
        self._stop.set()
        self._connection.stop()
        self._requests.put(None)

    def _enqueue(self, message: IncomingMessage) -> None:
        # No node retains a request: it would arrive at each connection.
        if not message.retain and self._requests.qsize() < MAX_WAITING:
            self._requests.put(message)

    def _run(self, heartbeat: Heartbeat) -> None:
        while not self._stop.is_set():
            heartbeat()
            try:
                message = self._requests.get(timeout=POLL_S)
            except Empty:
                continue
            if message is not None:
                self._serve(message)

    def _serve(self, message: IncomingMessage) -> None:
        try:
            topic = file_chunk_topic(parse_file_request_topic(message.topic))
            piece = read_chunk(self._folder, FileChunkRequest.decode(message.payload))
        except (FileChunkError, TopicError, OSError) as error:
            log.warning("request on %s not answered: %s", message.topic, error)
            return
        self._connection.publish(Publication(topic, piece.encode(), qos=0))
