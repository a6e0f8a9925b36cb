"""In a shared queue one node leaves space for the next one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.queue.base import MessageDraft, QueueFullError, QueueShareError
from edge_agent.queue.eviction import Budget
from edge_agent.queue.sqlite_queue import SqliteQueue
from edge_agent.queue.store import Store
from spatial_mqtt.senml import MessageId

TOPIC, PAYLOAD = "/3/1", bytes(396)
COST = 500
ROWS = 400


def draft(node: str, seq: int, priority: int) -> MessageDraft:
    message_id = MessageId(node, "b", seq)
    return MessageDraft(priority, TOPIC, lambda _id: PAYLOAD, message_id)


def open_queue(path: Path, *, is_shared: bool = True) -> SqliteQueue:
    budget = Budget(ROWS * COST, 0.0, is_shared=is_shared)
    return SqliteQueue(path / "q.db", "gw", "boot", budget)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[SqliteQueue]:
    opened = open_queue(tmp_path)
    yield opened
    opened.close()


def fill(queue: SqliteQueue, node: str, priority: int, first: int = 0) -> int:
    """Put until the node is refused; returns how many were stored."""
    for seq in range(first, first + 2 * ROWS):
        try:
            queue.put([draft(node, seq, priority)])
        except QueueFullError:
            return seq - first
    raise AssertionError("never refused")


def rows(queue: SqliteQueue) -> dict[int, int]:
    return {p: depth.rows for p, depth in queue.stats().depth.items() if depth.rows}


@pytest.mark.parametrize("priority", [1, 3, 4, 5])
def test_lone_node_takes_three_quarters(queue: SqliteQueue, priority: int) -> None:
    """It is refused by name; a batch is refused as a whole, and nothing evicted."""
    stored = fill(queue, "greedy", priority)
    assert stored == ROWS * 3 // 4
    last = draft("greedy", 9_999, priority)
    with pytest.raises(QueueShareError, match="share of greedy is full") as refused:
        queue.put([draft("quiet", 1, priority), last])
    assert refused.value.draft is last
    assert rows(queue) == {priority: stored}


def test_each_further_node_finds_space(queue: SqliteQueue) -> None:
    """The shares shrink; the queue is never full for the next one."""
    counts = [fill(queue, f"node-{n}", 5) for n in range(5)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 0
    assert sum(counts) <= ROWS


def test_urgent_flood_evicts_no_urgent_message_of_others(queue: SqliteQueue) -> None:
    """Readings of others give way to alarms, up to the share of the flood."""
    for n in range(60):
        queue.put([draft("quiet", n, 4)])
    fill(queue, "others", 1)
    fill(queue, "greedy", 5)
    assert rows(queue)[4] == 60
    queue.put([draft("quiet", 1000, 5)])


def test_small_sender_is_never_refused_for_a_queue_full_of_readings(
    queue: SqliteQueue,
) -> None:
    """The newest reading of a quiet node still takes the place of the oldest."""
    for n in range(20):
        for seq in range(25):
            queue.put([draft(f"node-{n}", seq, 2)])
    assert queue.stats().drop_reasons[2]["thinned"] > 0
    queue.put([draft("quiet", 1, 2)])


def test_share_is_free_again_when_messages_leave(queue: SqliteQueue) -> None:
    """Acknowledged and evicted messages no longer count."""
    stored = fill(queue, "greedy", 5)
    leased = queue.lease(50)
    queue.ack([message.seq for message in leased])
    assert fill(queue, "greedy", 5, first=10_000) == 50
    assert rows(queue) == {5: stored}


def test_share_is_known_after_a_restart(tmp_path: Path) -> None:
    """It is counted from the file."""
    queue = open_queue(tmp_path)
    fill(queue, "greedy", 5)
    queue.close()
    queue = open_queue(tmp_path)
    with pytest.raises(QueueShareError, match="greedy"):
        queue.put([draft("greedy", 9_999, 5)])
    queue.put([draft("quiet", 1, 5)])
    queue.close()


def test_flood_of_refused_messages_reads_the_file_twice_at_most(
    queue: SqliteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal rolls a transaction back; the counts survive that."""
    fill(queue, "greedy", 5)
    loads = []
    real = Store._loaded_node_bytes  # noqa: SLF001

    def load(store: Store) -> object:
        loads.append(store._node_bytes is None)  # noqa: SLF001
        return real(store)

    monkeypatch.setattr(Store, "_loaded_node_bytes", load)
    for seq in range(50):
        with pytest.raises(QueueShareError, match="greedy"):
            queue.put([draft("quiet", 50_000 + seq, 5), draft("greedy", 9_999, 5)])
    assert sum(loads) <= 1
    assert rows(queue) == {5: ROWS * 3 // 4}


def test_queue_of_one_node_has_no_shares(tmp_path: Path) -> None:
    """A node's own queue is for its own messages."""
    queue = open_queue(tmp_path, is_shared=False)
    assert fill(queue, "n1", 5) == ROWS
    queue.close()
