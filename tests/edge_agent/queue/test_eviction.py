"""Eviction from a full queue, its counters, and expiry."""

import re
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.queue import eviction
from edge_agent.queue.base import Durability, ExpiryPolicy, MessageDraft, QueueFullError
from edge_agent.queue.eviction import Budget
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue

COST = 202


class FakeClock:
    """Settable monotonic clock in seconds."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def draft(priority: int) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: b"x" * 100)


def open_queue(path: Path, rows: float, budget: Budget | None = None) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", budget or Budget(int(rows * COST), 0.0))


def test_old_readings_are_thinned_before_other_evictions(tmp_path: Path) -> None:
    """Every second message of the oldest half is dropped; the newest stay."""
    queue = open_queue(tmp_path / "q.db", 8)
    for _ in range(8):
        queue.put([draft(1)])
    queue.put([draft(5), draft(5)])
    left = [m.seq for m in queue.lease(99)]
    stats = queue.stats()
    queue.close()

    assert left == [9, 10, 1, 3, 5, 6, 7, 8]
    assert stats.drop_reasons[1] == {"thinned": 2}
    assert stats.dropped[1] == 2


def test_queue_full_of_routine_readings_accepts_new_ones(tmp_path: Path) -> None:
    """A week without a link leaves sparse old readings and dense new ones."""
    queue = open_queue(tmp_path / "q.db", 20)
    for _ in range(200):
        queue.put([draft(1)])
    left = [m.seq for m in queue.lease(99)]
    dropped = queue.stats().drop_reasons[1]
    queue.close()

    assert (len(left), left[0], left[-1]) == (20, 1, 200)
    assert dropped == {"thinned": 180}


@pytest.mark.parametrize("priority", [5, 2])
def test_smaller_limit_is_reached_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priority: int
) -> None:
    """No put drops so much that an alarm waits; none lets the queue grow."""
    monkeypatch.setattr(eviction, "MAX_DROPS", 10)
    path = tmp_path / "q.db"
    queue = open_queue(path, 1000)
    queue.put([draft(2) for _ in range(200)])
    queue.close()
    queue = open_queue(path, 50)
    rows = []
    while not rows or rows[-1] > 50:
        queue.put([draft(priority), draft(priority)])
        rows.append(sum(depth.rows for depth in queue.stats().depth.values()))
    stats = queue.stats()
    queue.close()

    assert rows == [*range(192, 50, -8), 50]
    assert stats.depth[priority].rows == (2 * len(rows) if priority == 5 else 50)


def test_reserve_is_only_for_the_top_priority(tmp_path: Path) -> None:
    """An alarm uses the share that no other priority may fill; nothing is dropped."""
    queue = open_queue(tmp_path / "q.db", 0, Budget(10 * COST, top_share=0.2))
    queue.put([draft(4) for _ in range(8)])
    with pytest.raises(QueueFullError, match="queue is full"):
        queue.put([draft(4)])
    queue.put([draft(5), draft(5)])
    stats = queue.stats()
    queue.close()

    assert (stats.depth[4].rows, stats.depth[5].rows) == (8, 2)
    assert sum(stats.dropped.values()) == 0


def test_top_priority_is_refused_only_when_it_fills_the_queue(tmp_path: Path) -> None:
    """Other priorities are evicted first, the least urgent before the rest."""
    queue = open_queue(tmp_path / "q.db", 4)
    queue.put([draft(p) for p in (4, 3, 2, 1)])
    for _ in range(4):
        queue.put([draft(5)])
    with pytest.raises(QueueFullError, match="queue is full"):
        queue.put([draft(5)])
    left = [m.priority for m in queue.lease(99)]
    reasons = queue.stats().drop_reasons
    queue.close()

    assert left == [5, 5, 5, 5]
    assert all(reasons[p] == {"full": 1} for p in (1, 2, 3, 4))


def test_priority_stays_within_its_own_budget(tmp_path: Path) -> None:
    """One frequent series cannot fill the whole queue."""
    budget = Budget(100 * COST, 0.0, by_priority={2: 4 * COST})
    queue = open_queue(tmp_path / "q.db", 0, budget)
    for _ in range(9):
        queue.put([draft(2)])
    rows = queue.stats().depth[2].rows
    queue.close()

    assert rows == 4


def test_error_of_a_full_priority_names_its_own_limit(tmp_path: Path) -> None:
    """To raise `queue.max_bytes` would not help while the queue is nearly empty."""
    budget = Budget(100 * COST, 0.0, by_priority={4: 3 * COST + 50})
    queue = open_queue(tmp_path / "q.db", 0, budget)
    queue.put([draft(p) for p in (4, 4, 4, 1)])
    text = (
        f"queue is full for priority 4: {3 * COST} of {3 * COST + 50} bytes; raise "
        "its number in queue.max_bytes_of or restore the uplink"
    )
    with pytest.raises(QueueFullError, match=re.escape(text)):
        queue.put([draft(4)])
    queue.close()


def test_leased_messages_are_never_evicted(tmp_path: Path) -> None:
    """In-flight messages stay until they are acknowledged."""
    queue = open_queue(tmp_path / "q.db", 3)
    queue.put([draft(1), draft(1), draft(1)])
    leased = [m.seq for m in queue.lease(2)]
    queue.put([draft(5)])
    queue.release_all()
    left = [m.seq for m in queue.lease(9)]
    queue.close()

    assert left == [4, *leased]


def test_evicted_messages_are_not_leased(tmp_path: Path) -> None:
    """Neither one that would have been next, nor one that was released."""
    queue = open_queue(tmp_path / "q.db", 4)
    queue.put([draft(1)] * 4)
    queue.release([queue.lease()[0].seq])
    assert queue.waiting_priorities() == {1}
    queue.put([draft(5)] * 4)

    assert queue.stats().dropped[1] == 4
    assert queue.waiting_priorities() == {5}
    assert [message.priority for message in queue.lease(99)] == [5] * 4
    queue.close()


@settings(max_examples=30, deadline=None)
@given(priorities=st.lists(st.integers(1, 5), max_size=60))
def test_no_alarm_is_evicted_before_a_routine_reading(
    tmp_path_factory: pytest.TempPathFactory, priorities: list[int]
) -> None:
    """The byte budget always holds, and the counters agree with the rows."""
    path = tmp_path_factory.mktemp("q") / "q.db"
    window = Durability(window_s=3600.0, max_pending=5)
    queue = SqliteQueue(path, "n1", "b", Budget(10 * COST), durability=window)
    for priority in priorities:
        try:
            queue.put([draft(priority)])
        except QueueFullError:
            # Three rows of its own priority cannot make room for a new one
            # while the reserve is in use.
            assert priority >= 4 or queue.stats().depth[priority].rows < 4
        stats = queue.stats()
        assert sum(d.bytes for d in stats.depth.values()) <= 10 * COST
    rows = len(queue.lease(99))
    queue.close()

    assert stats.dropped[5] == 0 if priorities else True
    assert not priorities or rows == sum(d.rows for d in stats.depth.values())
    assert not priorities or rows == sum(stats.put.values()) - sum(
        stats.dropped.values()
    )


def test_expired_messages_are_not_leased_and_are_counted(tmp_path: Path) -> None:
    """Only priorities with a time to live expire."""
    clock = FakeClock()
    policy = ExpiryPolicy(clock, {1: 60.0})
    queue = SqliteQueue(tmp_path / "q.db", "n1", "boot", 10_000, expiry=policy)
    queue.put([draft(1), draft(2)])
    clock.now_s = 50.0
    queue.put([draft(1)])
    clock.now_s = 61.0
    left = [m.seq for m in queue.lease(9)]
    stats = queue.stats()
    queue.close()

    assert left == [2, 3]
    assert (stats.drop_reasons[1], stats.depth[1].rows) == ({"expired": 1}, 1)


def test_commit_removes_expired_messages(tmp_path: Path) -> None:
    """Expired messages are removed by the next commit even when nothing is leased."""
    clock = FakeClock()
    policy = ExpiryPolicy(clock, {1: 60.0})
    queue = SqliteQueue(tmp_path / "q.db", "n1", "boot", 100_000, expiry=policy)
    queue.put([draft(1) for _ in range(10)])
    clock.now_s = 61.0
    queue.put([draft(2)])
    rows = queue.stats().depth[1].rows
    queue.close()

    assert rows == 0


def test_age_after_a_reboot_counts_from_the_last_commit(tmp_path: Path) -> None:
    """The monotonic clock restarts at boot; the age of a message does not."""
    path = tmp_path / "q.db"
    clock = FakeClock(1000.0)
    policy = ExpiryPolicy(clock, {1: 60.0})
    queue = SqliteQueue(path, "n1", "boot-1", 10_000, expiry=policy)
    queue.put([draft(1)])
    clock.now_s = 1040.0
    queue.put([draft(2)])
    queue.close()

    clock.now_s = 5.0
    queue = SqliteQueue(path, "n1", "boot-2", 10_000, expiry=policy)
    young = [m.priority for m in queue.lease(9)]
    queue.release_all()
    clock.now_s = 26.0
    old = [m.priority for m in queue.lease(9)]
    queue.close()

    assert (young, old) == ([2, 1], [2])


def test_message_age_includes_the_time_before_a_reboot(tmp_path: Path) -> None:
    """`age_s` continues after a reboot; without a time to live nothing expires."""
    path = tmp_path / "q.db"
    clock = FakeClock(1000.0)
    queue = SqliteQueue(path, "n1", "boot-1", 10_000, expiry=ExpiryPolicy(clock))
    queue.put([draft(1)])
    clock.now_s = 1040.0
    queue.put([draft(5)])
    queue.close()

    clock.now_s = 5.0
    queue = SqliteQueue(path, "n1", "boot-2", 10_000, expiry=ExpiryPolicy(clock))
    clock.now_s = 15.0
    ages_s = [queue.age_s(m) for m in queue.lease(9)]
    oldest_s = queue.oldest_s()
    queue.close()

    assert ages_s == [10.0, 50.0]
    assert oldest_s == 50.0


def test_memory_queue_reports_ages_with_a_clock() -> None:
    """As the SQLite queue does."""
    clock = FakeClock(7.0)
    queue = MemoryQueue("n1", "b1", 10_000, clock)
    queue.put([draft(1)])
    clock.now_s = 10.0

    assert queue.oldest_s() == 3.0
    assert queue.age_s(queue.lease()[0]) == 3.0


def test_file_of_the_first_schema_is_migrated(tmp_path: Path) -> None:
    """Migrations keep the messages of an old file."""
    path = tmp_path / "q.db"
    queue = open_queue(path, 100)
    queue.put([draft(3)])
    queue.close()
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE message DROP COLUMN born_ms")
        db.execute("DROP TABLE dropped")
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'ages_and_reasons'")
    db.close()
    queue = open_queue(path, 100)
    left = [m.priority for m in queue.lease(9)]
    queue.close()

    assert left == [3]
