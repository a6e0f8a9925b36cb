"""Commit windows: which messages wait in memory, and what a kill can lose."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from conftest import wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.queue.base import COMMIT_EVERY_PUT, Durability, MessageDraft
from edge_agent.queue.file_lifecycle import QueueFile, read_counters
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import QueueRow
from edge_agent.queue.write_journal import (
    CommitThread,
    WriteJournal,
    journal_path,
    recover_journal,
)
from spatial_mqtt.senml import MessageId

HOUR = Durability(window_s=3600.0)

PUT_PROGRAM = """
import sys
from edge_agent.queue.base import MessageDraft
from edge_agent.queue.base import Durability
from edge_agent.queue.write_journal import (
    CommitThread,
    WriteJournal,
    journal_path,
    recover_journal,
)
from edge_agent.queue.file_lifecycle import QueueFile
from edge_agent.queue.store import QueueRow
from edge_agent.queue.sqlite_queue import SqliteQueue
queue = SqliteQueue(
    sys.argv[1], "n1", "boot", 10_000_000, durability=Durability(window_s=3600.0)
)
number = 0
while True:
    number += 1
    priority = 5 if number % 9 == 0 else 1 + number % 3
    (put,) = queue.put(
        [MessageDraft(priority, "/t", lambda i: str(i).encode())], {"last": str(number)}
    )
    print(put, priority, flush=True)
"""

WAIT_PROGRAM = (
    PUT_PROGRAM.partition("number = 0")[0].replace("3600.0", "0.02")
    + """
import time
queue.put([MessageDraft(5, "/t", lambda i: b"reading 0")])
for number in range(1, 8):
    put = lambda i, number=number: f"reading {number}".encode()
    queue.put([MessageDraft(1, "/t", put)], {"rain/tips": str(number)})
