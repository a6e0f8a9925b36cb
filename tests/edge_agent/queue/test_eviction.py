"""What a full queue gives up, what it counts, and what grows too old."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.queue.base import Durability, ExpiryPolicy, MessageDraft, QueueFullError
from edge_agent.queue.eviction import Budget
from edge_agent.queue.memory import MemoryQueue
from edge_agent.queue.sqlite_queue import SqliteQueue

COST = 202


class Watch:
    """A clock that a test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def draft(priority: int) -> MessageDraft:
    return MessageDraft(priority, "/t", lambda _id: b"x" * 100)


def open_queue(path: Path, rows: float, budget: Budget | None = None) -> SqliteQueue:
    return SqliteQueue(path, "n1", "boot", budget or Budget(int(rows * COST), 0.0))


def test_old_series_is_thinned_before_anything_is_dropped(tmp_path: Path) -> None:
    """Of the oldest half every second stays; the newest are all there."""
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


def test_full_of_routine_readings_still_takes_new_ones(tmp_path: Path) -> None:
    """A week without a link leaves a sparse past and a dense present."""
    queue = open_queue(tmp_path / "q.db", 20)
    for _ in range(200):
        queue.put([draft(1)])
    left = [m.seq for m in queue.lease(99)]
    dropped = queue.stats().drop_reasons[1]
    queue.close()

    assert (len(left), left[0], left[-1]) == (20, 1, 200)
    assert dropped == {"thinned": 180}


def test_reserve_is_for_the_top_priority_alone(tmp_path: Path) -> None:
    """What no other priority may fill takes an alarm without dropping anything."""
    queue = open_queue(tmp_path / "q.db", 0, Budget(10 * COST, top_share=0.2))
    queue.put([draft(4) for _ in range(8)])
    with pytest.raises(QueueFullError, match="queue is full"):
        queue.put([draft(4)])
    queue.put([draft(5), draft(5)])
    stats = queue.stats()
    queue.close()

    assert (stats.depth[4].rows, stats.depth[5].rows) == (8, 2)
    assert sum(stats.dropped.values()) == 0


def test_top_priority_is_refused_only_by_its_own(tmp_path: Path) -> None:
    """Everything else goes first, the least urgent before the others."""
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


def test_priority_stays_within_its_own_bound(tmp_path: Path) -> None:
    """One chatty series cannot take the whole queue."""
    budget = Budget(100 * COST, 0.0, by_priority={2: 4 * COST})
    queue = open_queue(tmp_path / "q.db", 0, budget)
    for _ in range(9):
        queue.put([draft(2)])
    rows = queue.stats().depth[2].rows
    queue.close()

    assert rows == 4


def test_leased_messages_are_never_given_up(tmp_path: Path) -> None:
    """What is on its way stays until it is acknowledged."""
    queue = open_queue(tmp_path / "q.db", 3)
    queue.put([draft(1), draft(1), draft(1)])
    out = [m.seq for m in queue.lease(2)]
    queue.put([draft(5)])
    queue.release_all()
    left = [m.seq for m in queue.lease(9)]
    queue.close()

    assert left == [4, *out]


@settings(max_examples=30, deadline=None)
@given(priorities=st.lists(st.integers(1, 5), max_size=60))
def test_no_alarm_is_given_up_before_a_routine_reading(
    tmp_path_factory: pytest.TempPathFactory, priorities: list[int]
) -> None:
    """Within the budget always, and the tally says what is there."""
    path = tmp_path_factory.mktemp("q") / "q.db"
    window = Durability(window_s=3600.0, max_pending=5)
    queue = SqliteQueue(path, "n1", "b", Budget(10 * COST), durability=window)
    for priority in priorities:
        try:
            queue.put([draft(priority)])
        except QueueFullError:
            # Three of its own cannot make room for one when the reserve is in use.
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
    """A priority with a time to live forgets what is too old; others keep it."""
    watch = Watch()
    ageing = ExpiryPolicy(watch, {1: 60.0})
    queue = SqliteQueue(tmp_path / "q.db", "n1", "boot", 10_000, expiry=ageing)
    queue.put([draft(1), draft(2)])
    watch.now_s = 50.0
    queue.put([draft(1)])
    watch.now_s = 61.0
    left = [m.seq for m in queue.lease(9)]
    stats = queue.stats()
    queue.close()

    assert left == [2, 3]
    assert (stats.drop_reasons[1], stats.depth[1].rows) == ({"expired": 1}, 1)


def test_commit_reaps_what_nobody_leases(tmp_path: Path) -> None:
    """Without a link, too, the old ones go."""
    watch = Watch()
    ageing = ExpiryPolicy(watch, {1: 60.0})
    queue = SqliteQueue(tmp_path / "q.db", "n1", "boot", 100_000, expiry=ageing)
    queue.put([draft(1) for _ in range(10)])
    watch.now_s = 61.0
    queue.put([draft(2)])
    rows = queue.stats().depth[1].rows
    queue.close()

    assert rows == 0


def test_age_goes_on_after_a_reboot_from_the_last_commit(tmp_path: Path) -> None:
    """A monotonic clock begins anew; a message's age does not."""
    path = tmp_path / "q.db"
    watch = Watch(1000.0)
    ageing = ExpiryPolicy(watch, {1: 60.0})
    queue = SqliteQueue(path, "n1", "boot-1", 10_000, expiry=ageing)
    queue.put([draft(1)])
    watch.now_s = 1040.0
    queue.put([draft(2)])
    queue.close()

    watch.now_s = 5.0
    queue = SqliteQueue(path, "n1", "boot-2", 10_000, expiry=ageing)
    young = [m.priority for m in queue.lease(9)]
    queue.release_all()
    watch.now_s = 26.0
    old = [m.priority for m in queue.lease(9)]
    queue.close()

    assert (young, old) == ([2, 1], [2])


def test_age_of_a_message_outlives_the_machine(tmp_path: Path) -> None:
    """`age_s` goes on after a reboot; without a bound nothing expires."""
    path = tmp_path / "q.db"
    watch = Watch(1000.0)
    queue = SqliteQueue(path, "n1", "boot-1", 10_000, expiry=ExpiryPolicy(watch))
    queue.put([draft(1)])
    watch.now_s = 1040.0
    queue.put([draft(5)])
    queue.close()

    watch.now_s = 5.0
    queue = SqliteQueue(path, "n1", "boot-2", 10_000, expiry=ExpiryPolicy(watch))
    watch.now_s = 15.0
    ages_s = [queue.age_s(m) for m in queue.lease(9)]
    oldest_s = queue.oldest_s()
    queue.close()

    assert ages_s == [10.0, 50.0]
    assert oldest_s == 50.0


def test_fake_tells_ages_with_a_clock() -> None:
    """The queue in memory meets the same contract."""
    watch = Watch(7.0)
    queue = MemoryQueue("n1", "b1", 10_000, watch)
    queue.put([draft(1)])
    watch.now_s = 10.0

    assert queue.oldest_s() == 3.0
    assert queue.age_s(queue.lease()[0]) == 3.0


def test_file_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    """Migrations bring an old file up to date with its messages."""
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
