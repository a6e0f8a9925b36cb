"""Batches of what arrived: nothing lost, nothing out of order."""

import threading
import time

import pytest

from gateway_daemon.gateway.ingress_buffers import MAX_BATCH, BatchQueue


def test_a_batch_is_what_has_arrived() -> None:
    """In its order, and nothing when nothing comes in time."""
    inbox: BatchQueue[int] = BatchQueue(time.monotonic, bool)
    for number in (0, 1, 2):
        inbox.put(number)

    assert inbox.next_batch(5.0) == [0, 1, 2]
    assert inbox.next_batch(0.0) == []


def test_a_batch_has_an_end() -> None:
    """A flood comes in several."""
    inbox: BatchQueue[int] = BatchQueue(time.monotonic, bool)
    for number in range(MAX_BATCH + 1):
        inbox.put(number)

    assert [len(inbox.next_batch(5.0) or ()) for _ in range(2)] == [MAX_BATCH, 1]


def test_what_came_before_the_end_is_given() -> None:
    """Closing loses nothing, and the end stays the end."""
    inbox: BatchQueue[int] = BatchQueue(time.monotonic, bool)
    inbox.put(1)
    inbox.close()

    assert inbox.next_batch(5.0) == [1]
    assert inbox.next_batch(5.0) is None


def test_an_urgent_one_hurries_the_batch_that_it_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Company is waited for here as good as for ever."""
    monkeypatch.setattr("gateway_daemon.gateway.ingress_buffers.MIN_INTERVAL_S", 3600.0)
    inbox: BatchQueue[str] = BatchQueue(lambda: 0.0, lambda item: item == "urgent")
    inbox.put("routine")
    assert inbox.next_batch(5.0) == ["routine"]
    inbox.put("routine")
    batches: list[list[str] | None] = []
    taker = threading.Thread(
        target=lambda: batches.append(inbox.next_batch(5.0)), daemon=True
    )
    taker.start()
    inbox.put("urgent")
    taker.join(60)

    assert batches in [[["routine", "urgent"]], [["routine"]]]