print("put", flush=True)
time.sleep(60)
"""
)


def open_queue(path: Path, durability: Durability = HOUR) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", 10_000_000, durability=durability)


def draft(priority: int = 1, id_: MessageId | None = None) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: b"payload", id_)


def rows_on_disk(path: Path) -> int:
    return sum(row["rows"] for row in read_counters(path).values())


def opened_block(path: Path, durability: Durability = HOUR) -> SqliteQueue:
    """A queue whose first block of sequence numbers is reserved."""
    queue = open_queue(path, durability)
    queue.put([draft()])
    return queue


def test_low_priority_waits_in_memory_until_close(tmp_path: Path) -> None:
    """Below the urgent priorities, `put` does not wait for the disk."""
    queue = opened_block(tmp_path / "q.db")
    queue.put([draft(3), draft(1)])
    before = rows_on_disk(tmp_path / "q.db")
    queue.close()

    assert (before, rows_on_disk(tmp_path / "q.db")) == (1, 3)


def test_urgent_put_commits_all_pending_messages(tmp_path: Path) -> None:
    """An urgent message is committed before `put` returns, with all pending ones."""
    queue = opened_block(tmp_path / "q.db")
    queue.put([draft(1)], {"rain/tips": "1"})
    queue.put([draft(4)], {"rain/tips": "2"})

    other = open_queue(tmp_path / "q.db", COMMIT_EVERY_PUT)
    tips, rows = other.get_state("rain/tips"), rows_on_disk(tmp_path / "q.db")
    other.close()
    queue.close()

    assert (tips, rows) == ("2", 3)


def test_later_state_replaces_one_that_was_pending(tmp_path: Path) -> None:
    """Whether the puts were committed together or one after the other."""
    queue = open_queue(tmp_path / "q.db")
    for first, second, is_flushed in (("1", "2", True), ("3", "4", False)):
        queue.put([draft()], {"rain": first})
        if is_flushed:
            queue.flush()
        queue.put([draft(5)], {"rain": second})
        assert queue.get_state("rain") == second
    queue.put([draft(5)])
    queue.close()

    with closing(open_queue(tmp_path / "q.db")) as queue:
        assert queue.get_state("rain") == "4"


def test_message_with_an_id_is_committed_at_once(tmp_path: Path) -> None:
    """A message with an id was acknowledged elsewhere, so its put is committed."""
    queue = opened_block(tmp_path / "q.db")
    queue.put([draft(1, MessageId("other", "b", 1))])
    rows = rows_on_disk(tmp_path / "q.db")
    queue.close()

    assert rows == 2


def test_full_batch_is_committed_at_once(tmp_path: Path) -> None:
    """At most `max_pending` messages are at risk."""
    queue = opened_block(tmp_path / "q.db", Durability(window_s=3600.0, max_pending=5))
    for _ in range(5):
        queue.put([draft()])
    rows = rows_on_disk(tmp_path / "q.db")
    queue.close()

    assert rows == 6


def test_commit_window_ends_without_another_call(tmp_path: Path) -> None:
    """The committer's thread writes the journal without a further call.

    A kill leaves the file as it is; what the next start finds was on the disk.
    """
    path = tmp_path / "q.db"
    with subprocess.Popen(
        [sys.executable, "-c", WAIT_PROGRAM, str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        # Polls until the committer's thread has written; hangs if it never does.
        while journal_path(path).read_bytes().count(b"reading 7") == 0:
            pass
        os.kill(process.pid, signal.SIGKILL)
    between = rows_on_disk(path)
    queue = open_queue(path)
    stored = [m.payload.decode() for m in queue.lease(99)]
    tips = queue.get_state("rain/tips")
    queue.close()

    assert between == 1
    assert stored == [f"reading {number}" for number in range(8)]
    assert tips == "7"


def test_journal_entries_are_not_replayed_after_their_commit(tmp_path: Path) -> None:
    """Journal entries end in a commit, and an old entry is not replayed after it."""
    path = tmp_path / "q.db"
    queue = opened_block(path, Durability(window_s=0.001))
    while rows_on_disk(path) < 5:
        queue.put([draft()])
        time.sleep(0.003)
    put = queue.stats().put[1]
    queue.close()
    again = open_queue(path)
    stored = len(again.lease(999))
    again.close()

    assert stored == put


def test_journal_entry_after_a_damaged_one_is_recovered(tmp_path: Path) -> None:
    """A half-written block loses that entry, not the following ones."""
    path = tmp_path / "q.db"
    opened_block(path).close()
    store, reserve = QueueFile(path).open()
    journal = WriteJournal(journal_path(path), 0)
    rows = [
        QueueRow(1, 900 + at, "n1", "b", 900 + at, "/t", 0, b"x" * 99).with_checksum()
        for at in range(3)
    ]
    for row in rows:
        assert journal.append([row], {"at": str(row.seq)})
    raw = bytearray(journal_path(path).read_bytes())
    raw[raw.index(b"x" * 99) + 5] ^= 1
    journal_path(path).write_bytes(raw)
    reserve.allocate()
    highest = recover_journal(store, journal_path(path))
    again = recover_journal(store, journal_path(path))
    found = [store.read_row(1, row.seq) for row in rows]
    store.close()

    assert (highest, again) == (902, 0)
    assert found == [None, rows[1], rows[2]]


@pytest.mark.parametrize("is_folder", [True, False])
def test_journal_that_cannot_be_read_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_folder: bool
) -> None:
    """Of a card with a read error, too: the queue and a new journal are used."""
    path = tmp_path / "q.db"
    opened_block(path).close()
    journal, aside = journal_path(path), tmp_path / "q.db.notes.unreadable"
    journal.rename(aside)  # an older one, which is replaced
    if is_folder:
        aside.unlink()
        journal.mkdir()
    else:
        journal.symlink_to("/proc/self/mem")  # a read is an I/O error
    queue = open_queue(path)
    queue.put([draft()])
    leased = len(queue.lease(9))
    queue.close()

    assert leased == 2
    assert journal.is_file()
    assert not journal.is_symlink()
    assert (aside.is_dir(), aside.is_symlink()) == (is_folder, not is_folder)
    assert f"journal {journal} cannot be read" in caplog.text


def test_messages_delivered_within_the_window_are_not_written(tmp_path: Path) -> None:
    """With the link up, routine readings do not grow the write-ahead log."""
    queue = opened_block(tmp_path / "q.db")
    queue.ack([m.seq for m in queue.lease()])
    queue.flush()
    size = (tmp_path / "q.db-wal").stat().st_size
    for _ in range(100):
        queue.put([draft()])
        queue.ack([m.seq for m in queue.lease()])
    queue.flush()
    stats = queue.stats()
    after = (tmp_path / "q.db-wal").stat().st_size
    queue.close()

    assert after == size
    assert (stats.put[1], stats.acked[1], stats.depth[1].bytes) == (101, 101, 0)


def test_deferred_acks_are_counted_at_once_and_deleted_at_close(
    tmp_path: Path,
) -> None:
    """Stats change with the ack; rows are deleted by the next commit."""
    queue = opened_block(tmp_path / "q.db")
    queue.put([draft(5), draft(5)])
    queue.ack([m.seq for m in queue.lease(3)])
    stored = queue.stats().depth
    before = rows_on_disk(tmp_path / "q.db")
    queue.close()

    assert {(d.rows, d.bytes) for d in stored.values()} == {(0, 0)}
    assert (before, rows_on_disk(tmp_path / "q.db")) == (3, 0)
    assert read_counters(tmp_path / "q.db")[5]["bytes"] == 0


def test_journal_is_replayed_when_the_log_was_lost(tmp_path: Path) -> None:
    """Entries of a later generation follow commits that were lost with the log."""
    path = tmp_path / "q.db"
    opened_block(path).close()
    row = QueueRow(1, 900, "n1", "b", 900, "/t", 0, b"reading").with_checksum()
    journal = WriteJournal(journal_path(path), 7)
    assert journal.append([row], {})
    journal.close()
    queue = open_queue(path)
    stored = [m.payload for m in queue.lease(9)]
    queue.close()

    assert stored == [b"payload", b"reading"]


def test_next_put_commits_pending_removals(tmp_path: Path) -> None:
    """A put and a delivery in turn cost one commit per turn, not two."""
    path = tmp_path / "q.db"
    queue = open_queue(path, Durability(window_s=0.0, removal_delay_s=3600.0))
    queue.put([draft(5)])
    queue.ack([m.seq for m in queue.lease()])
    between = (rows_on_disk(path), queue.stats().depth[5].rows)
    queue.put([draft(5), draft(5)])
    after = rows_on_disk(path)
    queue.close()

    assert (between, after) == ((1, 0), 2)


def test_removal_is_committed_without_another_put(tmp_path: Path) -> None:
    """Delivered messages leave the file without a further put."""
    queue = open_queue(
        tmp_path / "q.db", Durability(window_s=0.0, removal_delay_s=0.02)
    )
    queue.put([draft(5)])
    queue.ack([m.seq for m in queue.lease()])
    # Polls until the committer's thread has written; hangs if it never does.
    while rows_on_disk(tmp_path / "q.db") > 0:
        pass
    queue.close()


def test_removal_is_committed_while_the_journal_has_entries(tmp_path: Path) -> None:
    """A pending message of low priority does not delay the removal."""
    queue = open_queue(tmp_path / "q.db", Durability(window_s=0.02))
    queue.put([draft(5)])
    queue.put([draft(1)])
    queue.ack([m.seq for m in queue.lease()])
    # Polls until the committer's thread has written; hangs if it never does.
    while read_counters(tmp_path / "q.db")[5]["rows"]:
        pass
    queue.close()


class CloseAfterWindow(threading.Event):
    """Event of a commit thread that lets `close` run as the window ends."""

    def __init__(self, thread: CommitThread) -> None:
        super().__init__()
        self.closing = threading.Thread(target=thread.close, daemon=True)

    def wait(self, timeout: float | None = None) -> bool:
        was_set = super().wait(timeout)
        if not was_set:
            self.closing.start()
            wait_until(self.is_set)
            time.sleep(0.1)  # for the second event that `close` sets
        return was_set


def test_close_ends_while_a_window_ends() -> None:
    """A stop just before the commit begins: the thread that it joins must end."""
    commits = []
    thread = CommitThread(0.0, lambda: commits.append(1))
    stop = thread._stop = CloseAfterWindow(thread)  # noqa: SLF001 - forces the race
    thread.wake()
    wait_until(lambda: commits)
    stop.closing.join(10)

    assert not stop.closing.is_alive()


def test_zero_removal_delay_removes_at_once(tmp_path: Path) -> None:
    """For processes that share the file and need to see each delivery."""
    queue = open_queue(tmp_path / "q.db", Durability(window_s=0.0, removal_delay_s=0.0))
    queue.put([draft(5), draft(5)])
    queue.ack([m.seq for m in queue.lease()])
    rows = rows_on_disk(tmp_path / "q.db")
    queue.close()

    assert rows == 1


def test_kill_in_the_window_loses_only_low_priority_and_reuses_no_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Urgent messages survive; the loss is bounded and counted; ids stay unique."""
    path = tmp_path / "q.db"
    printed: list[tuple[str, int]] = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", PUT_PROGRAM, str(path)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            lines = [process.stdout.readline() for _ in range(301)]
            os.kill(process.pid, signal.SIGKILL)
            lines += [line for line in process.stdout if line.endswith("\n")]
        printed += [(i, int(p)) for i, p in (line.split() for line in lines)]

    with caplog.at_level(logging.WARNING):
        queue = open_queue(path)
    stored = {str(m.id) for m in queue.lease(100_000)}
    lost = [priority for id_, priority in printed if id_ not in stored]
    bound = queue.stats().max_lost
    queue.close()

    assert len(printed) == len({id_ for id_, _ in printed})
    assert set(lost) <= {1, 2, 3}
    assert len(lost) <= bound <= 150
    assert "killed inside its commit window" in caplog.text


