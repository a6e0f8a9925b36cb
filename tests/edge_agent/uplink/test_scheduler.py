"""Which message goes next, decided without a network."""

import pytest

from edge_agent.queue.base import ExpiryPolicy, MessageDraft
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.uplink.scheduler import LATE_AFTER_S, PriorityScheduler


class Slope:
    """A queue whose time the test moves, and an order on it."""

    def __init__(self, path: str, gather_s: float = 0.0) -> None:
        self.now_s = 1000.0
        ageing = ExpiryPolicy(lambda: self.now_s)
        self.queue = SqliteQueue(path, "n", "boot", 10_000_000, expiry=ageing)
        self.order = PriorityScheduler(self.queue, gather_s)

    def put(self, priority: int, text: str, topic: str = "/t") -> None:
        self.queue.put([MessageDraft(priority, topic, lambda _: text.encode())])

    def take(self, limit: int = 1) -> list[str]:
        priority = self.order.next_priority(self.now_s)
        if priority is None:
            return []
        batch = self.order.lease(priority, limit, 10_000)
        self.order.charge(priority, sum(len(m.payload) for m in batch))
        return [m.payload.decode() for m in batch]

    def drain(self, limit: int = 1) -> list[str]:
        taken = []
        while some := self.take(limit):
            taken += some
        return taken


@pytest.fixture
def slope(tmp_path: object) -> Slope:
    return Slope(f"{tmp_path}/queue.db")


def test_urgent_go_strictly_first(slope: Slope) -> None:
    """Nothing of 3 or less moves while 5 or 4 waits."""
    for priority in (1, 3, 4, 5, 4, 2, 5):
        slope.put(priority, str(priority))

    assert slope.drain()[:4] == ["5", "5", "4", "4"]


def test_routine_is_never_starved(slope: Slope) -> None:
    """A storm of priority 3 leaves 2 and 1 their shares."""
    for _ in range(100):
        for priority in (1, 2, 3):
            slope.put(priority, str(priority) * 10)
    first = [text[0] for text in slope.drain()[:65]]

    assert first.count("3") == pytest.approx(40, abs=2)
    assert first.count("2") == pytest.approx(20, abs=2)
    assert first.count("1") == pytest.approx(5, abs=2)


def test_live_goes_before_a_backlog_that_still_moves(slope: Slope) -> None:
    """After a cut the analyst sees the slope as it is, and the past fills in."""
    for n in range(20):
        slope.put(2, f"old {n:02}")
    slope.now_s += LATE_AFTER_S + 1
    for n in range(6):
        slope.put(2, f"live {n}")
    taken = slope.drain()

    assert sum(text.startswith("live") for text in taken[:8]) == 6
    assert sum(text.startswith("old") for text in taken[:8]) == 2
    assert [t for t in taken if t.startswith("old")] == [
        f"old {n:02}" for n in range(20)
    ]


def test_without_a_backlog_order_of_arrival_holds(slope: Slope) -> None:
    """Newest first is for catching up; a link that keeps up keeps the order."""
    for n in range(5):
        slope.put(1, str(n))

    assert slope.drain() == ["0", "1", "2", "3", "4"]


def test_urgent_keep_their_order_however_late(slope: Slope) -> None:
    """The story of an emergency is told from its beginning."""
    slope.put(5, "first")
    slope.now_s += LATE_AFTER_S + 1
    slope.put(5, "second")

    assert slope.drain() == ["first", "second"]


def test_batch_is_of_one_topic_and_loses_none(slope: Slope) -> None:
    """A node that was moved has two cells in its queue; a parcel has one topic."""
    for n in range(6):
        slope.put(1, str(n), topic="/a" if n < 4 else "/b")

    assert slope.take(limit=10) == ["0", "1", "2", "3"]
    assert slope.take(limit=10) == ["4", "5"]


def test_late_messages_say_so(slope: Slope) -> None:
    """Late is what waited longer than a minute, in whole seconds."""
    slope.put(1, "x")
    slope.now_s += LATE_AFTER_S
    (message,) = slope.queue.lease()
    assert slope.order.lateness_s(message) is None
    slope.now_s += 5.7

    assert slope.order.lateness_s(message) == int(LATE_AFTER_S + 5.7)


def test_routine_waits_for_company_and_the_rest_does_not(tmp_path: object) -> None:
    """Gathering ends with its time, and everything that came goes together."""
    slope = Slope(f"{tmp_path}/queue.db", gather_s=30)
    slope.put(2, "a")
    slope.put(3, "urgent enough")
    assert slope.drain(limit=10) == ["urgent enough"]
    slope.now_s += 29
    slope.put(2, "b")
    assert slope.take(limit=10) == []
    slope.now_s += 1

    assert slope.take(limit=10) == ["a", "b"]
