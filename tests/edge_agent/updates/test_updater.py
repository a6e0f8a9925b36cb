"""When a node asks for a bundle, and what it says while it does not."""

import math
import threading
from pathlib import Path

import pytest

from edge_agent.updates.rollouts import Rollouts
from edge_agent.updates.updater import DownloadTransport, ImageInfo, Updater
from spatial_mqtt.announcements import Rollout
from spatial_mqtt.transport import IncomingMessage

DIGEST = "ab" * 32


class Bench:
    """An updater whose loop runs a few times, on a card that is a folder."""

    def __init__(self, root: Path, *, size_bytes: int, wait_s: float) -> None:
        self.folder = root / "update"
        (root / "etc").mkdir()
        (root / "etc/yamamori-image").write_text("role=node\nversion=1\n")
        told = Rollout("2", DIGEST, size_bytes, 5.0).encode()
        rollouts = Rollouts("kochi-1", lambda _, payload: payload, None, dict)
        rollouts.on_message(
            IncomingMessage("/update/1", told, 1, True, None, None, None, (1, 1))
        )
        self.asked: list[str] = []
        stop = threading.Event()
        stop.wait = self._turn  # type: ignore[method-assign]
        self._turns = 0
        way = DownloadTransport(self._fetch, lambda: wait_s, lambda _: None)
        self.updater = Updater(
            rollouts, ImageInfo(root), self.folder, way, stop=stop, clock=lambda: 0.0
        )
        self.updater.run(lambda: None)

    def _turn(self, _: float | None = None) -> bool:
        self._turns += 1
        return self._turns > 3

    def _fetch(self, sha256: str) -> None:
        self.asked.append(sha256)


def test_closed_window_is_waited_for_without_a_connection(tmp_path: Path) -> None:
    """A link that is paid by the byte is not opened to wait on it."""
    bench = Bench(tmp_path, size_bytes=1000, wait_s=math.inf)
    assert bench.asked == []
    assert bench.updater.summary() == "2: 0 % fetched, waits for its window"


def test_open_window_is_used_as_soon_as_there_is_a_gateway(tmp_path: Path) -> None:
    """It is looked for at every turn."""
    bench = Bench(tmp_path, size_bytes=1000, wait_s=0.0)
    assert bench.asked == [DIGEST] * 3


@pytest.mark.parametrize("name", ["trial", "fetched", "tried"])
def test_nothing_is_fetched_twice(tmp_path: Path, name: str) -> None:
    """Not on trial, not while the last one waits, not what was tried."""
    state = tmp_path / "data/slot"
    for folder in (state, tmp_path / "run", tmp_path / "update"):
        folder.mkdir(parents=True)
    if name == "trial":
        (tmp_path / "run/yamamori-slot").write_text("b trial vda\n")
    elif name == "fetched":
        (tmp_path / f"update/{DIGEST}.update").touch()
    else:
        (state / "tried").write_text(DIGEST + "\n")

    assert Bench(tmp_path, size_bytes=1000, wait_s=0.0).asked == []