@pytest.mark.parametrize("has_reserve", [True, False])
def test_failed_checkpoint_repeats_no_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_reserve: bool
) -> None:
    """The messages are stored by then: they must not be held in memory, too."""
    path = tmp_path / "q.db"
    queue = open_queue(path, Durability(window_s=3600.0, held_bytes=10**6))
    queue.put([draft(5)])
    if not has_reserve:  # as on a full disk: each commit restarts the log
        queue._reserve.is_allocated = False  # noqa: SLF001
        Path(f"{path}.reserve").unlink()
        Path(f"{path}.reserve").mkdir()
    queue._store._db.set_authorizer(refuse_checkpoints)  # noqa: SLF001
    body = b"x" * 1000
    for _ in range(300):
        queue.put([MessageDraft(5, "/t", lambda _id: body), draft(5)])
    queue.flush()
    stats, leased = queue.stats(), queue.lease(1000)
    queue.close()

    assert len({message.seq for message in leased}) == len(leased) == 601
    assert (stats.failure, stats.unstored) == (None, 0)
    assert caplog.text.count("has no checkpoint: ") == 1


def refuse_checkpoints(_action: int, name: str | None, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if name == "wal_checkpoint" else sqlite3.SQLITE_OK


def test_clean_close_counts_no_loss(tmp_path: Path) -> None:
    """Only a kill leaves a block open, which counts as a possible loss."""
    opened_block(tmp_path / "q.db").close()
    queue = open_queue(tmp_path / "q.db")
    lost = queue.stats().max_lost
    queue.close()

    assert lost == 0


def test_second_process_has_no_commit_window(tmp_path: Path) -> None:
    """A second process commits each put, in the order of its number."""
    agent = opened_block(tmp_path / "q.db")
    sender = open_queue(tmp_path / "q.db")
    sender.put([draft(1)])
    rows = rows_on_disk(tmp_path / "q.db")
    sender.close()
    agent.close()

    assert rows == 2


def test_own_block_below_a_foreign_row_is_still_leased(tmp_path: Path) -> None:
    """The read position is past the block; its rows are found all the same."""
    agent = opened_block(tmp_path / "q.db")
    sender = open_queue(tmp_path / "q.db", COMMIT_EVERY_PUT)
    sender.put([draft(1)])
    first = [m.seq for m in agent.lease(9)]
    agent.put([draft(1)])
    agent.flush()
    agent.put([draft(1)])
    agent.put([draft(5)])
    agent.put([draft(1)])
    rest = [(m.priority, m.seq) for m in agent.lease(9)]
    sender.close()
    agent.close()

    assert first == [1, 257]
    assert rest == [(5, 4), (1, 2), (1, 3), (1, 5)]


def test_order_is_kept_after_closed_blocks(tmp_path: Path) -> None:
    """A new process starts above every number that was reserved before."""
    opened_block(tmp_path / "q.db").close()
    queue = opened_block(tmp_path / "q.db")
    seqs = [m.seq for m in queue.lease(9)]
    queue.close()

    assert seqs == [1, 257]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "send"]), st.integers(1, 5)),
        st.tuples(st.sampled_from(["lease", "ack", "release"]), st.integers(1, 4)),
        st.tuples(st.sampled_from(["flush", "restart"]), st.just(0)),
    ),
    max_size=50,
)


