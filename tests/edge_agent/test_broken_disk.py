"""A node on a card that becomes read-only, as worn cards do: a real file system."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Broker, wait_until
from gpiozero import Device
from gpiozero.pins.mock import MockFactory
from programs import Client
from soak.disk import fill

from edge_agent import app, status
from edge_agent.config import parse_node_settings
from edge_agent.coordinator import Coordinator
from edge_agent.queue.base import (
    Durability,
    MessageDraft,
    QueueDiskFullError,
    QueueFileError,
)
from edge_agent.queue.file_lifecycle import read_counters
from edge_agent.queue.memory import open_or_spare
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.status import load_status
from spatial_mqtt.senml import MessageId, Pack, decode_pack

HELD = Durability(window_s=0.05, held_bytes=100_000)


class Card:
    """A card with an ext4 file system.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue = folder / "yamamori" / "queue.db"

    def fail(self) -> None:
        """Let the kernel make it read-only, as after an error of the card."""
        command = ["mount", "-o", "remount,abort", str(self.folder)]
        subprocess.run(command, check=True)
        with pytest.raises(OSError, match="Read-only"):
            (self.folder / "probe").touch()

    def content(self) -> dict[str, bytes]:
        """Its files, but for the locks."""
        files = self.queue.parent.iterdir()
        return {file.name: file.read_bytes() for file in files}


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    """A card on a loop device; needs root."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a card")
    image, folder = tmp_path / "card.img", tmp_path / "card"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], check=False).returncode == 0
    command = ["mount", "-o", "loop,errors=remount-ro", str(image), str(folder)]
    if not made or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("no loop device or no ext4 on this machine")
    yield Card(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def draft(priority: int, size: int = 200) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: os.urandom(size))


def open_queue(path: Path, durability: Durability = HELD) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", 10**7, durability=durability)


def put(queue: SqliteQueue, *priorities: int) -> list[MessageId]:
    ids = [queue.put([draft(priority)])[0] for priority in priorities]
    return [each for each in ids if each is not None]


def lease_all(queue: SqliteQueue) -> list[MessageId]:
    return [message.id for message in queue.lease(10_000)]


@pytest.mark.parametrize("window_s", [0.05, 0.0])
def test_messages_stay_in_memory_while_the_card_is_read_only(
    card: Card, window_s: float
) -> None:
    """Urgent ones first; each is leased once, stored or not."""
    queue = open_queue(card.queue, Durability(window_s=window_s, held_bytes=100_000))
    stored = put(queue, 1, 5)
    card.fail()
    held = put(queue, 1, 4, 5, 3)
    leased = queue.lease(100)
    queue.ack([message.seq for message in leased])
    stats = queue.stats()
    late = put(queue, 5)

    assert [m.id for m in leased] == [
        stored[1], held[2], held[1], held[3], stored[0], held[0]
    ]  # fmt: skip
    assert stats.unstored == 4
    assert stats.failure is not None
    assert lease_all(queue) == late
    queue.close()


@pytest.mark.parametrize("has_urgent", [True, False])
def test_full_card_that_becomes_read_only_takes_routine_messages_in_memory(
    card: Card, has_urgent: bool
) -> None:
    """Also if no urgent message shows the failure; a full card refuses them."""
    queue = open_queue(card.queue)
    fill(card.folder)
    stored = put(queue, *[5] * 20)
    with pytest.raises(QueueDiskFullError, match="disk is full; free space"):
        put(queue, 3)
    card.fail()
    held = put(queue, *([4] if has_urgent else []), 3, 1)
    stats = queue.stats()

    assert stats.failure is not None
    assert "disk I/O error" in stats.failure
    assert stats.unstored == len(held)
    assert lease_all(queue) == [*stored, *held]
    queue.close()


def test_urgent_messages_take_the_place_of_others_in_memory(card: Card) -> None:
    """And of older ones as urgent; what is dropped or refused is counted."""
    queue = open_queue(card.queue, Durability(window_s=60.0, held_bytes=3000))
    card.fail()
    put(queue, 5)
    put(queue, *[3] * 8)
    kept = put(queue, *[4] * 5)
    stats = queue.stats()
    newest = put(queue, *[4] * 9)
    dropped = queue.stats().dropped[4]
    first, *rest = queue.lease(100)
    with pytest.raises(QueueFileError, match="disk I/O error"):
        put(queue, 5)  # all the others are leased

    assert stats.dropped[3] > 0
    assert first.priority == 5
    assert dropped > 0
    assert [m.id for m in rest] == [*kept, *newest][dropped:]
    assert (queue.stats().dropped[5], queue.stats().depth[5].rows) == (1, 1)
    queue.close()


def test_held_messages_are_stored_when_the_file_can_be_written_again(
    tmp_path: Path,
) -> None:
    """More than the numbers that were reserved; no number is used twice."""
    path = tmp_path / "queue.db"
    queue = open_queue(path)
    put(queue, 5)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    held = queue.put([draft(5, 10) for _ in range(300)])
    other.execute("ROLLBACK")
    other.close()
    wait_until(lambda: read_counters(path)[5]["rows"] == 301)
    sender = open_queue(path, Durability(window_s=0.0))
    put(sender, 5)
    leased = queue.lease(1000)

    assert queue.stats().failure is None
    assert [m.id for m in leased[1:301]] == held
    assert len({m.seq for m in leased}) == 302
    sender.close()
    queue.close()
    again = open_queue(path)
    put(again, 5)
    assert len(lease_all(again)) == 303
    again.close()


def fill_and_die(path: Path, sent: int) -> None:
    """A process that stores messages, and a state in its journal, and is killed."""
    child = os.fork()
    if child == 0:
        queue = open_queue(path, Durability(window_s=0.05, held_bytes=1000))
        put(queue, 5, 4, 2)
        queue.ack([message.seq for message in queue.lease(sent)])
        queue.put([draft(5)], {"triage": "old"})
        queue.put([draft(1)], {"triage": "new"})
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.parametrize("lost", ["", "-shm"])
def test_stored_messages_are_sent_from_a_card_that_is_read_only_at_the_start(
    card: Card, tmp_path: Path, lost: str
) -> None:
    """Nothing on the card changes; what its journal has counts, too."""
    fill_and_die(card.queue, sent=1)
    if lost:
        Path(f"{card.queue}{lost}").unlink()
    card.fail()
    before = card.content()
    queue = open_or_spare(
        lambda spare: open_queue(spare or card.queue), card.queue, tmp_path / "memory"
    )
    priorities = [m.priority for m in queue.lease(100)]
    late = put(queue, 1, 5)

    assert priorities == ([5, 4, 2, 1] if not lost else [5, 5, 4, 2, 1])
    assert queue.get_state("triage") == "new"
    assert lease_all(queue) == late[::-1]
    assert "Read-only" in str(queue.stats().failure)
    assert queue.stats().unstored >= 2
    assert card.content() == before
    queue.close()


OPEN_AS_USER = """
import os, sys
from pathlib import Path
from edge_agent.queue.base import Durability
from edge_agent.status import format_disk_failure
from edge_agent.queue.memory import open_or_spare
from edge_agent.queue.sqlite_queue import SqliteQueue

