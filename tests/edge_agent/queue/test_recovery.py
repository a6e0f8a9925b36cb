"""What a damaged file gives back: every message whose checksum still matches."""

import logging
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.queue.base import (
    COMMIT_EVERY_PUT,
    MessageDraft,
    QueuedMessage,
    QueueFileError,
)
from edge_agent.queue.file_lifecycle import QueueFile
from edge_agent.queue.schema import check_integrity, connect
from edge_agent.queue.sqlite_queue import SqliteQueue
from spatial_mqtt.senml import MessageId

COUNT = 400
PAGE = 4096


def open_queue(path: Path) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", 10_000_000, durability=COMMIT_EVERY_PUT)


def filled(path: Path) -> dict[MessageId, QueuedMessage]:
    """A queue of many pages, with long messages too; its messages by id."""
    queue = open_queue(path)
    chance = random.Random(7)
    for number in range(COUNT):
        body = chance.randbytes(5000 if number % 50 == 0 else 200)
        queue.put([MessageDraft(1 + number % 5, f"/t/{number}", lambda _id, b=body: b)])
    queue.put([MessageDraft(1, "/t", lambda _id: b"", MessageId("other", "b", 3))])
    queue.put([], {"rain/tips": "12"})
    queue.ack([queue.lease()[0].seq])
    held = {m.id: m for m in queue.lease(COUNT + 1)}
    queue.close()
    return held


def reopened(path: Path) -> dict[MessageId, QueuedMessage]:
    queue = open_queue(path)
    held = {m.id: m for m in queue.lease(COUNT + 10)}
    queue.close()
    return held


def truncated(raw: bytearray) -> bytearray:
    return raw[: len(raw) // 2]


def without_header(raw: bytearray) -> bytearray:
    return bytearray(b"\xff" * 100) + raw[100:]


def without_first_pages(raw: bytearray) -> bytearray:
    return bytearray(b"\xff" * PAGE * 2) + raw[PAGE * 2 :]


def flipped(raw: bytearray) -> bytearray:
    chance = random.Random(3)
    for page in range(1, len(raw) // PAGE, 4):
        for _ in range(20):
            raw[page * PAGE + chance.randrange(PAGE)] ^= 1 << chance.randrange(8)
    return raw


@pytest.mark.parametrize(
    ("damage", "at_least"),
    [
        (truncated, 0.3),
        (without_header, 0.9),
        (without_first_pages, 0.9),
        (flipped, 0.5),
    ],
)
def test_damaged_file_gives_back_what_matches_its_checksum(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytearray], bytearray],
    at_least: float,
) -> None:
    """Saved messages are exactly as they were, with id, number and priority."""
    path = tmp_path / "q.db"
    before = filled(path)
    path.write_bytes(damage(bytearray(path.read_bytes())))

    with caplog.at_level(logging.ERROR):
        after = reopened(path)

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


def test_missing_log_leaves_what_the_file_has(tmp_path: Path) -> None:
    """The queue opens as of its last checkpoint, and goes on."""
    path = tmp_path / "q.db"
    filled(path)
    writer = open_queue(path)
    writer.put([MessageDraft(5, "/t", lambda _id: b"in the log")])
    raw = path.read_bytes()
    writer.close()
    path.write_bytes(raw)
    Path(f"{path}-wal").unlink(missing_ok=True)

    assert len(reopened(path)) >= COUNT - 1


def test_log_beside_a_destroyed_file_is_read(tmp_path: Path) -> None:
    """What was only in the log when the file's header was lost is saved."""
    path = tmp_path / "q.db"
    writer = open_queue(path)
    (put,) = writer.put([MessageDraft(5, "/t", lambda _id: b"in the log")])
    log = Path(f"{path}-wal").read_bytes()
    writer.close()
    path.write_bytes(b"\xff" * 100)
    Path(f"{path}-wal").write_bytes(log)

    assert put in reopened(path)


def test_new_numbers_are_above_and_new_ids_beside_the_saved(tmp_path: Path) -> None:
    """Nothing put later shares an id with anything sent before."""
    path = tmp_path / "q.db"
    before = filled(path)
    path.write_bytes(without_header(bytearray(path.read_bytes())))
    queue = open_queue(path)
    (put,) = queue.put([MessageDraft(1, "/t", lambda _id: b"new")])
    last = queue.lease(COUNT + 10)[-1]
    queue.close()

    assert put
    assert last.id == put
    assert put.boot not in {i.boot for i in before}
    assert put.seq > max(m.seq for m in before.values() if m.id.node == "n1")


def test_damaged_message_is_dropped_and_never_sent(tmp_path: Path) -> None:
    """One bad row costs that row."""
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


