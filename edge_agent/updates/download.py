"""Fetches a file in pieces, one want at a time, as slowly as it must.

Whoever serves keeps nothing of us, and we keep what has arrived: a broker that is
changed, a link that breaks and a power cut cost some pieces and no more.

A file that arrives in pieces, over days and power cuts if need be.
"""

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from service_runtime.watchdog import Beat
from spatial_mqtt.connection import Connection
from spatial_mqtt.errors import PieceError
from spatial_mqtt.file_transfer import Piece, Want
from spatial_mqtt.topics import piece_topic, want_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    Incoming,
    MessageHandler,
    Publication,
    Session,
)

SYNC_BYTES: Final = 1 << 20
"""So much of it is on the disk for certain; a power cut costs what is above."""


class PartFile:
    """The bytes so far.

    Args:
        folder: Where it is kept; made if need be.
        sha256: Names it.
        size_bytes: Of the whole.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, sha256: str, size_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{sha256}.part"
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._file = self._path.open("ab")
        # What was not synced may be zeros after a power cut.
        self.at = self._file.tell() // SYNC_BYTES * SYNC_BYTES
        self._file.truncate(self.at)

    @property
    def is_whole(self) -> bool:
        """Whether every byte is there; `finish` says whether they are right."""
        return self.at >= self._size_bytes

    def take(self, at: int, data: bytes) -> bool:
        """Append a piece, if it is the next one.

        Raises:
            OSError: It cannot be written.
        """
        if at != self.at or at + len(data) > self._size_bytes:
            return False
        self._file.write(data)
        before, self.at = self.at, at + len(data)
        if before // SYNC_BYTES != self.at // SYNC_BYTES:
            self._sync()
        return True

    def finish(self, to: Path) -> bool:
        """Put the whole in place if it is what was asked for, or begin anew.

        Raises:
            OSError: It cannot be written.
        """
        self._sync()
        with self._path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self._sha256:
            self._file.truncate(0)
            self.at = 0
            return False
        self._file.close()
        self._path.replace(to)
        return True

    def close(self) -> None:
        """Leave it for later."""
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


PATIENCE_S: Final = 30.0
"""A want without an answer is sent again."""

MOST_SILENT: Final = 3
"""After so many in a row the connection is given up: another gateway may be in use."""

OVERHEAD_BYTES: Final = 400
"""Of a want and a piece on the wire: packets, TLS, TCP and IP, both ways."""

LOOK_S: Final = 1.0

Connect = Callable[[Session, ConnectionHandler], Connection]


@dataclass(frozen=True)
class Leave:
    """What a fetch asks before each want.

    Attributes:
        wait_s: Seconds until the next piece may be asked for; a long one while others
            need the link, or it is closed.
        spend: Told the bytes that went over the link.
        is_over: Whether to leave it for another time, and the connection with it.
    """

    wait_s: Callable[[], float]
    spend: Callable[[int], object]
    is_over: Callable[[], bool]


class NotThereError(Exception):
    """Who is asked has no such file."""


class Fetch:
    """Asks for the pieces of one file over one connection.

    Args:
        name: Ours.
        sha256: Of the file.
        connect: Makes the connection.
        clock: Monotonic seconds.
    """

    def __init__(
        self, name: str, sha256: str, connect: Connect, clock: Callable[[], float]
    ) -> None:
        self._want_topic = want_topic(name)
        self._sha256 = sha256
        self._clock = clock
        self._pieces: SimpleQueue[Piece] = SimpleQueue()
        self._is_ready = threading.Event()
        session = Session(f"{name}-update", [(piece_topic(name), 0)])
        self._link = connect(session, MessageHandler(self._hear, self._is_ready.set))

    def run(self, part: PartFile, leave: Leave, beat: Beat) -> None:
        """Fetch until the file is whole, or there is no leave or no answer any more.

        Raises:
            NotThereError: Nobody there has it.
            OSError: The file cannot be written.
        """
        self._link.start()
        silent = 0
        try:
            while silent < MOST_SILENT and not (part.is_whole or leave.is_over()):
                beat()
                wait_s = leave.wait_s()
                if wait_s > 0:
                    threading.Event().wait(min(wait_s, LOOK_S))
                else:
                    is_answered = self._fetch_one(part, leave, beat)
                    silent = 0 if is_answered else silent + 1
        finally:
            self._link.stop()

    def _fetch_one(self, part: PartFile, leave: Leave, beat: Beat) -> bool:
        """Ask for the next piece; whether it came."""
        if not self._is_ready.wait(PATIENCE_S):
            return False
        want = Want(self._sha256, part.at)
        self._link.publish(Publication(self._want_topic, want.encode(), qos=0))
        until_s = self._clock() + PATIENCE_S
        while self._clock() < until_s and not leave.is_over():
            beat()
            try:
                piece = self._pieces.get(timeout=LOOK_S)
            except Empty:
                continue
            leave.spend(len(piece.data) + OVERHEAD_BYTES)
            if (piece.sha256, piece.at) != (self._sha256, want.at):
                continue
            if not piece.data:
                raise NotThereError
            part.take(piece.at, piece.data)
            return True
        return False

    def _hear(self, message: Incoming) -> None:
        try:
            self._pieces.put(Piece.decode(message.payload))
        except PieceError:
            return  # the want is sent again
