"""Recovery of a damaged queue file: every message whose checksum matches is kept."""

import logging
import random
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    Durability,
    ExpiryPolicy,
    MessageDraft,
    QueuedMessage,
    QueueFileError,
    QueueStats,
)
from edge_agent.queue.file_lifecycle import QueueFile, read_counters
from edge_agent.queue.memory import make_spare
from edge_agent.queue.recovery import salvage
from edge_agent.queue.schema import check_integrity, connect, migrate
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import Store
from spatial_mqtt.senml import MessageId

COUNT = 400
WINDOW = Durability(window_s=3600.0)
PAGE = 4096


def open_queue(path: Path) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", 10_000_000, durability=COMMIT_EVERY_PUT)


def fill_queue(path: Path) -> dict[MessageId, QueuedMessage]:
    """Fill a queue of many pages, with long messages too; return its messages by id."""
    queue = open_queue(path)
    rng = random.Random(7)
    for number in range(COUNT):
        body = rng.randbytes(5000 if number % 50 == 0 else 200)
        queue.put([MessageDraft(1 + number % 5, f"/t/{number}", lambda _id, b=body: b)])
    queue.put([MessageDraft(1, "/t", lambda _id: b"", MessageId("other", "b", 3))])
    queue.put([], {"rain/tips": "12"})
    queue.ack([queue.lease()[0].seq])
    messages = {m.id: m for m in queue.lease(COUNT + 1)}
    queue.close()
    return messages


def read_messages(path: Path) -> dict[MessageId, QueuedMessage]:
    queue = open_queue(path)
    messages = {m.id: m for m in queue.lease(COUNT + 10)}
    queue.close()
    return messages


