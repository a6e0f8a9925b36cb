"""What every queue guarantees: one contract, met by SQLite and by memory.

A message is put, leased, and acknowledged or released; it is never popped, so a
crash between taking and delivering loses nothing. The most urgent message is
always leased first, and within a priority the oldest sequence number.

Errors of the queue.

When a message that was put is on the disk, by priority; and how old it may get.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

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


class QueueError(Exception):
    """Base of the queue's errors."""


class QueueFullError(QueueError, OSError):
    """The queue's budget is spent.

    Attributes:
        bytes_held: Payload bytes in the queue.
        max_bytes: The budget.
    """

    def __init__(self, bytes_held: int, max_bytes: int) -> None:
        self.bytes_held = bytes_held
        self.max_bytes = max_bytes
        super().__init__(
            f"queue is full: {bytes_held} of {max_bytes} bytes; "
            "raise queue.max_bytes or restore the uplink"
        )


class QueueFileError(QueueError, OSError):
    """The queue's file cannot be used.

    Attributes:
        path: The file.
        reason: Why.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"queue file {path} cannot be used: {reason}")


class QueueDiskFullError(QueueFileError):
    """The disk is full; what is stored stays, and may be leased and acknowledged."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path,
            "its disk is full; free space there, restore the uplink, "
            "or lower queue.max_bytes",
        )


OnPut = Callable[[Sequence[MessageId | None], Sequence[Draft]], object]
"""Called after each `put` that stored messages, with their ids (None for a duplicate)
and their drafts, in the thread that called `put`."""


@dataclass(frozen=True)
class Durability:
    """What `put` promises for each priority.

    Only the process that leases may open a window; any other finds the file
    owned and puts every message on the disk. A message that came with an id is
    on the disk at once whatever its priority: whoever gave the id was promised it.

    Attributes:
        urgent_from: From this priority up, a message is on the disk before `put`
            returns.
        window_s: A less urgent one may wait this long in memory alone; 0 lets none
            wait. The window ends with a note or a commit, see `notes`.
        batch: So many less urgent ones never wait together.
        removal_s: What was delivered waits this long for a put to take its removal
            along, which halves the commits; a crash before that sends it again
            under the same id, and other processes still see it. 0 removes it
            before `ack` returns. Where there is a window, that counts instead.
    """

    urgent_from: int = 4
    window_s: float = 2.0
    batch: int = 50
    removal_s: float = 0.0


EVERY_PUT = Durability(window_s=0.0)
"""Every message is on the disk before `put` returns, and gone when `ack` does."""

WITH_NEXT_PUT = Durability(window_s=0.0, removal_s=0.5)
"""Every message is on the disk before `put` returns; that also removes others."""


@dataclass(frozen=True)
class Ageing:
    """How long messages stay worth sending.

    Attributes:
        mono_s: Seconds since the machine started; never set back.
        ttl_s: Oldest age by priority; a priority without one never expires.
    """

    mono_s: Callable[[], float]
    ttl_s: Mapping[int, float] = field(default_factory=dict)


class QueueClock:
    """Milliseconds of the queue's life: runs while its machine runs.

    After a reboot it goes on from the last commit, so a message from an earlier
    boot keeps the age that was known then. What passed between that commit and
    the reboot is not counted: no monotonic clock knows it.

    Args:
        ageing: The machine's clock; None gives a queue without ages.
        machine_boot: Id of the machine's boot.
        remembered: What `text` said at the last commit.
    """

    def __init__(
        self, ageing: Ageing | None, machine_boot: str, remembered: str | None
    ) -> None:
        self._ageing = ageing
        self._boot = machine_boot
        self._offset_ms = 0
        if ageing is None or remembered is None:
            return
        boot, offset_ms, last_ms = remembered.rsplit(" ", 2)
        mono_ms = int(ageing.mono_s() * 1000)
        self._offset_ms = (
            int(offset_ms) if boot == machine_boot else int(last_ms) - mono_ms
        )

    def now_ms(self) -> int | None:
        """The queue's time; None when it has no clock."""
        if self._ageing is None:
            return None
        return int(self._ageing.mono_s() * 1000) + self._offset_ms

    def text(self) -> dict[str, str]:
        """What to remember with each commit."""
        now_ms = self.now_ms()
        if now_ms is None:
            return {}
        return {"queue/clock": f"{self._boot} {self._offset_ms} {now_ms}"}

    def is_expired(self, priority: int, born_ms: int | None) -> bool:
        """Whether a message outlived its priority's time."""
        now_ms = self.now_ms()
        if self._ageing is None or now_ms is None or born_ms is None:
            return False
        ttl_s = self._ageing.ttl_s.get(priority)
        return ttl_s is not None and now_ms - born_ms > ttl_s * 1000

    @property
    def mortal(self) -> tuple[int, ...]:
        """Priorities whose messages expire."""
        return tuple(self._ageing.ttl_s) if self._ageing else ()
