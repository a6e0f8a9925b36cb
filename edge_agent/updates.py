"""Updates of the image: the newest rollout for the node, and its download to the card.

Rollouts are signed announcements of an image version, stored by area. The bundle comes
in chunks, one request at a time, over days if necessary. The server keeps no state and
the client keeps what has arrived: a change of the broker or a broken link costs one
chunk, a power cut or a restart at most `SYNC_BYTES`. The scripts of the image install
the update; `ImageInfo` reads what they write.
"""

import hashlib
import json
import logging
import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from edge_agent.notices import StoreState
from edge_agent.queue.base import Queue
from service_runtime.watchdog import Heartbeat
from spatial_mqtt.announcements import FileChunk, FileChunkRequest, OpenNotice, Rollout
from spatial_mqtt.errors import FileChunkError, NoticeError, RolloutError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import file_chunk_topic, file_request_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    MessageHandler,
    Publication,
    Session,
    SessionConnection,
)

log = logging.getLogger(__name__)

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
    """The server has no such file, or another one under its name."""


class FileDownload:
    """Downloads the chunks of one file over one connection.

    Args:
        name: Id of the node.
        sha256: Digest of the file.
        connect: Opens the connection; `run` closes it.
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
        handler = MessageHandler(self._on_message, self._is_ready.set)
        self._open = partial(connect, session, handler)

    def run(
        self, part: PartialDownload, control: DownloadControl, beat: Heartbeat
    ) -> None:
        """Download until the file is whole, `control` is over or answers stop.

        Raises:
            FileNotServedError: The server has no such file, or a longer one.
            OSError: The file cannot be written.
        """
        link = self._open()
        link.start()
        unanswered = 0
        try:
            while unanswered < MAX_UNANSWERED and not (
                part.is_whole or control.is_over()
            ):
                beat()
                wait_s = control.wait_s()
                if wait_s > 0:
                    threading.Event().wait(min(wait_s, POLL_S))
                else:
                    is_answered = self._fetch_one(link, part, control, beat)
                    unanswered = 0 if is_answered else unanswered + 1
        finally:
            link.stop()

    def _fetch_one(
        self,
        link: SessionConnection,
        part: PartialDownload,
        leave: DownloadControl,
        beat: Heartbeat,
    ) -> bool:
        """Request the next chunk; returns whether it arrived."""
        if not self._is_ready.wait(ANSWER_TIMEOUT_S):
            return False
        want = FileChunkRequest(self._sha256, part.received_bytes)
        link.publish(Publication(self._want_topic, want.encode(), qos=0))
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
                raise FileNotServedError("the gateway has no such bundle")
            if not part.append(piece.at, piece.data):
                problem = "the gateway's bundle is longer than its rollout says"
                raise FileNotServedError(problem)
            return True
        return False

    def _on_message(self, message: IncomingMessage) -> None:
        try:
            self._pieces.put(FileChunk.decode(message.payload))
        except FileChunkError:
            return  # the request is sent again


IMAGE_FILE = "etc/yamamori-image"
SLOT_FILE = "run/yamamori-slot"
TRIED_FILE = "data/slot/tried"
HISTORY_FILE = "data/slot/history"
REFUSED_FILE = "data/slot/refused"


ROLLOUTS_STATE: Final = "rollouts"


class Rollouts:
    """The rollouts for a node, by the topic of their area.

    Args:
        node: The node's id.
        verify: Checks the signature of a topic and payload; returns the JSON.
        state: State `ROLLOUTS_STATE` of the last run.
        store_state: Stores values for the next start.

    Attributes:
        refused: Reason of the last refusal; None when none was refused.
    """

    def __init__(
        self, node: str, verify: OpenNotice, state: str | None, store_state: StoreState
    ) -> None:
        self._node = node
        self._opened = verify
        self._remember = store_state
        self._by_topic = _restored(state)
        self.refused: str | None = None

    def on_message(self, incoming: IncomingMessage) -> None:
        """Apply a rollout. An empty payload has no signature and is ignored."""
        topic = incoming.topic
        if not incoming.payload:
            return
        try:
            fresh = Rollout.decode(self._opened(topic, incoming.payload))
            _check_newer(self._by_topic.get(topic), fresh)
        except (NoticeError, RolloutError) as error:
            self.refused = f"on {topic}: {error}"
            log.warning("rollout refused %s", self.refused)
            return
        if fresh == self._by_topic.get(topic):
            return
        self._by_topic = {**self._by_topic, topic: fresh}
        log.info("rollout on %s: %s", topic, fresh)
        state = {name: each.encode().decode() for name, each in self._by_topic.items()}
        self._remember({ROLLOUTS_STATE: json.dumps(state)})

    def select(self, role: str) -> Rollout | None:
        """The newest rollout for this node and a role of image; None without one."""
        return max(
            (
                each
                for each in self._by_topic.values()
                if each.role == role
                and not each.withdrawn
                and each.includes_node(self._node)
            ),
            key=lambda each: each.at_s,
            default=None,
        )


def _check_newer(earlier: Rollout | None, fresh: Rollout) -> None:
    if earlier is not None and fresh != earlier and fresh.at_s <= earlier.at_s:
        rule = f"newer than the one before ({earlier.at_s:.3f})"
        remedy = "an old one was sent again, or a clock was set back; publish it anew"
        raise RolloutError("at_s", rule, fresh.at_s, remedy)


def _restored(remembered: str | None) -> Mapping[str, Rollout]:
    try:
        state = json.loads(remembered or "{}")
        return {topic: Rollout.decode(text.encode()) for topic, text in state.items()}
    except (ValueError, AttributeError) as error:
        log.warning("stored rollouts are not used: %s", error)
        return {}


@dataclass(frozen=True)
class ImageInfo:
    """Reads the files that the image's scripts write.

    Attributes:
        root: Root of the file system.
    """

    root: Path = Path("/")

    def read_field(self, name: str) -> str | None:
        """A field of the image's description: role, version; None without an image."""
        pairs = (line.split("=", 1) for line in self._lines(IMAGE_FILE) if "=" in line)
        return dict(pairs).get(name)

    @property
    def is_on_trial(self) -> bool:
        """Whether the running version may still be rolled back."""
        return any(" trial " in line for line in self._lines(SLOT_FILE))

    @property
    def is_rescued(self) -> bool:
        """Whether the slot to start could not be read, and the other one runs."""
        return any(" rescue " in line for line in self._lines(SLOT_FILE))

    def bundle_result(self, sha256: str, version: str) -> str | None:
        """Result of a bundle, as text; None when it was not tried yet."""
        refused = [
            line for line in self._lines(REFUSED_FILE) if line.startswith(sha256)
        ]
        if refused:
            return f"refused: {refused[-1].removeprefix(sha256).strip()}"
        if sha256 not in self._lines(TRIED_FILE):
            return None
        lines = [
            line for line in self._lines(HISTORY_FILE) if f"version {version} " in line
        ]
        return lines[-1].partition(f"version {version} ")[2] if lines else "on trial"

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.root / name).read_text(errors="replace").splitlines()
        except OSError:
            return []


