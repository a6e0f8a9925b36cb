"""Properties that only the SQLite queue has: durability and several processes."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from edge_agent.queue.base import MessageDraft, QueueFileError
from edge_agent.queue.file_lifecycle import QueueFile, ledger_writer, read_counters
from edge_agent.queue.schema import FORMAT
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import CounterDeltas
from spatial_mqtt.senml import MessageId

PUT_PROGRAM = """
import sys
from edge_agent.queue.base import MessageDraft, QueueFileError
from edge_agent.queue.file_lifecycle import ledger_writer
from edge_agent.queue.sqlite_queue import SqliteQueue
queue = SqliteQueue(sys.argv[1], "n1", "boot", 10_000_000)
while True:
    priority = 1 + queue.stats().put[1] % 5
    (put,) = queue.put([MessageDraft(priority, "/t", lambda i: str(i).encode())])
    print(put, flush=True)
"""


def open_queue(path: Path, machine_boot: str = "boot") -> SqliteQueue:
    return SqliteQueue(path, "n1", machine_boot, 10_000_000)


def draft(priority: int = 1) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: b"payload")


def test_kill_loses_no_message_that_was_put(tmp_path: Path) -> None:
    """A kill at any moment keeps every message whose id `put` returned."""
    path = tmp_path / "q.db"
    printed: list[str] = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", PUT_PROGRAM, str(path)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            printed += [process.stdout.readline().strip() for _ in range(40)]
            os.kill(process.pid, signal.SIGKILL)
            printed += [line.strip() for line in process.stdout if line.endswith("\n")]

    queue = open_queue(path)
    stored = {str(m.id) for m in queue.lease(100_000)}
    queue.close()

    assert set(printed) <= stored
    assert len(printed) == len(set(printed))


def test_leases_end_with_the_process(tmp_path: Path) -> None:
    """Leased messages are leased again after a restart; acknowledged ones are gone."""
    queue = open_queue(tmp_path / "q.db")
    queue.put([draft(), draft(), draft()])
    first, _second = queue.lease(2)
    queue.ack([first.seq])
    queue.close()

    again = open_queue(tmp_path / "q.db")
    remaining = [m.seq for m in again.lease(9)]
    again.close()

    assert remaining == [2, 3]


def test_boot_id_differs_after_each_start(tmp_path: Path) -> None:
    """A file that lost its log repeats sequence numbers, so the boot must differ."""
    boots = []
    for file, machine_boot in (
        ("a.db", "1"),
        ("a.db", "1"),
        ("a.db", "2"),
        ("b.db", "1"),
    ):
        queue = open_queue(tmp_path / file, machine_boot)
        boots.append(queue.boot)
        queue.close()

    assert len(set(boots)) == 4


def test_on_put_records_each_stored_message(tmp_path: Path) -> None:
    """The `on_put` hook gets the ids; a duplicate is not written again."""
    queue = open_queue(tmp_path / "q.db")
    queue.on_put = ledger_writer(tmp_path / "ledger")
    again = MessageDraft(2, "/t", lambda _id: b"", MessageId("x", "b", 7))
    (first,) = queue.put([draft(5)], {"name": "value"})
    queue.put([], {"name": "other"})
    queue.put([again, again])
    queue.close()

    assert (tmp_path / "ledger").read_text() == f"{first} 5\nx:b:7 2\n"


def test_two_processes_put_into_one_file(tmp_path: Path) -> None:
    """`edge-agent send` works while the agent runs: ids differ, all are leased."""
    agent, sender = open_queue(tmp_path / "q.db"), open_queue(tmp_path / "q.db")
    ids = agent.put([draft()]) + sender.put([draft(5)]) + agent.put([draft()])

    leased = [m.id for m in agent.lease(9)]
    agent.close()
    sender.close()

    assert sorted(leased) == sorted(i for i in ids if i)
    assert leased[0] == ids[1]


def test_damaged_file_is_kept_and_a_new_queue_is_opened(tmp_path: Path) -> None:
    """A node with a broken queue file continues to send its readings."""
    path = tmp_path / "q.db"
    path.write_bytes(b"this is not a database" * 100)

    queue = open_queue(path)
    put = queue.put([draft(5)])
    queue.close()

    assert put[0] is not None
    assert (tmp_path / "q.db.damaged-1").read_bytes().startswith(b"this is not")


def test_file_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """An older version would take its rows for damaged; a bit error is no format."""
    path = tmp_path / "q.db"
    queue = open_queue(path)
    queue.put([draft()])
    queue.close()
    assert path.read_bytes()[60:64] == bytes([FORMAT] * 4)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {0x01010101 * (FORMAT + 1)}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(
        QueueFileError, match=f"reads up to {FORMAT}; install the newer"
    ):
        open_queue(path)
    assert path.read_bytes() == before
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {0x01010141}")
    db.close()
    queue = open_queue(path)

    assert len(queue.lease(9)) == 1
    queue.close()


def test_known_ids_are_stored_as_ranges(tmp_path: Path) -> None:
    """The ids received from a node take one row when they are contiguous."""
    queue = open_queue(tmp_path / "q.db")
    for seq in (5, 1, 3, 2, 4, 9):
        queue.put([MessageDraft(1, "/t", lambda _id: b"", MessageId("x", "b", seq))])
    queue.close()

    rows = sqlite3.connect(tmp_path / "q.db").execute("SELECT low, high FROM taken")

    assert rows.fetchall() == [(1, 5), (9, 9)]


def test_message_evicted_by_another_process_is_counted_once(tmp_path: Path) -> None:
    """An eviction by another process of a message leased here is counted once."""
    agent = open_queue(tmp_path / "q.db")
    agent.put([draft(1), draft(1)])
    leased = agent.lease(1)
    sender = SqliteQueue(tmp_path / "q.db", "n1", "boot", 220)
    sender.put([draft(5), draft(5)])
    sender.close()
    agent.ack([m.seq for m in leased])
    agent.flush()
    depth = agent.stats().depth
    remaining = [m.priority for m in agent.lease(9)]
    agent.close()

    assert remaining == [5, 5]
    assert (depth[1].rows, depth[1].bytes, depth[5].rows) == (0, 0, 2)


def test_failed_transaction_changes_no_counters(tmp_path: Path) -> None:
    """State and stored bytes are as before."""
    store, _ = QueueFile(tmp_path / "q.db").open()
    before = store.stored_bytes()
    changes = CounterDeltas()
    changes.add_stored(1, 1, 100)

    def fail() -> None:
        with store.transaction():
            store.set_state({"name": "value"})
            store.apply_deltas(changes)
            raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        fail()

    assert store.get_state("name") is None
    assert store.stored_bytes() == before
    store.close()


@pytest.mark.parametrize("name", ["山 守", "a#b", "a?b", "a%41"])
def test_counters_are_read_from_any_path(tmp_path: Path, name: str) -> None:
    """SQLite takes the path as a URI, in which some characters have a meaning."""
    folder = tmp_path / name
    queue = SqliteQueue(folder / "q.db", "n1", "boot", 10**6)
    queue.put([MessageDraft(5, "/t", lambda _id: b"x")])
    queue.close()

    assert read_counters(folder / "q.db")[5]["rows"] == 1
    assert list(tmp_path.iterdir()) == [folder]
