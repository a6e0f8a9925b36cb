"""Download of a file in chunks, one request at a time, over days if necessary.

The server keeps no state and the client keeps what has arrived: a change of the broker
or a broken link costs one chunk, a power cut or a restart at most `SYNC_BYTES`.
"""

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from service_runtime.watchdog import Heartbeat
from spatial_mqtt.errors import FileChunkError
from spatial_mqtt.file_transfer import FileChunk, FileChunkRequest
from spatial_mqtt.topics import file_chunk_topic, file_request_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    MessageHandler,
    Publication,
    Session,
    SessionConnection,
)

SYNC_BYTES: Final = 1 << 20
"""Interval of fsync: a power cut costs the bytes after its last multiple."""


class PartialDownload:
    """A partly downloaded file.

    Args:
        folder: Its folder; made if necessary.
        sha256: Digest of the whole file, also its name.
        size_bytes: Size of the whole file.
        kept_bytes: Bytes that this run of the program has received and kept; None at
            its first session, which may follow a power cut.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        sha256: str,
        size_bytes: int,
        kept_bytes: int | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{sha256}.part"
        self.sha256 = sha256
        self._size_bytes = size_bytes
        self._file = self._path.open("ab")
        size = self._file.tell()
        # What was not synced may be zeros after a power cut.
        kept = _synced_bytes(size) if kept_bytes is None else kept_bytes
        self.received_bytes = min(kept, size)
        self._file.truncate(self.received_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived; `finish` checks them."""
        return self.received_bytes >= self._size_bytes

    def append(self, offset: int, data: bytes) -> bool:
        """Append a chunk, if it is the next one; returns whether it was.

        Raises:
            OSError: It cannot be written.
        """
        if offset != self.received_bytes or offset + len(data) > self._size_bytes:
            return False
        self._file.write(data)
        until = offset + len(data)
        if _synced_bytes(until) != _synced_bytes(offset):
            self._sync()
        self.received_bytes = until
        return True

    def finish(self, target: Path) -> bool:
        """Move the file to its place if the digest is right, else start again.

        Raises:
            OSError: It cannot be written.
        """
        self._sync()
        with self._path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            self._file.truncate(0)
            self.received_bytes = 0
            return False
        self._file.close()
        self._path.replace(target)
        return True

    def close(self) -> None:
        """Close the file; a later download continues it."""
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        try:
            os.fsync(self._file.fileno())
        except OSError:
            # The kernel may drop what it could not write.
            self.received_bytes = _synced_bytes(self.received_bytes)
            raise


def _synced_bytes(size: int) -> int:
    """How many of the first bytes were synced."""
    return size // SYNC_BYTES * SYNC_BYTES


ANSWER_TIMEOUT_S: Final = 30.0
"""A request without an answer is sent again after this time."""

MAX_UNANSWERED: Final = 3
"""Requests in a row without an answer, after which the connection is closed: another
gateway may be in use."""

OVERHEAD_BYTES: Final = 400
"""Bytes on the wire of a request and a chunk beside the data: MQTT, TLS, TCP and IP."""

POLL_S: Final = 1.0

OpenConnection = Callable[[Session, ConnectionHandler], SessionConnection]


@dataclass(frozen=True)
class DownloadControl:
    """Permission of a download to use the link.

    Attributes:
        wait_s: Seconds until the next chunk may be requested; long while messages need
            the link, or it is closed.
        spend: Called with the bytes that were sent and received.
        is_over: Whether to stop and to close the connection.
    """

    wait_s: Callable[[], float]
    spend: Callable[[int], object]
    is_over: Callable[[], bool]


class FileNotServedError(Exception):
    """The server has no such file."""


class FileDownload:
    """Downloads the chunks of one file over one connection.

    Args:
        name: Id of the node.
        sha256: Digest of the file.
        connect: Opens the connection.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        sha256: str,
        connect: OpenConnection,
        clock: Callable[[], float],
    ) -> None:
        self._want_topic = file_request_topic(name)
        self._sha256 = sha256
        self._clock = clock
        self._pieces: SimpleQueue[FileChunk] = SimpleQueue()
        self._is_ready = threading.Event()
        session = Session(f"{name}-update", [(file_chunk_topic(name), 0)])
        self._link = connect(
            session, MessageHandler(self._on_message, self._is_ready.set)
        )

    def run(
        self, partial: PartialDownload, control: DownloadControl, beat: Heartbeat
    ) -> None:
        """Download until the file is whole, `control` is over or answers stop.

        Raises:
            NotThereError: The server has no such file.
            OSError: The file cannot be written.
        """
        self._link.start()
        unanswered = 0
        try:
            while unanswered < MAX_UNANSWERED and not (
                partial.is_whole or control.is_over()
            ):
                beat()
                wait_s = control.wait_s()
                if wait_s > 0:
                    threading.Event().wait(min(wait_s, POLL_S))
                else:
                    is_answered = self._fetch_one(partial, control, beat)
                    unanswered = 0 if is_answered else unanswered + 1
        finally:
            self._link.stop()

    def _fetch_one(
        self, part: PartialDownload, leave: DownloadControl, beat: Heartbeat
    ) -> bool:
        """Request the next chunk; returns whether it arrived."""
        if not self._is_ready.wait(ANSWER_TIMEOUT_S):
            return False
        want = FileChunkRequest(self._sha256, part.received_bytes)
        self._link.publish(Publication(self._want_topic, want.encode(), qos=0))
        until_s = self._clock() + ANSWER_TIMEOUT_S
        while self._clock() < until_s and not leave.is_over():
            beat()
            try:
                piece = self._pieces.get(timeout=POLL_S)
            except Empty:
                continue
            leave.spend(len(piece.data) + OVERHEAD_BYTES)
            if (piece.sha256, piece.at) != (self._sha256, want.at):
                continue
            if not piece.data:
                raise FileNotServedError
            part.append(piece.at, piece.data)
            return True
        return False

    def _on_message(self, message: IncomingMessage) -> None:
        try:
            self._pieces.put(FileChunk.decode(message.payload))
        except FileChunkError:
            return  # the request is sent again