def truncate(raw: bytearray) -> bytearray:
    return raw[: len(raw) // 2]


def destroy_header(raw: bytearray) -> bytearray:
    return bytearray(b"\xff" * 100) + raw[100:]


def destroy_first_pages(raw: bytearray) -> bytearray:
    return bytearray(b"\xff" * PAGE * 2) + raw[PAGE * 2 :]


def flip_bits(raw: bytearray) -> bytearray:
    rng = random.Random(3)
    for page in range(1, len(raw) // PAGE, 4):
        for _ in range(20):
            raw[page * PAGE + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
    return raw


@pytest.mark.parametrize(
    ("damage", "at_least"),
    [
        (truncate, 0.3),
        (destroy_header, 0.9),
        (destroy_first_pages, 0.9),
        (flip_bits, 0.5),
    ],
)
def test_messages_with_a_matching_checksum_are_recovered(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytearray], bytearray],
    at_least: float,
) -> None:
    """Recovered messages keep id, sequence number and priority."""
    path = tmp_path / "q.db"
    before = fill_queue(path)
    path.write_bytes(damage(bytearray(path.read_bytes())))

    with caplog.at_level(logging.ERROR):
        after = read_messages(path)

    same = [
        i for i, m in after.items() if i in before and m.payload == before[i].payload
    ]
    assert len(same) >= at_least * len(before)
    assert "messages were saved" in caplog.text
    assert (tmp_path / "q.db.damaged-1").exists()
    assert all(
        after[i].seq == before[i].seq and after[i].priority == before[i].priority
        for i in same
        if after[i].topic == before[i].topic
    )


@pytest.mark.parametrize("where", ["", "-wal"])
def test_recovery_needs_little_memory(tmp_path: Path, where: str) -> None:
    """A queue may be larger than the memory that systemd allows the service."""
    path, killed = tmp_path / "q.db", tmp_path / "killed.db"
    queue = open_queue(path)
    with closing(connect(str(path))) as reader:
        if where:  # a reader keeps the log from being written into the file
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM state").fetchall()
        for number in range(20):
            body = random.Random(number).randbytes(900 if number % 2 else 3000)
            queue.put([MessageDraft(2, "/t", lambda _id, b=body: b)] * 100)  # type: ignore[misc]
        shutil.copy(path, killed)
        shutil.copy(f"{path}-wal", f"{killed}-wal")
    queue.close()
    if not where:
        shutil.copy(path, killed)
        Path(f"{killed}-wal").unlink()
    for file in {killed, Path(f"{killed}{where}")}:
        file.write_bytes(b"\xff" * 32 + file.read_bytes()[32:])

    tracemalloc.start()
    again = open_queue(killed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    count = again.stats().depth[2].rows
    again.close()

    assert count == 2000
    assert Path(f"{killed}.damaged-1{where}").stat().st_size > 5_000_000
    assert peak < 1_500_000


def test_missing_log_keeps_the_messages_of_the_file(tmp_path: Path) -> None:
    """The queue opens at its last checkpoint."""
    path = tmp_path / "q.db"
    fill_queue(path)
    writer = open_queue(path)
    writer.put([MessageDraft(5, "/t", lambda _id: b"in the log")])
    raw = path.read_bytes()
    writer.close()
    path.write_bytes(raw)
    Path(f"{path}-wal").unlink(missing_ok=True)

    assert len(read_messages(path)) >= COUNT - 1


@pytest.mark.parametrize("damage", [b"damage" * 20, b""])
def test_log_of_a_destroyed_file_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    """Its messages are recovered; of tables that did not change it has no page."""
    path = tmp_path / "q.db"
    open_queue(path).close()
    writer = open_queue(path)
    (put,) = writer.put([MessageDraft(5, "/t", lambda _id: b"in the log")], {"t": "4"})
    log = Path(f"{path}-wal").read_bytes()
    writer.close()
    path.write_bytes(damage)
    Path(f"{path}-wal").write_bytes(log)

    with closing(open_queue(path)) as queue:
        found, state = queue.lease()[0].id, queue.get_state("t")
    is_lost = f"state values of {path} are lost: levels" in caplog.text
    assert (found, state, is_lost) == (put, *((None, True) if damage else ("4", False)))


def test_new_ids_do_not_collide_with_recovered_ones(tmp_path: Path) -> None:
    """No message put later shares an id with one sent before."""
    path = tmp_path / "q.db"
    before = fill_queue(path)
    path.write_bytes(destroy_header(bytearray(path.read_bytes())))
    queue = open_queue(path)
    (put,) = queue.put([MessageDraft(1, "/t", lambda _id: b"new")])
    last = queue.lease(COUNT + 10)[-1]
    queue.close()

    assert put
    assert last.id == put
    assert put.boot not in {i.boot for i in before}
    assert put.seq > max(m.seq for m in before.values() if m.id.node == "n1")


def test_damaged_message_is_dropped_and_never_sent(tmp_path: Path) -> None:
    """One damaged row loses only that row."""
    path = tmp_path / "q.db"
    queue = open_queue(path)
    queue.put([
        MessageDraft(5, "/t", lambda _id: b"bad"),
        MessageDraft(5, "/t", lambda _id: b"good"),
    ])
    queue.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE message SET payload = X'00' WHERE seq = 1")
    db.close()
    queue = open_queue(path)
    left = [m.payload for m in queue.lease(9)]
    stats = queue.stats()
    queue.close()

    assert left == [b"good"]
    assert (stats.drop_reasons[5], stats.depth[5].rows) == ({"damaged": 1}, 1)


def test_repair_of_a_file_in_use_is_an_error(tmp_path: Path) -> None:
    """The file of a running agent is not replaced."""
    path = tmp_path / "q.db"
    agent = open_queue(path)
    queue_file = QueueFile(path)
    with pytest.raises(QueueFileError, match="another process uses it"):
        queue_file.repair()
    queue_file.close()
    agent.close()


def test_repair_keeps_messages_known_ids_and_state(tmp_path: Path) -> None:
    """The file is sound, so nothing may be lost."""
    path = tmp_path / "q.db"
    before = fill_queue(path)
    queue_file = QueueFile(path)
    saved, aside = queue_file.repair()
    queue_file.close()
    queue = open_queue(path)
    again = queue.put([
        MessageDraft(1, "/t", lambda _id: b"", MessageId("other", "b", 3))
    ])
    tips = queue.get_state("rain/tips")
    left = {m.id: m for m in queue.lease(COUNT + 1)}
    queue.close()

    assert (saved, left) == (len(before), before)
    assert (again, tips, aside.exists()) == ([None], "12", True)


def test_interrupted_repair_is_completed(tmp_path: Path) -> None:
    """A kill between the two renames leaves the recovered file as the queue."""
    path = tmp_path / "q.db"
    before = fill_queue(path)
    path.rename(f"{path}.salvaged")

    assert read_messages(path) == before


def test_damage_found_while_running_is_recovered_at_the_next_start(
    tmp_path: Path,
) -> None:
    """A large file is checked while it is in use, not at the start."""
    path = tmp_path / "queue.db"
    before = fill_queue(path)
    raw = bytearray(path.read_bytes())
    raw[PAGE * 5 : PAGE * 5 + 64] = b"\xff" * 64  # header of a page
    path.write_bytes(raw)
    queue_file = QueueFile(path)
    with pytest.raises(QueueFileError, match=r"queue\.db"):
        queue_file.check_whole_file()
    queue_file.close()
    assert Path(f"{path}.suspect").exists()

    after = read_messages(path)
    assert not Path(f"{path}.suspect").exists()
    assert list(tmp_path.glob("queue.db.damaged-*"))
    assert after.items() <= before.items()
    assert len(after) > 0.8 * COUNT


def test_integrity_check_that_times_out_can_be_repeated(tmp_path: Path) -> None:
    """The time of the check at open is bounded; an unfinished check returns False.

    Also if the time is over before SQLite has begun, as on a loaded machine.
    """
    path = tmp_path / "queue.db"
    open_queue(path).close()
    db = connect(str(path))
    rows = ((1, seq, "n", "b", seq, "/t", 0, b"x" * 50, None) for seq in range(300_000))
    db.execute("BEGIN")
    db.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.execute("COMMIT")

    assert check_integrity(db, 0.0) is False
    assert check_integrity(db, 0.005) is False
    assert check_integrity(db, 60.0) is True
    db.close()


@pytest.mark.parametrize("wrong", [b"\x83", b"\x7f"])
def test_message_with_a_damaged_key_hides_no_other(
    tmp_path: Path, wrong: bytes
) -> None:
    """A search stops at a key that is too large; SQLite reports the file as sound."""
    path = tmp_path / "queue.db"
    names = [b"message-%02d" % number for number in range(9)]
    queue = open_queue(path)
    queue.put([MessageDraft(5, "/1/2", lambda _id, n=n: n) for n in names])  # type: ignore[misc]
    queue.close()
    raw = bytearray(path.read_bytes())
    # A row begins with priority and sequence number, before the node of its id.
    at = raw.rindex(b"n1", 0, raw.index(b"message-04")) - 2
    assert raw[at] == 5
    raw[at : at + 1] = wrong
    path.write_bytes(raw)

    queue = open_queue(path)
    leased = [message.payload for message in queue.lease(20)]
    queue.close()
    assert set(names) - set(leased) == {b"message-04"}


def test_id_that_is_not_utf_8_does_not_prevent_opening(tmp_path: Path) -> None:
    """A damaged text in the table of known ids is skipped; messages are recovered."""
    path = tmp_path / "q.db"
    queue = open_queue(path)
    rng = random.Random(1)
    for number in range(100):
        body = rng.randbytes(300)
        queue.put([MessageDraft(1 + number % 5, "/t", lambda _id, b=body: b)])  # type: ignore[misc]
    queue.put([
        MessageDraft(1, "/t", lambda _id: b"", MessageId("neighbour-7", "b00t", 3))
    ])
    queue.close()
    raw = bytearray(path.read_bytes())
    at = raw.find(b"neighbour-7")
    assert at > 0
    while at >= 0:
        raw[at + 2] = 0xC6  # start of an incomplete UTF-8 sequence
        at = raw.find(b"neighbour-7", at)
    # Destroy the header of a leaf page of messages, so that recovery runs.
    leaves = [
        start
        for start in range(PAGE, len(raw), PAGE)
        if raw[start] == 0x0A and b"/t" in raw[start : start + PAGE]
    ]
    raw[leaves[1] : leaves[1] + 64] = b"\xff" * 64
    path.write_bytes(raw)

    assert len(read_messages(path)) > 60


def put_routine(queue: SqliteQueue, count: int) -> list[MessageId | None]:
    drafts = [
        MessageDraft(1 + n % 3, "/t", lambda _id: b"reading") for n in range(count)
    ]
    return [queue.put([draft])[0] for draft in drafts]


Damage = Callable[[sqlite3.Connection], object]


def kill_in_window(folder: Path, damage: Damage) -> Path:
    """Copy of a queue's files with messages in its journal only, then damaged."""
    queue = SqliteQueue(folder / "q.db", "n1", "boot", 10**7, durability=WINDOW)
    put_routine(queue, 40)
    queue.put([MessageDraft(5, "/t", lambda _id: b"alarm")])
    put_routine(queue, 7)
    assert queue._write_journal()  # noqa: SLF001 - what the end of a window does
    killed = folder / "killed"
    killed.mkdir()
    for file in folder.glob("q.db*"):
        if file.is_file():
            shutil.copy(file, killed / file.name)
    queue.close()
    with closing(connect(str(killed / "q.db"))) as db:
        damage(db)
        db.commit()
    return killed / "q.db"


def set_state(name: str, value: str) -> Damage:
    query = "UPDATE state SET value = ? WHERE name = ?"
    return lambda db: db.execute(query, (value, name))


@pytest.mark.parametrize(
    "damage",
    [
        set_state("queue/next_seq", "3"),
        set_state("queue/next_seq", "4\x004"),
        set_state("queue/block", "12 x 9"),
        set_state("queue/notes", "~"),
        set_state("queue/clock", "boot"),
        set_state("queue/lost_at_most", "-x"),
        lambda db: db.execute("DELETE FROM state"),
        lambda db: db.execute("UPDATE message SET seq = seq + 128 WHERE seq = 5"),
        lambda db: db.execute("UPDATE message SET seq = seq + (1 << 60) WHERE seq = 5"),
    ],
)
def test_queue_accepts_messages_after_damage_to_its_numbers(
    tmp_path: Path, damage: Damage
) -> None:
    """A number that a stored or journaled message has is never drawn again."""
    path = kill_in_window(tmp_path, damage)

    put_and_lease(path)
    stats, leased = put_and_lease(path)  # started again, as by systemd

    dropped = sum(stats.dropped.values())
    assert len(leased) + dropped == 48 + 2 * 201
    assert dropped <= 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE message SET born_ms = '' WHERE seq % 2",
        "UPDATE message SET born_ms = x'07' WHERE seq % 2",
        "UPDATE tally SET bytes = x'' WHERE priority = 1",
        "UPDATE tally SET bytes = 1 << 40 WHERE priority = 1",
        "UPDATE tally SET rows = -1 WHERE priority = 4",
        "UPDATE state SET value = x'3132' WHERE name = 'queue/next_seq'",
        "UPDATE taken SET high = ''",
        "INSERT INTO dropped VALUES (1, 'full', '')",
    ],
)
def test_damaged_number_that_sqlite_accepts_stops_nothing(
    tmp_path: Path, damage: str
) -> None:
    """SQLite stores any type in any column; most numbers have no checksum."""
    path = tmp_path / "q.db"
    expiry = ExpiryPolicy(lambda: 1000.0, dict.fromkeys(range(1, 6), 3600.0))
    known = MessageDraft(1, "/t", lambda _id: b"", MessageId("other", "b", 3))
    with closing(SqliteQueue(path, "n1", "boot", 10**6, expiry=expiry)) as queue:
        put_routine(queue, 9)
        queue.put([known])
    with closing(connect(str(path))) as db:
        db.execute(damage)

    with closing(SqliteQueue(path, "n1", "boot", 10**6, expiry=expiry)) as queue:
        new = [MessageDraft(5, "/t", lambda _id: b"alarm")]
        queue.put([*new, known._replace(id=MessageId("other", "b", 4))])
        assert queue.ages_s()[5] == 0.0
        queue.ack([message.seq for message in queue.lease(99)])
        stats = queue.stats()
    assert sum(stats.acked.values()) == 12
    assert {(depth.rows, depth.bytes) for depth in stats.depth.values()} == {(0, 0)}


