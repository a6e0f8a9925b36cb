"""When a node requests a bundle, and its summary in the meantime."""

import math
import threading
from pathlib import Path

import pytest

from edge_agent.queue.base import ExpiryPolicy, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.updates.updater import (
    DownloadTransport,
    ImageInfo,
    Rollouts,
    Updater,
    has_backlog,
)
from spatial_mqtt.announcements import Rollout
from spatial_mqtt.transport import IncomingMessage

DIGEST = "ab" * 32


class UpdaterHarness:
    """An updater whose loop runs three times, with a folder as its card."""

    def __init__(self, root: Path, *, size_bytes: int, wait_s: float) -> None:
        self.folder = root / "update"
        (root / "etc").mkdir()
        (root / "etc/yamamori-image").write_text("role=node\nversion=1\n")
        encoded = Rollout("2", DIGEST, size_bytes, 5.0).encode()
        rollouts = Rollouts("kochi-1", lambda _, payload: payload, None, dict)
        rollouts.on_message(
            IncomingMessage("/update/1", encoded, 1, True, None, None, None, (1, 1))
        )
        self.requested: list[str] = []
        stop = threading.Event()
        stop.wait = self._count_pass  # type: ignore[method-assign]
        self._passes = 0
        transport = DownloadTransport(self._fetch, lambda: wait_s, lambda _: None)
        self.updater = Updater(
            rollouts,
            ImageInfo(root),
            self.folder,
            transport,
            stop=stop,
            clock=lambda: 0.0,
        )
        self.updater.run(lambda: None)

    def _count_pass(self, _: float | None = None) -> bool:
        self._passes += 1
        return self._passes > 3

    def _fetch(self, sha256: str) -> None:
        self.requested.append(sha256)


def test_closed_window_opens_no_connection(tmp_path: Path) -> None:
    """A link that is paid by the byte is not opened just to wait."""
    harness = UpdaterHarness(tmp_path, size_bytes=1000, wait_s=math.inf)
    assert harness.requested == []
    assert harness.updater.summary() == "2: 0 % fetched, waits for its window"


def test_open_window_requests_the_bundle_on_each_pass(tmp_path: Path) -> None:
    """A gateway is tried on each pass."""
    harness = UpdaterHarness(tmp_path, size_bytes=1000, wait_s=0.0)
    assert harness.requested == [DIGEST] * 3


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