def test_damage_beside_another_process_is_an_error(tmp_path: Path) -> None:
    """Nobody pulls the file from under a running agent."""
    path = tmp_path / "q.db"
    agent = open_queue(path)
    place = QueueFile(path)
    with pytest.raises(QueueFileError, match="another process uses it"):
        place.repair()
    place.close()
    agent.close()


def test_repair_keeps_messages_taken_ids_and_values(tmp_path: Path) -> None:
    """Repairing a sound file loses nothing."""
    path = tmp_path / "q.db"
    before = filled(path)
    place = QueueFile(path)
    saved, aside = place.repair()
    place.close()
    queue = open_queue(path)
    again = queue.put([
        MessageDraft(1, "/t", lambda _id: b"", MessageId("other", "b", 3))
    ])
    tips = queue.get_state("rain/tips")
    left = {m.id: m for m in queue.lease(COUNT + 1)}
    queue.close()

    assert (saved, left) == (len(before), before)
    assert (again, tips, aside.exists()) == ([None], "12", True)


def test_repair_that_was_killed_is_finished(tmp_path: Path) -> None:
    """Between the two renames, the salvaged file is the queue."""
    path = tmp_path / "q.db"
    before = filled(path)
    path.rename(f"{path}.salvaged")

    assert reopened(path) == before


def test_damage_found_while_running_is_salvaged_at_the_next_start(
    tmp_path: Path,
) -> None:
    """A file of a million messages is looked at while it is used, not before."""
    path = tmp_path / "queue.db"
    before = filled(path)
    raw = bytearray(path.read_bytes())
    raw[PAGE * 5 : PAGE * 5 + 64] = b"\xff" * 64  # the head of a page
    path.write_bytes(raw)
    place = QueueFile(path)
    with pytest.raises(QueueFileError, match=r"queue\.db"):
        place.check_whole_file()
    place.close()
    assert Path(f"{path}.suspect").exists()

    after = reopened(path)
    assert not Path(f"{path}.suspect").exists()
    assert list(tmp_path.glob("queue.db.damaged-*"))
    assert after.items() <= before.items()
    assert len(after) > 0.8 * COUNT


def test_look_that_takes_too_long_goes_on_later(tmp_path: Path) -> None:
    """The opening is bounded; the look is not given up."""
    path = tmp_path / "queue.db"
    open_queue(path).close()
    db = connect(str(path))
    rows = ((1, seq, "n", "b", seq, "/t", 0, b"x" * 50, None) for seq in range(300_000))
    db.execute("BEGIN")
    db.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.execute("COMMIT")

    assert check_integrity(db, 0.005) is False
    assert check_integrity(db, 60.0) is True
    db.close()


@pytest.mark.parametrize("wrong", [b"\x83", b"\x7f"])
def test_message_whose_key_is_damaged_hides_no_other(
    tmp_path: Path, wrong: bytes
) -> None:
    """A search ends at a key that is too large; SQLite itself calls the file sound."""
    path = tmp_path / "queue.db"
    names = [b"message-%02d" % number for number in range(9)]
    queue = open_queue(path)
    queue.put([MessageDraft(5, "/1/2", lambda _id, n=n: n) for n in names])  # type: ignore[misc]
    queue.close()
    raw = bytearray(path.read_bytes())
    # A row's values begin with priority and number, before the node of its id.
    at = raw.rindex(b"n1", 0, raw.index(b"message-04")) - 2
    assert raw[at] == 5
    raw[at : at + 1] = wrong
    path.write_bytes(raw)

    queue = open_queue(path)
    leased = [message.payload for message in queue.lease(20)]
    queue.close()
    assert set(names) - set(leased) == {b"message-04"}


def test_id_that_is_not_utf_8_does_not_stop_the_start(tmp_path: Path) -> None:
    """A damaged text in the table of known ids is skipped; the messages are saved."""
    path = tmp_path / "q.db"
    queue = open_queue(path)
    chance = random.Random(1)
    for number in range(100):
        body = chance.randbytes(300)
        queue.put([MessageDraft(1 + number % 5, "/t", lambda _id, b=body: b)])  # type: ignore[misc]
    queue.put([
        MessageDraft(1, "/t", lambda _id: b"", MessageId("neighbour-7", "b00t", 3))
    ])
    queue.close()
    raw = bytearray(path.read_bytes())
    at = raw.find(b"neighbour-7")
    assert at > 0
    while at >= 0:
        raw[at + 2] = 0xC6  # begins a character that does not end
        at = raw.find(b"neighbour-7", at)
    # A leaf page of messages without its head, so that the file is salvaged.
    leaves = [
        start
        for start in range(PAGE, len(raw), PAGE)
        if raw[start] == 0x0A and b"/t" in raw[start : start + PAGE]
    ]
    raw[leaves[1] : leaves[1] + 64] = b"\xff" * 64
    path.write_bytes(raw)

    assert len(reopened(path)) > 60
