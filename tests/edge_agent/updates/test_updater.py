"""When a node requests a bundle, and its summary in the meantime."""

import hashlib
import math
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from edge_agent.queue.base import ExpiryPolicy, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.updates import (
    DownloadTransport,
    FileDownload,
    ImageInfo,
    Rollouts,
    Updater,
    has_backlog,
)
from gateway_daemon.gateway.notices_and_updates import read_chunk
from spatial_mqtt.announcements import FileChunkRequest, Rollout
from spatial_mqtt.topics import file_chunk_topic
from spatial_mqtt.transport import (
    ConnectionHandler,
    IncomingMessage,
    Publication,
    Session,
    SessionConnection,
)

DIGEST = "ab" * 32


def make_message(topic: str, payload: bytes) -> IncomingMessage:
    return IncomingMessage(topic, payload, 1, False, None, None, None, (1, 1))


class BreakingLink:
    """A link to a folder of bundles that breaks after 0.8 MiB, for one poll."""

    SESSION_BYTES = 200 * 4096

    def __init__(self, folder: Path) -> None:
        self._served = folder
        self._is_down = False
        self.session_bytes: list[int] = []

    def open(self, sha256: str) -> FileDownload:
        return FileDownload("n", sha256, self._connect, time.monotonic)

    def wait_s(self) -> float:
        return math.inf if self._is_down else 0.0

    def start(self) -> None:
        self.session_bytes.append(0)
        self._handler.on_subscribed()

    def stop(self) -> None:
        self._is_down = False

    def publish(self, publication: Publication) -> None:
        if self.session_bytes[-1] == self.SESSION_BYTES:
            self._is_down = True
            return
        chunk = read_chunk(self._served, FileChunkRequest.decode(publication.payload))
        self.session_bytes[-1] += len(chunk.data)
        self._handler.on_message(make_message(file_chunk_topic("n"), chunk.encode()))

    def _connect(self, _: Session, handler: ConnectionHandler) -> SessionConnection:
        self._handler = handler
        return cast("SessionConnection", self)


def run_three_passes(
    root: Path,
    rollout: Rollout,
    transport: DownloadTransport,
    obstacle: str | None = None,
) -> Updater:
    """An updater whose loop has run three times, with a folder as its card."""
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/yamamori-image").write_text("role=node\nversion=1\n")
    rollouts = Rollouts("kochi-1", lambda _, payload: payload, None, dict)
    rollouts.on_message(make_message("/update/1", rollout.encode()))
    passes = iter([False] * 3)
    stop = threading.Event()
    stop.wait = lambda timeout=None: next(passes, True)  # type: ignore[method-assign]
    image, folder = ImageInfo(root), root / "update"
    updater = Updater(rollouts, image, folder, transport, stop=stop, clock=lambda: 0.0)
    updater.find_obstacle = lambda: obstacle
    updater.run(lambda: None)
    return updater


class UpdaterHarness:
    """An updater that no gateway serves."""

    def __init__(self, root: Path, *, size_bytes: int, wait_s: float) -> None:
        self.requested: list[str] = []
        self.updater = run_three_passes(
            root,
            Rollout("2", DIGEST, size_bytes, 5.0),
            DownloadTransport(self.requested.append, lambda: wait_s, lambda _: None),
        )


def test_closed_window_opens_no_connection(tmp_path: Path) -> None:
    """A link that is paid by the byte is not opened just to wait."""
    harness = UpdaterHarness(tmp_path, size_bytes=1000, wait_s=math.inf)
    assert harness.requested == []
    assert harness.updater.summary() == "2: 0 % fetched, waits for its window"


def test_open_window_requests_the_bundle_on_each_pass(tmp_path: Path) -> None:
    """A gateway is tried on each pass."""
    harness = UpdaterHarness(tmp_path, size_bytes=1000, wait_s=0.0)
    assert harness.requested == [DIGEST] * 3


