"""Order of sending, without a network."""

import pytest

from edge_agent.queue.base import ExpiryPolicy, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.scheduler import (
    FULL_CHECK_INTERVAL_S,
    LATE_AFTER_S,
    PriorityScheduler,
)


class SchedulerHarness:
    """A queue with a settable clock, and a scheduler on it."""

    def __init__(self, path: str, gather_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.lowest = 1
        policy = ExpiryPolicy(lambda: self.now_s)
        self.queue = SqliteQueue(path, "n", "boot", 10_000_000, expiry=policy)
        self.scheduler = PriorityScheduler(self.queue, gather_s)

    def put(self, priority: int, text: str, topic: str = "/t") -> None:
        self.queue.put([MessageDraft(priority, topic, lambda _: text.encode())])

    def send(self, limit: int = 1) -> list[str]:
        priority = self.scheduler.next_priority(self.now_s, self.lowest)
        if priority is None:
            return []
        batch = self.scheduler.lease(priority, limit, 10_000)
        self.scheduler.charge(priority, sum(len(m.payload) for m in batch))
        return [m.payload.decode() for m in batch]

    def send_all(self, limit: int = 1) -> list[str]:
        sent = []
        while batch := self.send(limit):
            sent += batch
        return sent


@pytest.fixture
def harness(tmp_path: object) -> SchedulerHarness:
    return SchedulerHarness(f"{tmp_path}/queue.db")


def test_urgent_messages_are_sent_strictly_first(harness: SchedulerHarness) -> None:
    """No priority of 3 or less is sent while 4 or 5 waits."""
    for priority in (1, 3, 4, 5, 4, 2, 5):
        harness.put(priority, str(priority))

    assert harness.send_all()[:4] == ["5", "5", "4", "4"]


def test_routine_messages_are_never_starved(harness: SchedulerHarness) -> None:
    """Priorities 2 and 1 keep their shares during a burst of priority 3."""
    for _ in range(100):
        for priority in (1, 2, 3):
            harness.put(priority, str(priority) * 10)
    first = [text[0] for text in harness.send_all()[:65]]

    assert first.count("3") == pytest.approx(40, abs=2)
    assert first.count("2") == pytest.approx(20, abs=2)
    assert first.count("1") == pytest.approx(5, abs=2)


def test_current_messages_are_sent_before_the_backlog(
    harness: SchedulerHarness,
) -> None:
    """After an outage current data are sent first, with a share for the backlog."""
    for n in range(20):
        harness.put(2, f"old {n:02}")
    harness.now_s += LATE_AFTER_S + 1
    for n in range(6):
        harness.put(2, f"live {n}")
    sent = harness.send_all()

    assert sum(text.startswith("live") for text in sent[:8]) == 6
    assert sum(text.startswith("old") for text in sent[:8]) == 2
    assert [t for t in sent if t.startswith("old")] == [
        f"old {n:02}" for n in range(20)
    ]


def test_order_of_arrival_is_kept_without_a_backlog(harness: SchedulerHarness) -> None:
    """Newest first is only for a backlog."""
    for n in range(5):
        harness.put(1, str(n))

    assert harness.send_all() == ["0", "1", "2", "3", "4"]


def test_late_urgent_messages_keep_their_order(harness: SchedulerHarness) -> None:
    """The messages of an emergency are read from its beginning."""
    harness.put(5, "first")
    harness.now_s += LATE_AFTER_S + 1
    harness.put(5, "second")

    assert harness.send_all() == ["first", "second"]


def test_batch_has_one_topic_and_loses_no_message(harness: SchedulerHarness) -> None:
    """A node that was moved has two cells in its queue; a batch has one topic."""
    for n in range(6):
        harness.put(1, str(n), topic="/a" if n < 4 else "/b")

    assert harness.send(limit=10) == ["0", "1", "2", "3"]
    assert harness.send(limit=10) == ["4", "5"]


def test_only_permitted_priorities_take_turns(harness: SchedulerHarness) -> None:
    """What waited for a closed link has no credit for that time."""
    for _ in range(40):
        for priority in (1, 2, 3):
            harness.put(priority, str(priority) * 10)
    harness.lowest = 3
    assert "".join(harness.send()[0][0] for _ in range(16)) == "3" * 16
    harness.lowest = 4
    assert harness.scheduler.next_priority(harness.now_s, 4) == 3
    harness.lowest = 1
    first = [harness.send()[0][0] for _ in range(26)]

    assert first.count("3") == pytest.approx(16, abs=2)


def test_lateness_of_a_message(harness: SchedulerHarness) -> None:
    """Late means waiting for more than a minute; in whole seconds."""
    harness.put(1, "x")
    harness.now_s += LATE_AFTER_S
    (message,) = harness.queue.lease()
    assert harness.scheduler.lateness_s(message) is None
    harness.now_s += 5.7

    assert harness.scheduler.lateness_s(message) == int(LATE_AFTER_S + 5.7)


def test_only_routine_messages_wait_for_a_batch(tmp_path: object) -> None:
    """Batching ends after `gather_s`, and everything queued goes together."""
    harness = SchedulerHarness(f"{tmp_path}/queue.db", gather_s=30)
    harness.put(2, "a")
    harness.put(3, "urgent enough")
    assert harness.send_all(limit=10) == ["urgent enough"]
    harness.now_s += 29
    harness.put(2, "b")
    assert harness.send(limit=10) == []
    harness.now_s += 1

    assert harness.send(limit=10) == ["a", "b"]


@pytest.mark.parametrize(("count", "size"), [(64, 1), (6, 1000)])
def test_what_fills_a_batch_waits_no_longer(
    tmp_path: object, count: int, size: int
) -> None:
    """A backlog goes at once; what is left of it waits for more."""
    harness = SchedulerHarness(f"{tmp_path}/queue.db", gather_s=180)
    harness.now_s += 1
    payloads = [str(n).zfill(size) for n in range(count + 2)]
    for payload in payloads[:2]:
        harness.put(1, payload)
    assert harness.send(limit=64) == []
    for payload in payloads[2:]:
        harness.put(1, payload)
    assert harness.send(limit=64) == []
    harness.now_s += FULL_CHECK_INTERVAL_S

    assert harness.send(limit=count) == payloads[:count]
    harness.now_s += 100
    assert harness.send(limit=count) == []
    harness.now_s += 80
    assert harness.send(limit=count) == payloads[count:]
