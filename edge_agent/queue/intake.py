"""From drafts to rows, and into the file: everything a put needs but the commit."""

from collections.abc import Sequence

from edge_agent.queue.base import Draft
from edge_agent.queue.checksum import checksum
from edge_agent.queue.durability import QueueClock
from edge_agent.queue.room import Room
from edge_agent.queue.row import Row, by_priority, cost_of
from edge_agent.queue.store import Store
from edge_agent.queue.tally import Changes
from spatial_mqtt.envelope import MessageId


class Intake:
    """Gives messages their ids and rows, and makes room for them.

    Args:
        store: The file.
        room: Its budget.
        clock: The queue's time.
        node: Id of the node whose queue this is.
        boot: Id of its life.
    """

    def __init__(
        self, store: Store, room: Room, clock: QueueClock, node: str, boot: str
    ) -> None:
        self._store = store
        self._room = room
        self._clock = clock
        self._node = node
        self._boot = boot

    def rows(
        self, drafts: Sequence[Draft], first: int
    ) -> tuple[list[MessageId], list[Row]]:
        """The drafts as messages with numbers from `first` up."""
        node, boot, now_ms = self._node, self._boot, self._clock.now_ms()
        ids = [
            d.id or MessageId(node, boot, seq) for seq, d in enumerate(drafts, first)
        ]
        payloads = [d.encode(i) for d, i in zip(drafts, ids, strict=True)]
        rows = [
            Row(
                d.priority, seq, i.node, i.boot, i.seq, d.topic,
                checksum((d.priority, seq, i.node, i.boot, i.seq, d.topic), p), p,
                None if now_ms is None else now_ms - int(d.age_s * 1000),
            )
            for seq, (d, i, p) in enumerate(
                zip(drafts, ids, payloads, strict=True), first
            )
        ]  # fmt: skip
        return ids, rows

    def fits(self, rows: Sequence[Row], changes: Changes) -> bool:
        """Whether messages fit beside what is held, and none has to go for them."""
        costs = {p: cost_of(some) for p, some in by_priority(rows).items()}
        return self._room.is_enough(self._store, changes, costs)

    def put(
        self, drafts: Sequence[Draft], first: int, changes: Changes
    ) -> tuple[list[MessageId | None], list[Row]]:
        """Store drafts in the caller's transaction, but for duplicates.

        Returns:
            The id of each, None for a duplicate; and the rows stored.
        """
        is_new = [d.id is None or self._is_new(d, d.id, changes) for d in drafts]
        ids, rows = self.rows(
            [d for d, new in zip(drafts, is_new, strict=True) if new], first
        )
        self._insert(rows, changes)
        given = iter(ids)
        return [next(given) if new else None for new in is_new], rows

    def _is_new(self, draft: Draft, message_id: MessageId, changes: Changes) -> bool:
        """Whether an id was never taken; notes it. Our own may come by replay."""
        is_own = message_id.node == self._node
        if is_own and self._store.holds(message_id):
            is_new = False
        else:
            is_new = self._store.take(message_id)
        if not is_new:
            changes.duplicate(draft.priority)
        return is_new

    def _insert(self, rows: Sequence[Row], changes: Changes) -> None:
        """Store messages, one by one when others must go for them."""
        groups = by_priority(rows)
        costs = {priority: cost_of(some) for priority, some in groups.items()}
        if self._room.is_enough(self._store, changes, costs):
            self._store.insert(rows, sum(costs.values()))
            for priority, some in groups.items():
                changes.put(priority, costs[priority], len(some))
            return
        for row in rows:
            self._room.make(self._store, changes, row.priority, row.cost)
            self._store.insert([row], row.cost)
            changes.put(row.priority, row.cost)
