"""A witness beside the queue: a file that names every id the queue took.

Tests and simulations compare it with what arrived. It is written after the put,
so it never claims what the queue does not have.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edge_agent.queue.base import Draft, Message, Queue, Stats
from spatial_mqtt.senml import MessageId


class WitnessedQueue:
    """A `Queue` that also writes ``<id> <priority>`` lines to a ledger."""

    def __init__(self, queue: Queue, ledger: Path) -> None:
        self._queue = queue
        self._file = ledger.open("a", encoding="ascii", buffering=1)

    def put(
        self, drafts: Sequence[Draft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        ids = self._queue.put(drafts, state)
        for message_id, draft in zip(ids, drafts, strict=True):
            if message_id is not None:
                self._file.write(f"{message_id} {draft.priority}\n")
        return ids

    def waiting(self) -> frozenset[int]:
        return self._queue.waiting()

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[Message]:
        return self._queue.lease(limit, max_bytes, priority=priority, newest=newest)

    def ack(self, seqs: Iterable[int]) -> None:
        self._queue.ack(seqs)

    def release(self, seqs: Iterable[int]) -> None:
        self._queue.release(seqs)

    def age_s(self, message: Message) -> float | None:
        return self._queue.age_s(message)

    def oldest_s(self) -> float | None:
        return self._queue.oldest_s()

    def ages_s(self) -> Mapping[int, float]:
        return self._queue.ages_s()

    def reap(self) -> int:
        return self._queue.reap()

    def recall(self, name: str) -> str | None:
        return self._queue.recall(name)

    def stats(self) -> Stats:
        return self._queue.stats()

    def close(self) -> None:
        self._queue.close()
        self._file.close()
