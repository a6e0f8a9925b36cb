"""A full disk: alarms are still stored, and messages are still delivered."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    Durability,
    MessageDraft,
    QueueDiskFullError,
)
from edge_agent.queue.sqlite_queue import SqliteQueue


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 2 MiB; needs root."""
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if os.getuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def draft(priority: int, size: int = 1000) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: os.urandom(size))


def fill(queue: SqliteQueue, limit: int = 20_000) -> int:
    """Put routine readings until the disk is full; return their number."""
    for number in range(limit):
        try:
            queue.put([draft(2)])
        except QueueDiskFullError:
            return number
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize("durability", [COMMIT_EVERY_PUT, Durability(window_s=0.05)])
def test_full_disk_stores_alarms_and_delivers_messages(
    small_disk: Path, durability: Durability
) -> None:
    """Low priorities are refused with a remedy; the reserve is for the top priority."""
    path = small_disk / "q.db"
    queue = SqliteQueue(path, "n1", "b", 10**8, durability=durability)
    fill(queue)
    with pytest.raises(QueueDiskFullError, match="disk is full; free space"):
        queue.put([draft(3)])
    alarms = [queue.put([draft(5, 200)])[0] for _ in range(20)]
    with pytest.raises(QueueDiskFullError, match="disk is full; free space"):
        queue.put([draft(1)])
    leased = queue.lease(100)
    queue.ack([m.seq for m in leased])
    again = queue.lease(1)
    queue.close()

    assert [m.id for m in leased[:20]] == alarms
    assert again[0].priority == 2


def test_reserve_is_restored_when_space_is_free_again(small_disk: Path) -> None:
    """The reserve file is allocated again once there is free space."""
    filler = small_disk / "log-of-somebody-else"
    filler.write_bytes(b"x" * 1_100_000)
    path = small_disk / "q.db"
    queue = SqliteQueue(path, "n1", "b", 10**8)
    fill(queue)
    queue.put([draft(5)])
    was_spent = not Path(f"{path}.reserve").exists()
    filler.unlink()
    queue.put([draft(1)])
    queue.close()

    assert was_spent
    assert Path(f"{path}.reserve").exists()


def test_queue_opens_on_a_full_disk(small_disk: Path) -> None:
    """A restart on a full disk finds everything that was put."""
    path = small_disk / "q.db"
    queue = SqliteQueue(path, "n1", "b", 10**8)
    count = fill(queue)
    queue.close()
    filler = (small_disk / "rest").open("wb", buffering=0)
    try:
        while filler.write(b"x" * 512):
            pass
    except OSError:
        filler.close()
    queue = SqliteQueue(path, "n1", "b", 10**8)
    stored = len(queue.lease(count + 1))
    (alarm,) = queue.put([draft(5, 100)])
    queue.close()

    assert stored == count
    assert alarm
