"""Batches of received messages: none lost, order kept."""

import threading
import time

import pytest

from gateway_daemon.gateway.incoming import (
    FULL_BATCH,
    GATHER_S,
    GATHERED_BATCH,
    MAX_BATCH,
    BatchQueue,
)


def test_batch_holds_all_that_has_arrived() -> None:
    """In order of arrival; empty when nothing arrives in time."""
    queue: BatchQueue[int] = BatchQueue(time.monotonic, bool)
    for number in (0, 1, 2):
        queue.put(number)

    assert queue.next_batch(5.0) == [0, 1, 2]
    assert queue.next_batch(0.0) == []


def test_batch_size_is_bounded() -> None:
    """A flood is split into several batches."""
    queue: BatchQueue[int] = BatchQueue(time.monotonic, bool)
    for number in range(MAX_BATCH + 1):
        queue.put(number)

    assert [len(queue.next_batch(5.0) or ()) for _ in range(2)] == [MAX_BATCH, 1]


def test_items_put_before_close_are_returned() -> None:
    """After them every call returns None."""
    queue: BatchQueue[int] = BatchQueue(time.monotonic, bool)
    queue.put(1)
    queue.close()

    assert queue.next_batch(5.0) == [1]
    assert queue.next_batch(5.0) is None


def test_urgent_item_is_in_the_next_batch_and_acknowledged_in_its_place() -> None:
    """Behind a backlog of several batches; that batch is small, to be stored soon."""
    queue: BatchQueue[int] = BatchQueue(time.monotonic, lambda item: item < 0)
    arrived = [*range(MAX_BATCH * 2), -1, *range(MAX_BATCH * 2, MAX_BATCH * 3), -2]
    for item in arrived:
        queue.put(item)

    first = queue.next_batch(5.0) or []
    passed = list(queue.passed)
    batches = [first]
    while len(passed) < len(arrived):
        batches.append(queue.next_batch(5.0) or [])
        passed += queue.passed
        assert set(passed) <= {item for batch in batches for item in batch}

    assert {-1, -2} <= set(first)
    assert len(first) == FULL_BATCH + 2
    assert passed == arrived
    assert sorted(item for batch in batches for item in batch) == sorted(arrived)


def test_urgent_items_taken_alone_are_in_no_batch_and_acknowledged_in_place() -> None:
    """They arrive while an earlier batch cannot be stored."""
    queue: BatchQueue[int] = BatchQueue(time.monotonic, lambda item: item < 0)
    arrived = [1, -1, 2, -2, 3]
    for item in arrived:
        queue.put(item)

    assert queue.take_urgent() == [-1, -2]
    queue.put(-3)
    assert queue.next_batch(5.0) == [1, 2, 3, -3]
    assert queue.passed == [*arrived, -3]
    assert queue.take_urgent() == []


def test_batch_of_urgent_items_is_bounded_too() -> None:
    """Those that do not fit are in the next one, each in one batch."""
    queue: BatchQueue[int] = BatchQueue(time.monotonic, lambda _: True)
    for number in range(MAX_BATCH * 2 + 1):
        queue.put(number)

    batches = [queue.next_batch(5.0) or [] for _ in range(3)]

    assert [len(batch) for batch in batches] == [MAX_BATCH, MAX_BATCH, 1]
    assert [n for batch in batches for n in batch] == list(range(MAX_BATCH * 2 + 1))


@pytest.mark.parametrize("more", [("urgent",), ("routine",) * (GATHERED_BATCH - 1)])
def test_urgent_item_or_enough_items_end_the_wait_for_the_next_batch(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """The minimum interval of an hour would otherwise hold the batch back."""
    monkeypatch.setattr("gateway_daemon.gateway.incoming.GATHER_S", 3600.0)
    queue: BatchQueue[str] = BatchQueue(lambda: 0.0, lambda item: item == "urgent")
    queue.put("routine")
    assert queue.next_batch(5.0) == ["routine"]
    queue.put("routine")
    batches: list[list[str] | None] = []
    consumer = threading.Thread(
        target=lambda: batches.append(queue.next_batch(5.0)), daemon=True
    )
    consumer.start()
    for item in more:
        queue.put(item)
    consumer.join(60)

    assert batches
    assert batches[0] == ["routine", *more][: len(batches[0] or ())]


def test_items_that_come_one_after_the_other_wait_once_in_a_second() -> None:
    """A client may send each message after the acknowledgement of the one before."""
    now_s = 0.0
    queue: BatchQueue[int] = BatchQueue(lambda: now_s, lambda _: False)
    waits: list[float] = []

    def wait(timeout: float | None = None) -> bool:
        nonlocal now_s
        waits.append(timeout or 0.0)
        now_s += timeout or 0.0
        return False

    queue._has_enough.wait = wait  # type: ignore[method-assign]  # noqa: SLF001
    for number in range(50):
        queue.put(number)
        assert queue.next_batch(5.0) == [number]
        now_s += 0.010

    assert waits == [pytest.approx(GATHER_S - 0.010)]
