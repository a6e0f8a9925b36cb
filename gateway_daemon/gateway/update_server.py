"""Server of update bundles: answers chunk requests of nodes at the own broker."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from service_runtime.lifecycle import start_watched_loop
from service_runtime.watchdog import MAX_SILENCE_S, Heartbeat, LoopWatchdog
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import FileChunkError, TopicError
from spatial_mqtt.file_transfer import FileChunk, FileChunkRequest
from spatial_mqtt.topics import (
    FILE_REQUESTS,
    file_chunk_topic,
    parse_file_request_topic,
)
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    MessageHandler,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

POLL_S = 5.0
MAX_WAITING = 256
"""Requests that are queued; nodes repeat those that get no answer."""

BUNDLE_SUFFIX = ".update"

Connect = Callable[[Session, ConnectionHandler], Connection]


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
