"""Batches of what arrived: nothing lost, nothing out of order."""

import time

from gateway_daemon.gateway.inbox import BATCH, Inbox


def test_a_batch_is_what_has_arrived() -> None:
    """In its order, and nothing when nothing comes in time."""
    inbox: Inbox[int] = Inbox(time.monotonic)
    for number in range(3):
        inbox.put(number)

    assert inbox.batch(5.0) == [0, 1, 2]
    assert inbox.batch(0.0) == []


def test_a_batch_has_an_end() -> None:
    """A flood comes in several."""
    inbox: Inbox[int] = Inbox(time.monotonic)
    for number in range(BATCH + 1):
        inbox.put(number)

    assert [len(inbox.batch(5.0) or ()) for _ in range(2)] == [BATCH, 1]


def test_what_came_before_the_end_is_given() -> None:
    """Closing loses nothing, and the end stays the end."""
    inbox: Inbox[int] = Inbox(time.monotonic)
    inbox.put(1)
    inbox.close()

    assert inbox.batch(5.0) == [1]
    assert inbox.batch(5.0) is None