class TwoProcessModel:
    """A queue with a commit window, one without on the same file, and a model of both.

    Attributes:
        waiting: Negated priority and sequence number of each waiting message.
        leased: The same for leased messages, by sequence number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.agent = self._agent()
        self.sender = open_queue(path, COMMIT_EVERY_PUT)
        self.waiting: set[tuple[int, int]] = set()
        self.leased: dict[int, tuple[int, int]] = {}

    def _agent(self) -> SqliteQueue:
        return open_queue(self.path, Durability(window_s=3600.0, max_pending=4))

    def put(self, priority: int) -> None:
        self._record(self.agent.put([draft(priority)]), priority)

    def send(self, priority: int) -> None:
        self._record(self.sender.put([draft(priority)]), priority)

    def _record(self, ids: list[MessageId | None], priority: int) -> None:
        assert ids[0]
        self.waiting.add((-priority, ids[0].seq))

    def lease(self, count: int) -> None:
        got = [(-m.priority, m.seq) for m in self.agent.lease(count)]
        assert got == sorted(self.waiting)[:count]
        self.leased.update({seq: (priority, seq) for priority, seq in got})
        self.waiting.difference_update(got)

    def ack(self, count: int) -> None:
        seqs = list(self.leased)[:count]
        self.agent.ack(seqs)
        for seq in seqs:
            del self.leased[seq]

    def release(self, count: int) -> None:
        seqs = list(self.leased)[:count]
        self.agent.release(seqs)
        self.waiting.update(self.leased.pop(seq) for seq in seqs)

    def flush(self, _count: int) -> None:
        self.agent.flush()

    def restart(self, _count: int) -> None:
        self.agent.close()
        self.agent = self._agent()
        self.waiting.update(self.leased.values())
        self.leased.clear()

    def close(self) -> None:
        self.agent.close()
        self.sender.close()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_any_sequence_of_two_processes_keeps_order_and_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Pending rows, blocks, a second process and restarts do not change the order."""
    model = TwoProcessModel(tmp_path_factory.mktemp("q") / "q.db")
    for action, number in steps:
        getattr(model, action)(number)
        depth = model.agent.stats().depth.values()
        stored = len(model.waiting) + len(model.leased)
        assert sum(d.rows for d in depth) == stored
    model.restart(0)
    model.lease(99)
    model.close()

    assert rows_on_disk(model.path) == len(model.leased)
