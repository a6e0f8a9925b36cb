"""What arrived from a network thread, taken in batches: one commit for many."""

from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

BATCH = 500


def batches(inbox: "SimpleQueue[T | None]") -> Iterator[list[T]]:
    """Batches of at least one, until None arrives."""
    while batch := batch_of(inbox, None):
        yield batch


def batch_of(inbox: "SimpleQueue[T | None]", wait_s: float | None) -> list[T] | None:
    """What has arrived; nothing when the wait is over; None when None arrived."""
    try:
        first = inbox.get(timeout=wait_s)
    except Empty:
        return []
    if first is None:
        return None
    batch = [first]
    while len(batch) < BATCH:
        try:
            following = inbox.get_nowait()
        except Empty:
            break
        if following is None:
            inbox.put(None)
            break
        batch.append(following)
    return batch
