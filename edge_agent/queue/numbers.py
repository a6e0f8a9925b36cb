"""Sequence numbers: never used twice, not even after a kill inside the window.

A process that lets messages wait in memory first reserves a block of numbers on
the disk. Every other process takes its numbers inside its own transaction, from
the same counter, so that they are stored in their order.
"""

import logging
from typing import NamedTuple

from edge_agent.queue.store import Store

log = logging.getLogger(__name__)

BLOCK = 256
NEXT_SEQ = "queue/next_seq"
OPEN_BLOCK = "queue/block"
LOST_AT_MOST = "queue/lost_at_most"


class Numbers(NamedTuple):
    """Numbers at hand.

    Attributes:
        next: The next to be used.
        end: The first that is not ours.
        most_waiting: Messages that may be in memory at once; 0 for a process that
            reserves nothing.
    """

    next: int = 0
    end: int = 0
    most_waiting: int = 0

    def has(self, count: int) -> bool:
        """Whether so many are at hand."""
        return self.end - self.next >= count

    def used(self, count: int) -> "Numbers":
        """The rest after using some."""
        return Numbers(self.next + count, self.end, self.most_waiting)

    def drawn(self, count: int, store: Store) -> "Numbers":
        """With at least so many at hand; call it in a transaction."""
        if self.has(count):
            return self
        start = int(store.recall(NEXT_SEQ) or 1)
        end = start + (max(count, BLOCK) if self.most_waiting else count)
        store.remember({NEXT_SEQ: str(end)})
        return Numbers(start, end, self.most_waiting)

    def text(self) -> dict[str, str]:
        """What to remember with each commit: all below `next` are settled."""
        if not self.most_waiting:
            return {}
        return {OPEN_BLOCK: f"{self.next} {self.end} {self.most_waiting}"}


def settle(store: Store, noted: int = 0) -> None:
    """Close the block of the process before us; count what it may have lost.

    Args:
        store: The file.
        noted: The highest number that it wrote down without a commit.
    """
    left = store.recall(OPEN_BLOCK)
    if not left:
        return
    first, end, most_waiting = map(int, left.split())
    first = min(max(first, noted + 1), end)
    # The block's rest was never stored; all but those that waited was never used.
    lost = min(end - first, most_waiting)
    total = int(store.recall(LOST_AT_MOST) or 0) + lost
    with store.transaction():
        store.remember({OPEN_BLOCK: "", LOST_AT_MOST: str(total)})
    if lost:
        log.warning(
            "the process before us was killed inside its commit window: "
            "at most %d messages of low priority are lost",
            lost,
        )
