"""Hands out pieces of the bundles in a folder to whoever asks at a broker."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from service_runtime.lifecycle import start_loop
from service_runtime.watchdog import Beat, Pulse
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import PieceError, TopicError
from spatial_mqtt.file_transfer import Piece, Want
from spatial_mqtt.topics import WANTS, piece_topic, wanted_by
from spatial_mqtt.transport import (
    ConnectionHandler,
    Incoming,
    MessageHandler,
    Publication,
    Session,
)

log = logging.getLogger(__name__)

SILENCE_S = 60.0
LOOK_S = 5.0
MOST_WAITING = 256
"""Wants that are kept; who asked for more asks again."""

SUFFIX = ".update"

Connect = Callable[[Session, ConnectionHandler], Connection]


def answer(folder: Path, want: Want) -> Piece:
    """The piece that answers a want; an empty one where there is no such file.

    A file is named by its digest, or the caller's folder would be open to all.
    """
    path = folder / f"{want.sha256}{SUFFIX}"
    if not want.sha256.isalnum() or not path.is_file():
        return Piece(want.sha256, want.at, b"")
    with path.open("rb") as file:
        file.seek(want.at)
        return Piece(want.sha256, want.at, file.read(want.size_bytes))


class PieceDesk:
    """Answers wants. It keeps nothing: who gets no answer asks again.

    Args:
        name: Of the session.
        folder: Holds ``<sha256>.update``.
        connect: Makes the connection to the broker.
        pulse: Listens to our loop.
    """

    def __init__(self, name: str, folder: Path, connect: Connect, pulse: Pulse) -> None:
        self._folder = folder
        self._pulse = pulse
        self._wants: SimpleQueue[Incoming | None] = SimpleQueue()
        self._stop = threading.Event()
        session = Session(f"{name}-pieces", [(WANTS, 0)])
        self._link = connect(session, MessageHandler(self._hear))

    def start(self) -> None:
        """Begin to answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        start_loop(self._pulse, "pieces", SILENCE_S, self._run)
        self._link.start()

    def stop(self) -> None:
        """Disconnect."""
        self._stop.set()
        self._link.stop()
        self._wants.put(None)

    def _hear(self, message: Incoming) -> None:
        if self._wants.qsize() < MOST_WAITING:
            self._wants.put(message)

    def _run(self, beat: Beat) -> None:
        while not self._stop.is_set():
            beat()
            try:
                message = self._wants.get(timeout=LOOK_S)
            except Empty:
                continue
            if message is not None:
                self._answer(message)

    def _answer(self, message: Incoming) -> None:
        try:
            topic = piece_topic(wanted_by(message.topic))
            piece = answer(self._folder, Want.decode(message.payload))
        except (PieceError, TopicError, OSError) as error:
            log.warning("on %s, not answered: %s", message.topic, error)
            return
        self._link.publish(Publication(topic, piece.encode(), qos=0))