path, memory = map(Path, sys.argv[1:])
# It loads modules, which another user may not read.
SqliteQueue(memory.with_name("first.db"), "n1", "boot", 10**7).close()
os.setuid(12345)
queue = open_or_spare(
    lambda spare: SqliteQueue(
        spare or path, "n1", "boot", 10**7, durability=Durability(window_s=60.0)
    ),
    path,
    memory,
)
print(format_disk_failure(queue.stats()))
queue.close()
"""


WRONG_PATHS = [
    "missing", "folder", "file", "folder of files", "all",
    "", ".owner", "-wal", "-shm", "-wal link", "-shm link",
]  # fmt: skip


def make_wrong(folder: Path, wrong: str) -> list[Path]:
    """Make a folder for a queue; return what is not wrong in it."""
    if wrong == "file":
        folder.touch()
    elif wrong != "missing":
        folder.mkdir()
    if wrong in {"missing", "folder", "file"}:
        return []
    path = folder / "queue.db"
    open_queue(path).close()
    if wrong == "folder of files":  # SQLite cannot make its log
        return list(folder.iterdir())
    if wrong == "all":  # made by a command that was run as root
        return [folder]
    suffix, _, kind = wrong.partition(" ")
    other = Path(f"{path}{suffix}")
    if kind == "link":
        other.symlink_to(folder / "missing" / "file")
    else:
        other.touch()
    return [folder, *(each for each in folder.iterdir() if each != other)]


@pytest.mark.skipif(os.getuid() != 0, reason="changes the user, which needs root")
@pytest.mark.parametrize("wrong", WRONG_PATHS)
def test_wrong_path_is_not_taken_for_a_broken_card(wrong: str) -> None:
    """Messages stay in memory too, but another card would not help."""
    with tempfile.TemporaryDirectory() as there:
        place = Path(there)
        place.chmod(0o755)
        folder, memory = place / "data", place / "run"
        memory.mkdir()
        for each in [memory, *make_wrong(folder, wrong)]:
            os.chown(each, 12345, 12345)
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AS_USER, folder / "queue.db", memory / "q"],
            capture_output=True,
            text=True,
            check=True,
        )

    remedy = "queue.path must be in a folder that user 12345 may write"
    assert done.stdout.startswith("queue.path cannot be written, 0 messages in memory")
    assert f"queue file {folder}/queue.db cannot be used: " in done.stdout
    assert remedy in done.stdout
    assert remedy in done.stderr
    assert "SD card" not in done.stdout + done.stderr
    assert "its disk is full" not in done.stderr


@pytest.mark.parametrize("is_ours", [True, False])
def test_folder_that_the_unit_may_not_write_is_not_a_broken_card(
    card: Card, tmp_path: Path, is_ours: bool
) -> None:
    """For a service all folders but its own are read-only."""
    card.fail()
    state = card.folder if is_ours else tmp_path / "state"
    path = card.folder / "queue.db"
    queue = open_or_spare(
        lambda spare: open_queue(spare or path), path, tmp_path / "memory", state
    )
    text = status.format_disk_failure(queue.stats()) or ""
    queue.close()

    assert ("replace the SD card" in text) == is_ours
    assert (f"queue.path must be below {state}" in text) != is_ours


@pytest.mark.parametrize("name", ["", "."])
def test_path_that_is_a_folder_is_not_a_broken_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither full nor broken: the settings are to be corrected; the node runs."""
    monkeypatch.chdir(tmp_path)
    path = Path(name) if name else tmp_path
    queue = open_or_spare(
        lambda spare: open_queue(spare or path), path, tmp_path / "memory"
    )
    text = status.format_disk_failure(queue.stats()) or ""
    sent = put(queue, 5)
    leased = lease_all(queue)
    queue.close()

    assert "it is a folder" in text
    assert "queue.path must be in a folder" in text
    assert leased == sent
    assert list(tmp_path.iterdir()) == [tmp_path / "memory"]