BACKLOG_S: Final = 30.0
"""A message that waits longer than this and its batching time is a backlog."""

POLL_INTERVAL_S: Final = 5.0
RETRY_S: Final = 600.0
"""Pause after a gateway had no such bundle or another one, or the card was full."""

UNREADABLE: Final = "fetched, not written: a slot cannot be read; flash the card anew"

FREE_BYTES: Final = 64 << 20
"""Disk space that a bundle leaves to the queue."""


def has_backlog(queue: Queue, gather_s: float) -> bool:
    """Whether messages wait that an update would delay.

    Args:
        queue: The node's queue.
        gather_s: How long routine messages are held back for batching.
    """
    ages_s = (
        queue.ages_s()
    )  # also of messages in flight; the depth counts withheld ones
    if any(map(LADDER.is_urgent, queue.waiting_priorities() | ages_s.keys())):
        return True
    return max(ages_s.values(), default=0.0) > BACKLOG_S + gather_s


@dataclass(frozen=True)
class DownloadTransport:
    """Access of the updater to the link.

    Attributes:
        fetch: Makes a download of a file by its digest; None while there is no gateway.
        wait_s: Seconds until the next chunk may be requested; infinite while the link
            is closed or no gateway serves the node.
        spend: Called with the bytes that were sent and received.
    """

    fetch: Callable[[str], FileDownload | None]
    wait_s: Callable[[], float]
    spend: Callable[[int], object]


