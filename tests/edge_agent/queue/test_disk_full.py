"""A full disk: alarms are still stored, and messages are still delivered."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edge_agent.app import HELD_BYTES
from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    COMMIT_PUTS_DEFER_ACKS,
    Durability,
    MessageDraft,
    QueueDiskFullError,
    QueueFileError,
)
from edge_agent.queue.disk_reserve import commit_removals
from edge_agent.queue.memory import open_or_spare
from edge_agent.queue.sqlite_queue import SqliteQueue
from spatial_mqtt.senml import MessageId


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs of 2 MiB, or of another size; needs root."""
    size = getattr(request, "param", "2m")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(tmp_path)]
    if os.getuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def draft(priority: int, size: int = 1000) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: os.urandom(size))


def fill(
    queue: SqliteQueue, limit: int = 20_000, *, priority: int = 2, size: int = 1000
) -> int:
    """Put messages until the disk is full; return their number."""
    for number in range(limit):
        try:
            queue.put([draft(priority, size)])
        except QueueDiskFullError:
            return number
    raise AssertionError("the disk was never full")


def fill_disk(folder: Path) -> Path:
    """Let another program fill the disk; return its file."""
    path = folder / "rest"
    filler = path.open("ab", buffering=0)
    try:
        while filler.write(b"x" * 512):
            pass
    except OSError:
        filler.close()
    return path


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


def test_readings_beside_an_alarm_do_not_use_the_reserve(small_disk: Path) -> None:
    """A gateway then stores the messages of its batch one by one, alarms first."""
    queue = SqliteQueue(small_disk / "q.db", "n1", "b", 10**8)
    fill(queue)
    for _ in range(2):  # with the reserve, and without it
        with pytest.raises(QueueDiskFullError, match="disk is full"):
            queue.put([draft(5, 200), *(draft(1) for _ in range(200))])
        queue.put([draft(5, 200)])
    for _ in range(400):
        queue.put([draft(5, 200)])
    rows = {p: depth.rows for p, depth in queue.stats().depth.items()}
    queue.close()

    assert (rows[1], rows[5]) == (0, 402)


def test_pending_readings_leave_the_reserve_to_alarms(small_disk: Path) -> None:
    """An alarm takes along those that are pending; no others follow."""
    durability = Durability(window_s=3600.0)
    queue = SqliteQueue(small_disk / "q.db", "n1", "b", 10**8, durability=durability)
    queue.put([draft(5)])
    for _ in range(durability.max_pending - 1):
        queue.put([draft(2)])
    fill_disk(small_disk)
    for _ in range(1000):
        queue.put([draft(5, 200)])
    with pytest.raises(QueueDiskFullError, match="disk is full"):
        queue.put([draft(2)])
    rows = {p: depth.rows for p, depth in queue.stats().depth.items()}
    queue.close()

    assert (rows[2], rows[5]) == (durability.max_pending - 1, 1001)


@pytest.mark.parametrize("size", [200, 800, 1000, 3000])
def test_alarm_takes_the_messages_held_in_memory_along(
    small_disk: Path, size: int
) -> None:
    """As many as a node may hold when its disk is full."""
    path = small_disk / "q.db"
    durability = Durability(window_s=3600.0, held_bytes=HELD_BYTES)
    queue = SqliteQueue(path, "n1", "b", 10**8, durability=durability)
    for _ in range(50):
        queue.put([draft(2)])
    queue.flush()
    fill_disk(small_disk)
    while not queue.stats().dropped[4]:
        queue.put([draft(4, size)])
    count = queue.stats().depth[4].rows
    alarms = [queue.put([draft(5, 200)])[0] for _ in range(3)]
    other = SqliteQueue(path, "n1", "b", 10**8)  # sees what a kill now would leave
    rows = [other.stats().depth[p].rows for p in (4, 5)]
    other.close()
    queue.close()

    assert None not in alarms
    assert rows == [count, 3]


@pytest.mark.parametrize(
    "durability",
    [COMMIT_EVERY_PUT, COMMIT_PUTS_DEFER_ACKS, Durability(window_s=3600.0)],
)
@pytest.mark.parametrize("readings", [0, pytest.param(20_000, marks=pytest.mark.long)])
def test_removal_makes_room_for_alarms_while_the_disk_stays_full(
    small_disk: Path, durability: Durability, readings: int
) -> None:
    """Once the reserve is used up, only what was delivered makes room."""
    queue = SqliteQueue(small_disk / "q.db", "n1", "b", 10**8, durability=durability)
    queue.put([draft(5)])
    if readings:
        fill(queue, readings)
    counts = []
    for _ in range(4):
        fill_disk(small_disk)
        counts.append(fill(queue, priority=5, size=200))
        fill_disk(small_disk)
        leased = queue.lease(20_000)
        queue.ack([message.seq for message in leased])
        queue.flush()
    rows = {p: depth.rows for p, depth in queue.stats().depth.items()}
    stored = queue.lease(1)
    queue.close()

    assert min(counts) >= 300
    assert (sum(rows.values()), stored) == (0, [])