@pytest.mark.parametrize("is_folder", [True, False])
def test_lock_of_the_owner_that_cannot_be_opened_does_not_end_the_node(
    tmp_path: Path, is_folder: bool
) -> None:
    """The stored messages are sent from memory, as with another file of the queue."""
    path, lock = tmp_path / "queue.db", tmp_path / "queue.db.owner"
    queue = open_queue(path)
    stored = put(queue, 5)
    queue.close()
    lock.unlink()
    lock.mkdir() if is_folder else lock.symlink_to(tmp_path / "x")
    spare = open_or_spare(
        lambda spare: open_queue(spare or path), path, tmp_path / "memory"
    )
    text = status.format_disk_failure(spare.stats()) or ""
    leased = lease_all(spare)
    spare.close()

    assert leased == stored
    assert f"'{lock}'" in text
    assert "queue.path must be in a folder" in text


def test_file_that_another_program_uses_is_waited_for(tmp_path: Path) -> None:
    """It is no failure of the disk: a spare queue would hide its messages."""
    path = tmp_path / "queue.db"
    open_queue(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(QueueFileError, match="locked"):
        open_or_spare(
            lambda spare: open_queue(spare or path), path, tmp_path / "memory"
        )
    other.close()


class Node:
    """A whole node with a siren and a cut wire, its broker, and who listens there."""

    def __init__(self, card: Card, broker: Broker) -> None:
        self._settings = parse_node_settings({
            "node": {"id": "n", "latitude": 33.5, "longitude": 133.5},
            "uplink": {"gateway": broker.url},
            "queue": {"path": str(card.queue)},
            "alarm": [{"name": "siren", "pin": 5}],
            "sensor": [{"kind": "wire", "name": "span", "pin": 17}],
        })
        self._client = Client(broker.endpoint, "listener", "/forward/#")

    def build(self) -> Coordinator:
        Device.pin_factory = MockFactory()
        return app.build_node(self._settings)[0]

    def packs(self, priority: int) -> list[Pack]:
        packs = [decode_pack(message.payload) for message in self._client.got]
        return [pack for pack in packs if pack.priority == priority]

    def disk_reports(self) -> list[Pack]:
        return [p for p in self.packs(3) if p.readings[0].name == "disk/health"]


@pytest.fixture
def node(
    card: Card,
    make_broker: Callable[[], Broker],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Node]:
    """A node that is not built yet."""
    monkeypatch.setattr(status, "FIRST_REPORT_S", 0.0)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    before = Device.pin_factory
    yield Node(card, make_broker())
    Device.pin_factory = before


def run_until_reported(node: Node, coordinator: Coordinator) -> None:
    thread = threading.Thread(target=coordinator.run, daemon=True)
    thread.start()
    alarms = coordinator.parts.alarms
    wait_until(lambda: alarms.summary() == "siren:on", timeout_s=15)
    wait_until(lambda: bool(node.packs(5)), timeout_s=15)
    wait_until(lambda: bool(node.disk_reports()), timeout_s=15)
    coordinator.update_status()
    coordinator.stop()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.broker
@pytest.mark.parametrize("is_running", [True, False])
def test_node_alarms_and_sends_with_a_read_only_card(
    card: Card, node: Node, tmp_path: Path, is_running: bool
) -> None:
    """The siren works, the message of the cut wire is sent, the card is reported."""
    coordinator = node.build()
    if not is_running:
        coordinator.parts.queue.close()
    card.fail()
    run_until_reported(node, coordinator if is_running else node.build())
    status, (report, *_) = load_status(tmp_path), node.disk_reports()

    assert report.why is not None
    assert "replace the SD card" in report.why
    assert "replace the SD card" in status["disk"]
    ids = [pack.id for priority in range(1, 6) for pack in node.packs(priority)]
    assert len(ids) == len(set(ids))
