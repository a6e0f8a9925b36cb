"""A message as the queue's table holds it."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from edge_agent.queue.base import ROW_OVERHEAD_BYTES, Message, cost_bytes
from edge_agent.queue.checksum import checksum, emptied, is_typed, matches
from spatial_mqtt.envelope import MessageId

LARGE_BYTES = 4096
"""A payload above it is not kept in memory beside many others."""


class Row(NamedTuple):
    """The columns in the file's order.

    Attributes:
        priority: On the ladder.
        seq: Place in this queue.
        node: Of the message's id.
        boot: Of the message's id.
        origin_seq: Of the message's id.
        topic: Where the uplink publishes it.
        crc: Checksum of the message, from when it was put.
        payload: As encoded.
        born_ms: When it was put, on the queue's clock; None when it had none.
    """

    priority: int
    seq: int
    node: str
    boot: str
    origin_seq: int
    topic: str
    crc: int
    payload: bytes
    born_ms: int | None = None

    @property
    def message(self) -> Message:
        """What the queue's users see of it."""
        return Message(
            self.seq,
            MessageId(self.node, self.boot, self.origin_seq),
            self.priority,
            self.topic,
            self.payload,
            None if self.born_ms is None else self.born_ms / 1000,
        )

    def sealed(self) -> "Row":
        """With the checksum of what it is now."""
        return self._replace(crc=checksum(self[:6], self.payload))

    @property
    def is_sound(self) -> bool:
        """Whether the message still matches its checksum."""
        return matches(self.crc, self[:6], self.payload)

    @property
    def cost(self) -> int:
        """Bytes of the budget."""
        return cost_bytes(self.topic, self.payload)


def row_of(values: tuple[Any, ...]) -> Row:
    """A row as read; one whose values are of other types is not sound."""
    return Row._make(values if is_typed(values) else emptied(values))


def cost_of(rows: Collection[Row]) -> int:
    """Bytes of the budget that messages take together."""
    # One expression: a put and an ack do this for every message.
    sizes = [
        len(row.topic.encode(errors="surrogateescape")) + len(row.payload)
        for row in rows
    ]
    return sum(sizes) + ROW_OVERHEAD_BYTES * len(sizes)


def by_priority(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Messages of each priority, in the order given."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        group = groups.get(row.priority)
        if group is None:
            groups[row.priority] = [row]
        else:
            group.append(row)
    return groups