def test_messages_moved_on_a_full_disk_may_come_back(small_disk: Path) -> None:
    """Their ids are forgotten in the same transaction: a kill may follow it."""
    path = small_disk / "q.db"
    queue = SqliteQueue(path, "gw", "b", 10**8, durability=COMMIT_PUTS_DEFER_ACKS)
    foreign = [draft(2)._replace(id=MessageId("n1", "b1", seq)) for seq in range(60)]
    queue.put(foreign)
    fill_disk(small_disk)
    fill(queue, priority=5, size=200)
    leased = queue.lease(60, priority=2)
    queue.hand_over([message.seq for message in leased])
    commit_removals(queue._store, queue._reserve, queue._pending)  # noqa: SLF001
    other = SqliteQueue(path, "gw", "b", 10**8)  # sees what a kill now would leave
    rows = [other.stats().depth[p] for p in (2, 5)]
    back = other.put([each._replace(priority=5) for each in foreign[:9]])
    other.close()
    queue.close()

    assert len(leased) == 60
    assert (rows[0].rows, rows[0].bytes, rows[1].rows > 300) == (0, 0, True)
    assert back == [each.id for each in foreign[:9]]


def test_removals_may_use_the_space_for_alarms(small_disk: Path) -> None:
    """As beside a file of an earlier version, which has no space for removals."""
    path = small_disk / "q.db"
    queue = SqliteQueue(path, "n1", "b", 10**8)
    fill(queue)
    Path(f"{path}.removals").unlink()
    fill_disk(small_disk)
    leased = queue.lease(20_000)
    queue.ack([message.seq for message in leased])
    queue.put([draft(5)])
    rows = {p: depth.rows for p, depth in queue.stats().depth.items()}
    queue.close()

    assert (rows[2], rows[5]) == (0, 1)


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
    fill_disk(small_disk)
    queue = SqliteQueue(path, "n1", "b", 10**8)
    stored = len(queue.lease(count + 1))
    (alarm,) = queue.put([draft(5, 100)])
    queue.close()

    assert stored == count
    assert alarm


def destroy_header(queue: SqliteQueue, path: Path) -> None:
    queue.close()
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])


def lose_file(queue: SqliteQueue, path: Path) -> None:
    """As after a kill and an error of the file system: only the log is left."""
    log = shutil.copy(f"{path}-wal", path.with_name("kept"))
    queue.close()
    path.write_bytes(b"")
    Path(log).rename(f"{path}-wal")


@pytest.mark.parametrize("small_disk", ["8m"], indirect=True)
@pytest.mark.parametrize("damage", [destroy_header, lose_file])
def test_damaged_file_stays_until_there_is_space_for_its_copy(
    small_disk: Path, damage: Callable[[SqliteQueue, Path], None]
) -> None:
    """The copy's log fits, its checkpoint does not; a node goes on in memory."""
    path = small_disk / "q.db"
    queue = SqliteQueue(path, "n1", "b", 10**8)
    for _ in range(200):
        queue.put([draft(5, 300)])
    damage(queue, path)
    before = {file: file.read_bytes() for file in small_disk.glob("q.db*")}
    rest = small_disk / "rest"
    disk = os.statvfs(small_disk)
    rest.write_bytes(b"x" * (disk.f_bavail * disk.f_frsize - 200_000))

    with pytest.raises(QueueFileError, match="full"):
        SqliteQueue(path, "n1", "b", 10**8)
    assert {file: file.read_bytes() for file in small_disk.glob("q.db*")} == before
    with TemporaryDirectory() as memory:
        spare = open_or_spare(
            lambda file: SqliteQueue(
                file or path, "n1", "b", 10**7, durability=Durability(window_s=3600.0)
            ),
            path,
            Path(memory, "spare"),
        )
        assert spare.spare_for is not None
        assert len(spare.lease(201)) == 200
        spare.close()
    rest.unlink()
    queue = SqliteQueue(path, "n1", "b", 10**8)
    rows, leased = queue.stats().depth[5].rows, len(queue.lease(201))
    queue.close()

    assert (rows, leased) == (200, 200)


def test_reserve_stays_if_the_disk_is_not_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite reports an index that it cannot open as it reports a full disk."""
    path = tmp_path / "q.db"
    SqliteQueue(path, "n1", "b", 10**8).close()
    Path(f"{path}-shm").symlink_to(tmp_path / "missing" / "file")
    with pytest.raises(QueueFileError, match="unable to open"):
        SqliteQueue(path, "n1", "b", 10**8)

    assert Path(f"{path}.reserve").exists()
    assert Path(f"{path}.removals").exists()
    assert "full" not in caplog.text