def test_broken_link_costs_no_byte_twice(tmp_path: Path) -> None:
    """Else a bundle never arrives on a link that breaks often, and is paid for."""
    data = bytes(range(256)) * (3 * BreakingLink.SESSION_BYTES // 256)
    digest = hashlib.sha256(data).hexdigest()
    served = tmp_path / "served"
    served.mkdir()
    (served / f"{digest}.update").write_bytes(data)
    link = BreakingLink(served)
    run_three_passes(
        tmp_path,
        Rollout("2", digest, len(data), 5.0),
        DownloadTransport(link.open, link.wait_s, lambda _: None),
    )

    assert link.session_bytes == [BreakingLink.SESSION_BYTES] * 3
    assert (tmp_path / "update" / f"{digest}.update").read_bytes() == data


def test_whole_bundle_waits_for_the_end_of_danger_without_a_second_download(
    tmp_path: Path,
) -> None:
    """The installer reboots at once, and the siren is off meanwhile."""
    data = bytes(range(256)) * 700
    digest = hashlib.sha256(data).hexdigest()
    served, folder = tmp_path / "served", tmp_path / "update"
    served.mkdir()
    (served / f"{digest}.update").write_bytes(data)
    link, rollout = BreakingLink(served), Rollout("2", digest, len(data), 5.0)
    transport = DownloadTransport(link.open, link.wait_s, lambda _: None)
    closed = DownloadTransport(lambda _: None, lambda: math.inf, lambda _: None)

    waiting = run_three_passes(tmp_path, rollout, transport, "level 4")
    assert waiting.summary() == "2: 100 % fetched, waits: level 4"
    assert not list(folder.glob("*.update"))
    restarted = run_three_passes(tmp_path, rollout, transport, "siren:on")
    assert restarted.summary() == "2: 100 % fetched, waits: siren:on"
    assert not list(folder.glob("*.update"))
    quiet = run_three_passes(tmp_path, rollout, closed)
    assert quiet.summary() == "2: fetched, to be written"
    assert (folder / f"{digest}.update").read_bytes() == data
    assert link.session_bytes == [len(data)]


def test_bundle_longer_than_its_rollout_says_is_put_off(tmp_path: Path) -> None:
    """Its last chunk cannot be kept, and was requested for ever."""
    served = tmp_path / "served"
    served.mkdir()
    (served / f"{DIGEST}.update").write_bytes(bytes(3 * 4096))
    link = BreakingLink(served)
    updater = run_three_passes(
        tmp_path,
        Rollout("2", DIGEST, 2 * 4096 + 9, 5.0),
        DownloadTransport(link.open, link.wait_s, lambda _: None),
    )

    assert link.session_bytes == [3 * 4096]
    assert updater.summary() == (
        "2: 99 % fetched, the gateway's bundle is longer than its rollout says"
    )


def test_card_that_cannot_be_written_opens_no_connection(tmp_path: Path) -> None:
    """Each retry left a part in the connection that messages use as well."""
    (tmp_path / "update").write_text("no folder")
    opened: list[Session] = []

    def connect(session: Session, _: ConnectionHandler) -> SessionConnection:
        opened.append(session)
        return cast("SessionConnection", None)

    def fetch(sha256: str) -> FileDownload:
        return FileDownload("n", sha256, connect, time.monotonic)

    updater = run_three_passes(
        tmp_path,
        Rollout("2", DIGEST, 1000, 5.0),
        DownloadTransport(fetch, lambda: 0.0, lambda _: None),
    )

    assert "File exists" in str(updater.summary())
    assert opened == []


@pytest.mark.parametrize("name", ["trial", "fetched", "tried"])
def test_no_bundle_is_downloaded_twice(tmp_path: Path, name: str) -> None:
    """Not on trial, not when already downloaded, not when tried before."""
    state = tmp_path / "data/slot"
    for folder in (state, tmp_path / "run", tmp_path / "update"):
        folder.mkdir(parents=True)
    if name == "trial":
        (tmp_path / "run/yamamori-slot").write_text("b trial vda\n")
    elif name == "fetched":
        (tmp_path / f"update/{DIGEST}.update").touch()
    else:
        (state / "tried").write_text(DIGEST + "\n")

    assert UpdaterHarness(tmp_path, size_bytes=1000, wait_s=0.0).requested == []


def test_machine_on_its_other_slot_says_why_it_does_not_install(tmp_path: Path) -> None:
    """The bundle is kept for a start that can read the slot again."""
    for folder in ("run", "update"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run/yamamori-slot").write_text("b rescue vda\n")
    (tmp_path / f"update/{DIGEST}.update").touch()
    summary = UpdaterHarness(tmp_path, size_bytes=1000, wait_s=0.0).updater.summary()

    assert summary == (
        "2: fetched, not written: a slot cannot be read; flash the card anew"
    )


def test_messages_that_are_sent_delay_an_update_and_withheld_ones_do_not(
    tmp_path: Path,
) -> None:
    """Messages of another node stay in the queue until a person exports them."""
    now_s = [0.0]
    policy = ExpiryPolicy(lambda: now_s[0])
    queue = SqliteQueue(tmp_path / "q.db", "n1", "b", 1_000_000, expiry=policy)
    queue.put([MessageDraft(p, "/t", lambda _id: b"x") for p in (5, 1)])
    delays = [has_backlog(queue, 10.0)]
    (urgent,) = queue.lease()
    delays.append(has_backlog(queue, 10.0))
    queue.withhold([urgent.seq])
    delays.append(has_backlog(queue, 10.0))
    now_s[0] = 41.0
    delays.append(has_backlog(queue, 10.0))
    queue.withhold([queue.lease()[0].seq])
    delays.append(has_backlog(queue, 10.0))
    queue.close()

    assert delays == [True, True, False, True, False]
