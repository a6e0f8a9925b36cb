"""What every queue guarantees: one contract, met by SQLite and by memory.

A message is put, leased, and acknowledged or released; it is never popped, so a
crash between taking and delivering loses nothing. The most urgent message is
always leased first, and within a priority the oldest sequence number.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from spatial_mqtt.envelope import MessageId
from spatial_mqtt.priority import LADDER

Encode = Callable[[MessageId], bytes]

ROW_OVERHEAD_BYTES = 100
"""What a stored message costs beside topic and payload, for the budget."""


def cost_bytes(topic: str, payload: bytes) -> int:
    """Bytes that a message takes from the queue's budget."""
    text = topic.encode(errors="surrogateescape")  # a damaged one need not be UTF-8
    return len(text) + len(payload) + ROW_OVERHEAD_BYTES


class Draft(NamedTuple):
    """A message on its way into a queue.

    Attributes:
        priority: On the ladder.
        topic: Where the uplink will publish it.
        encode: Makes the payload once the id is known.
        id: Id given by its first sender; None lets this queue give one.
        age_s: How late it was when it arrived here; it ages on from that.
    """

    priority: int
    topic: str
    encode: Encode
    id: MessageId | None = None
    age_s: float = 0.0


class Message(NamedTuple):
    """A message in a queue.

    Attributes:
        seq: Place in this queue; grows over the life of the queue.
        id: The message id that custody uses.
        priority: On the ladder.
        topic: Where the uplink publishes it.
        payload: As encoded.
        born_s: When it was put, on the queue's clock (see `Queue.age_s`); None
            when the queue had none.
    """

    seq: int
    id: MessageId
    priority: int
    topic: str
    payload: bytes
    born_s: float | None = None


def ladder_of(priority: int | None, newest: bool) -> Sequence[int]:
    """Priorities that a lease looks at, in order.

    Raises:
        ValueError: The newest of all priorities was asked for.
    """
    if priority is not None:
        return (LADDER.check(priority),)
    if newest:
        raise ValueError("newest needs a priority: across priorities urgency decides")
    return LADDER.descending()


@dataclass(frozen=True)
class Depth:
    """What one priority holds.

    Attributes:
        rows: Messages.
        bytes: Bytes of their payloads.
    """

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Stats:
    """What a queue holds and what went through it.

    Attributes:
        depth: For each priority.
        leased: Messages out on lease now, in this process.
        put: Messages ever taken, by priority.
        acked: Messages ever delivered, by priority.
        dropped: Messages given up for more urgent ones, by priority.
        duplicates: Messages refused because their id had been taken before.
        reasons: Why messages were dropped: count by reason, by priority.
        lost_at_most: Messages that may have been lost with the memory of processes
            that were killed inside their commit window; an upper bound.
    """

    depth: Mapping[int, Depth]
    leased: int = 0
    put: Mapping[int, int] = field(default_factory=dict)
    acked: Mapping[int, int] = field(default_factory=dict)
    dropped: Mapping[int, int] = field(default_factory=dict)
    duplicates: int = 0
    reasons: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    lost_at_most: int = 0


class Queue(Protocol):
    """A durable priority queue. Methods may be called from any thread."""

    def put(
        self,
        drafts: Sequence[Draft],
        state: Mapping[str, str] | None = None,
    ) -> list[MessageId | None]:
        """Store messages, in one transaction, before returning.

        A queue may be made to let less urgent messages wait in memory for a
        stated window (see `Durability`); then only they may be missing after a
        crash. A queue that has taken an id once never takes it again: putting is
        idempotent by message id.

        Args:
            drafts: Messages.
            state: Values to remember in the same transaction (see `recall`).

        Returns:
            For each draft its id, or None when it was a duplicate.

        Raises:
            QueueFullError: The messages do not fit the budget, and nothing less
                urgent could be dropped for them; none was stored.
            QueueFileError: The store failed (disk full); none was stored. The
                queue goes on: lease and ack what it holds, and put again later.
        """

    def waiting(self) -> frozenset[int]:
        """Priorities that have a message nobody holds, without counting them.

        It may name one whose last messages are too old or damaged: a `lease` finds
        that out, gives none, and the name is gone.
        """

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[Message]:
        """Take the most urgent messages that nobody holds, without removing them.

        Leases live in memory: they end with `ack`, `release` or the process.

        Args:
            limit: Most messages to take.
            max_bytes: Stop before the payloads exceed this; the first always fits.
            priority: Only this one; None begins with the most urgent.
            newest: The newest first instead of the oldest; only with a priority.

        Raises:
            ValueError: The newest of all priorities was asked for.
        """

    def ack(self, seqs: Iterable[int]) -> None:
        """Remove messages that the next store has on disk. Unknown ones are let go.

        A full disk is no error here: the queue removes them when it can, and a
        crash before that sends them again under the same id.
        """

    def release(self, seqs: Iterable[int]) -> None:
        """Give leased messages back, to be leased again in their old place."""

    def age_s(self, message: Message) -> float | None:
        """Seconds since a message was put here; None when no clock measured them.

        Reboots do not make it younger (see `durability.QueueClock`).
        """

    def oldest_s(self) -> float | None:
        """Seconds since the oldest stored message was put here, leased or not.

        None when there is none, or when no clock measured it. What waits in memory
        for a common commit is not looked at.
        """

    def ages_s(self) -> Mapping[int, float]:
        """Age of the oldest message of each priority that has one, leased or not.

        Empty where no clock measures ages.
        """

    def reap(self) -> int:
        """Give back every lease; return how many there were."""

    def recall(self, name: str) -> str | None:
        """A value remembered by `put`, or None."""

    def stats(self) -> Stats:
        """Depth and counts, without reading the messages."""

    def close(self) -> None:
        """Flush and close; what is stored stays."""