class Updater:
    """Downloads the bundle of the newest rollout for this node.

    Args:
        rollouts: The rollouts.
        image: State of the running image.
        folder: Folder of the bundles for the image's installer.
        transport: Access to the link.
        stop: Ends the loop.
        clock: Monotonic seconds.

    Attributes:
        find_obstacle: Why the node must not reboot now, as text; None when it may.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        image: ImageInfo,
        folder: Path,
        transport: DownloadTransport,
        *,
        stop: threading.Event,
        clock: Callable[[], float],
    ) -> None:
        self._rollouts = rollouts
        self._machine = image
        self._folder = folder
        self._way = transport
        self._stop = stop
        self._clock = clock
        self.find_obstacle: Callable[[], str | None] = lambda: None
        self._retry_at_s = -RETRY_S
        self._why = ""
        self._part: PartialDownload | None = None

    def run(self, beat: Heartbeat) -> None:
        """Work until stopped."""
        while not self._stop.wait(POLL_INTERVAL_S):
            beat()
            wanted = self._wanted()
            if wanted is None or self._clock() < self._retry_at_s:
                continue
            if self._whole(wanted).exists():
                self._hand_over(wanted)
                continue
            if math.isinf(self._way.wait_s()):
                self._why = "waits for its window"
                continue
            fetch = self._way.fetch(wanted.sha256)
            if fetch is not None:
                self._fetch(wanted, fetch, beat)

    def summary(self) -> str | None:
        """State of an update, as text; None when there is none."""
        meant = self._meant()
        if meant is None:
            refused = self._rollouts.refused
            return None if refused is None else f"rollout refused {refused}"
        return f"{meant.version}: {self._state(meant)}"

    def _state(self, meant: Rollout) -> str:
        if meant.version == self._machine.read_field("version"):
            return "on trial" if self._machine.is_on_trial else "runs"
        done = self._machine.bundle_result(meant.sha256, meant.version)
        if done is not None:
            return done
        if self._bundle(meant).exists():
            is_rescued = self._machine.is_rescued
            return UNREADABLE if is_rescued else "fetched, to be written"
        is_whole = self._whole(meant).exists()
        at = meant.size_bytes if is_whole else self._received_bytes(meant) or 0
        share = f"{100 * at // meant.size_bytes} % fetched"
        return f"{share}, {self._why}" if self._why else share

    def _received_bytes(self, meant: Rollout) -> int | None:
        """Bytes of a bundle that this run received last; None if it was another."""
        part = self._part
        if part is None or part.sha256 != meant.sha256:
            return None
        return part.received_bytes

    def _meant(self) -> Rollout | None:
        role = self._machine.read_field("role")
        return None if role is None else self._rollouts.select(role)

    def _wanted(self) -> Rollout | None:
        """The rollout whose bundle is still to be downloaded."""
        meant = self._meant()
        if meant is None or meant.version == self._machine.read_field("version"):
            return None
        is_done = self._machine.bundle_result(meant.sha256, meant.version) is not None
        is_busy = self._machine.is_on_trial or self._bundle(meant).exists()
        return None if is_done or is_busy else meant

    def _bundle(self, meant: Rollout) -> Path:
        return self._folder / f"{meant.sha256}.update"

    def _whole(self, meant: Rollout) -> Path:
        """The checked bundle while the installer must not find it."""
        return self._folder / f"{meant.sha256}.whole"

    def _hand_over(self, wanted: Rollout) -> None:
        """Let the installer find the whole bundle, unless the node must not reboot.

        The installer reboots as soon as it has written the bundle.
        """
        obstacle = self.find_obstacle()
        self._why = "" if obstacle is None else f"waits: {obstacle}"
        if obstacle is not None:
            return
        try:
            self._whole(wanted).replace(self._bundle(wanted))
        except OSError as error:
            self._put_off(str(error))

    def _fetch(self, wanted: Rollout, fetch: FileDownload, beat: Heartbeat) -> None:
        leave = DownloadControl(
            self._way.wait_s,
            self._way.spend,
            lambda: self._is_over(wanted),
        )
        self._why = ""
        try:
            part = self._part = self._begin(wanted)
            with closing(part):
                fetch.run(part, leave, beat)
                if not part.is_whole:
                    return
                if part.finish(self._whole(wanted)):
                    self._hand_over(wanted)
                else:
                    self._put_off("its digest was wrong; it is fetched anew")
        except (FileNotServedError, OSError) as error:
            self._put_off(str(error))

    def _is_over(self, wanted: Rollout) -> bool:
        """A closed link is not kept open for an update: it is paid by the byte."""
        is_closed = math.isinf(self._way.wait_s())
        return is_closed or self._stop.is_set() or self._wanted() != wanted

    def _begin(self, wanted: Rollout) -> PartialDownload:
        """Open the partial download, and delete those of other rollouts.

        Raises:
            OSError: The card is too full, or cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if path.stem != wanted.sha256:
                path.unlink()
        part = PartialDownload(
            self._folder,
            wanted.sha256,
            wanted.size_bytes,
            self._received_bytes(wanted),
        )
        free = shutil.disk_usage(self._folder).free
        needed = wanted.size_bytes - part.received_bytes + FREE_BYTES
        if free < needed:
            part.close()
            raise OSError(f"the card must have {needed} bytes free, got {free}")
        return part

    def _put_off(self, why: str) -> None:
        log.warning("update: %s; again in %.0f s", why, RETRY_S)
        self._why = why
        self._retry_at_s = self._clock() + RETRY_S