def put_and_lease(path: Path) -> tuple[QueueStats, set[MessageId]]:
    """Put 201 messages and lease everything."""
    queue = SqliteQueue(path, "n1", "boot", 10**7, durability=WINDOW)
    new = put_routine(queue, 200)
    new += queue.put([MessageDraft(5, "/t", lambda _id: b"alarm")])
    leased = {message.id for message in queue.lease(1000)}
    stats = queue.stats()
    queue.close()

    assert set(new) <= leased
    return stats, leased


def kill_with_log(folder: Path, routine: bytes) -> tuple[Path, set[MessageId | None]]:
    """Copy of a queue's files as a kill leaves them, and the ids of its messages."""
    queue = open_queue(folder / "q.db")
    ids = set(queue.put([MessageDraft(1, "/t", lambda _id: routine)] * 150))
    ids |= set(queue.put([MessageDraft(5, "/t", lambda _id: b"alarm")] * 54))
    queue.put([], {"rain/tips": "12"})
    killed = folder / "killed"
    killed.mkdir()
    for file in folder.glob("q.db*"):
        shutil.copy(file, killed / file.name)
    queue.close()
    return killed / "q.db", ids


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_log_without_its_file_gives_every_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    """SQLite alone deletes the log beside an empty file, without an error."""
    path, ids = kill_with_log(tmp_path, b"short")
    log = Path(f"{path}-wal").read_bytes()
    damage(path)

    with closing(open_queue(path)) as queue:
        leased = {message.id for message in queue.lease(COUNT)}
        tips, dropped = queue.get_state("rain/tips"), queue.stats().dropped

    assert (leased, tips, sum(dropped.values())) == (ids, "12", 0)
    assert Path(f"{path}.damaged-1-wal").read_bytes() == log
    assert f"{path}.damaged-1 and {path}.damaged-1-wal" in caplog.text


