"""In-memory queue for tests and for safe mode: the same contract, nothing durable."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from edge_agent.queue.base import (
    Depth,
    MessageDraft,
    QueuedMessage,
    QueueFullError,
    QueueStats,
    cost_bytes,
    lease_order,
)
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId


class MemoryQueue:
    """A `Queue` without a file.

    Args:
        node: Id of the node.
        boot: Boot id in the message ids.
        max_bytes: Budget.
        now_s: The clock of `age_s`; None for a queue without ages.
    """

    def __init__(
        self,
        node: str,
        boot: str,
        max_bytes: int,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self.boot = boot
        self._node = node
        self._max_bytes = max_bytes
        self._now_s = now_s
        self._lock = threading.RLock()
        self._stored: dict[int, QueuedMessage] = {}
        self._leased: set[int] = set()
        self._withheld: set[int] = set()
        self._known_ids: set[MessageId] = set()
        self._state: dict[str, str] = {}
        self._next_seq = 1
        self._counts = {
            name: dict.fromkeys(LADDER.descending, 0)
            for name in ("put", "acked", "dropped", "duplicates")
        }

    def put(
        self, drafts: Sequence[MessageDraft], state: Mapping[str, str] | None = None
    ) -> list[MessageId | None]:
        with self._lock:
            before = (dict(self._stored), set(self._known_ids), self._next_seq)
            try:
                ids = [self._insert(draft) for draft in drafts]
            except QueueFullError:
                self._stored, self._known_ids, self._next_seq = before
                raise
            self._state.update(state or {})
            return ids

    def waiting_priorities(self) -> frozenset[int]:
        with self._lock:
            return frozenset(m.priority for m in self._unleased())

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[QueuedMessage]:
        ladder = lease_order(priority, newest)
        with self._lock:
            found = [m for m in self._unleased() if m.priority in ladder]
            sign = -1 if newest else 1
            found.sort(key=lambda m: (-m.priority, sign * m.seq))
            leased: list[QueuedMessage] = []
            for message in found[:limit]:
                total = sum(len(m.payload) for m in (*leased, message))
                if leased and max_bytes is not None and total > max_bytes:
                    break
                leased.append(message)
            self._leased.update(m.seq for m in leased)
            return leased

    def ack(self, seqs: Iterable[int]) -> None:
        with self._lock:
            for seq in set(seqs) & self._leased:
                self._leased.discard(seq)
                self._counts["acked"][self._stored.pop(seq).priority] += 1

    def hand_over(self, seqs: Iterable[int]) -> None:
        with self._lock:
            moved = [self._stored[seq].id for seq in set(seqs) & self._leased]
            self.ack(seqs)
            self._known_ids.difference_update(moved)

    def release(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._leased.difference_update(seqs)

    def withhold(self, seqs: Iterable[int]) -> None:
        with self._lock:
            self._withheld.update(self._leased.intersection(seqs))
            self._leased.difference_update(seqs)

    def age_s(self, message: QueuedMessage) -> float | None:
        if self._now_s is None or message.born_s is None:
            return None
        return max(0.0, self._now_s() - message.born_s)

    def oldest_s(self) -> float | None:
        return max(self.ages_s().values(), default=None)

    def ages_s(self) -> Mapping[int, float]:
        with self._lock:
            ages: dict[int, float] = {}
            for seq, message in self._stored.items():
                if seq in self._withheld:
                    continue
                age_s = self.age_s(message)
                if age_s is not None:
                    known_s = ages.get(message.priority, 0.0)
                    ages[message.priority] = max(known_s, age_s)
            return ages

    def release_all(self) -> int:
        with self._lock:
            count = len(self._leased)
            self._leased.clear()
            return count

    def get_state(self, name: str) -> str | None:
        with self._lock:
            return self._state.get(name)

    def stats(self) -> QueueStats:
        with self._lock:
            depth = {}
            for priority in LADDER.descending:
                costs = [
                    _cost_bytes(m)
                    for m in self._stored.values()
                    if m.priority == priority
                ]
                depth[priority] = Depth(len(costs), sum(costs))
            return QueueStats(
                depth=depth,
                leased=len(self._leased),
                put=dict(self._counts["put"]),
                acked=dict(self._counts["acked"]),
                dropped=dict(self._counts["dropped"]),
                duplicates=sum(self._counts["duplicates"].values()),
            )

    def close(self) -> None: ...

    def _unleased(self) -> list[QueuedMessage]:
        hidden = self._leased | self._withheld
        return [m for m in self._stored.values() if m.seq not in hidden]

    def _insert(self, draft: MessageDraft) -> MessageId | None:
        LADDER.check(draft.priority)
        if draft.id is not None and draft.id in self._known_ids:
            self._counts["duplicates"][draft.priority] += 1
            return None
        message_id = draft.id or MessageId(self._node, self.boot, self._next_seq)
        message = QueuedMessage(
            self._next_seq,
            message_id,
            draft.priority,
            draft.topic,
            draft.encode(message_id),
            None if self._now_s is None else self._now_s() - draft.age_s,
        )
        self._evict_for(message)
        if draft.id is not None:
            self._known_ids.add(draft.id)
        self._stored[message.seq] = message
        self._next_seq += 1
        self._counts["put"][draft.priority] += 1
        return message_id

    def _evict_for(self, message: QueuedMessage) -> None:
        stored_bytes = sum(_cost_bytes(m) for m in self._stored.values())
        lower = [
            m
            for m in self._stored.values()
            if m.priority < message.priority and m.seq not in self._leased
        ]
        for victim in sorted(lower, key=lambda m: (m.priority, m.seq)):
            if stored_bytes + _cost_bytes(message) <= self._max_bytes:
                return
            stored_bytes -= _cost_bytes(self._stored.pop(victim.seq))
            self._counts["dropped"][victim.priority] += 1
        if stored_bytes + _cost_bytes(message) > self._max_bytes:
            raise QueueFullError(stored_bytes, self._max_bytes)


def _cost_bytes(message: QueuedMessage) -> int:
    return cost_bytes(message.topic, message.payload)