def test_log_of_the_last_changes_gives_its_messages_and_counts_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages that were only in the file are lost, such as its first."""
    path, ids = kill_with_log(tmp_path, b"long" * 200)
    raw = Path(f"{path}-wal").read_bytes()
    end = 32
    while raw[end + 8 : end + 16] == raw[16:24]:  # salts since the last checkpoint
        end += 24 + PAGE
    Path(f"{path}-wal").write_bytes(raw[:end])
    empty(path)

    with closing(open_queue(path)) as queue:
        leased = {message.id for message in queue.lease(COUNT)}
        tips, stats = queue.get_state("rain/tips"), queue.stats()

    lost = sum(stats.dropped.values())
    assert leased < ids
    assert len(leased) >= 54
    assert (len(leased) + lost, tips) == (len(ids), "12")
    assert stats.depth[5].rows == 54
    assert {tuple(each) for each in stats.drop_reasons.values()} <= {(), ("damaged",)}
    assert f"at least {lost} messages of {path} are lost" in caplog.text


def test_log_without_its_file_is_repaired_by_hand(tmp_path: Path) -> None:
    """As by `edge-agent queue repair`."""
    path, ids = kill_with_log(tmp_path, b"short")
    path.unlink()
    with closing(QueueFile(path)) as queue_file:
        saved, aside = queue_file.repair()

    assert (saved, aside.exists()) == (len(ids), True)
    assert read_messages(path).keys() == ids


def test_emptied_file_without_a_log_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of no bytes is no new queue."""
    path = tmp_path / "q.db"
    empty(path)
    read_messages(path)

    assert f"queue file {path} is empty" in caplog.text


def test_counters_are_not_read_beside_a_log_without_its_file(tmp_path: Path) -> None:
    """SQLite would delete the log, also for a reader."""
    path, ids = kill_with_log(tmp_path, b"short")
    empty(path)
    with pytest.raises(QueueFileError, match="queue repair"):
        read_counters(path)

    assert read_messages(path).keys() == ids


def test_spare_queue_has_the_messages_of_a_log_without_its_file(
    tmp_path: Path,
) -> None:
    """On a disk that cannot be written, the log is read page by page."""
    path, ids = kill_with_log(tmp_path, b"short")
    path.unlink()
    log = Path(f"{path}-wal").read_bytes()
    spare = make_spare(path, tmp_path / "spare")

    assert read_messages(spare).keys() == ids
    assert (path.exists(), Path(f"{path}-wal").read_bytes()) == (False, log)


def test_damaged_counter_of_a_log_counts_no_messages_as_lost(tmp_path: Path) -> None:
    """Messages of 2**50 rows take more bytes than the counters have."""
    path, ids = kill_with_log(tmp_path, b"short")
    with closing(connect(str(path))) as db:
        db.execute("UPDATE tally SET rows = 1 << 50")
        log = Path(f"{path}-wal").read_bytes()
    Path(f"{path}-wal").write_bytes(log)
    empty(path)

    with closing(open_queue(path)) as queue:
        leased = {message.id for message in queue.lease(COUNT)}
        dropped = queue.stats().dropped

    assert (leased, sum(dropped.values())) == (ids, 0)


def test_messages_that_stay_on_the_disk_do_not_count_as_lost(tmp_path: Path) -> None:
    """A spare queue has space for a part of them."""
    path, _ = kill_with_log(tmp_path, b"short")
    path.unlink()
    spare = tmp_path / "spare.db"
    with closing(connect(str(spare))) as db:
        migrate(db)
        saved = salvage(path, Store(spare, db), 3000)
    with closing(open_queue(spare)) as queue:
        dropped = queue.stats().dropped

    assert saved == 3000 // 107  # each once
    assert sum(dropped.values()) == 0
