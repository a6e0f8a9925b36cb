"""Queue protocol, its value types, errors, and policies for durability and expiry.

A message is put, leased, and acknowledged or released, but never popped, so a crash
between lease and delivery loses nothing. Leases are ordered by priority, the most
urgent first, then by sequence number, the oldest first.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId

EncodePayload = Callable[[MessageId], bytes]

ROW_OVERHEAD_BYTES = 100
"""Budgeted size of a stored message in addition to its topic and payload."""


def cost_bytes(topic: str, payload: bytes) -> int:
    """Bytes that a message takes from the queue's budget."""
    text = topic.encode(errors="surrogateescape")  # a damaged row may not be UTF-8
    return len(text) + len(payload) + ROW_OVERHEAD_BYTES


class MessageDraft(NamedTuple):
    """A message to be put into a queue.

    Attributes:
        priority: On the ladder.
        topic: Topic on which the uplink publishes it.
        encode: Builds the payload from the id.
        id: Id assigned by the first sender; None lets this queue assign one.
        age_s: Age on arrival, in seconds.
    """

    priority: int
    topic: str
    encode: EncodePayload
    id: MessageId | None = None
    age_s: float = 0.0


class QueuedMessage(NamedTuple):
    """A message in a queue.

    Attributes:
        seq: Sequence number in this queue; grows over the life of the queue.
        id: The message id that custody uses.
        priority: On the ladder.
        topic: Topic on which the uplink publishes it.
        payload: As encoded.
        born_s: Time of the put on the queue's clock (see `Queue.age_s`); None
            without a clock.
    """

    seq: int
    id: MessageId
    priority: int
    topic: str
    payload: bytes
    born_s: float | None = None


def lease_order(priority: int | None, newest: bool) -> Sequence[int]:
    """Priorities that a lease searches, in order.

    Raises:
        ValueError: `newest` is set without a priority.
    """
    if priority is not None:
        return (LADDER.check(priority),)
    if newest:
        raise ValueError("newest needs a priority: across priorities urgency decides")
    return LADDER.descending


@dataclass(frozen=True)
class Depth:
    """Stored messages of one priority.

    Attributes:
        rows: Number of messages.
        bytes: Their size as counted against the budget.
    """

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class QueueStats:
    """Depth and lifetime counts of a queue.

    Attributes:
        depth: Stored messages by priority.
        leased: Messages leased in this process.
        put: Messages ever stored, by priority.
        acked: Messages ever acknowledged, by priority.
        dropped: Messages ever dropped, by priority.
        duplicates: Messages rejected because their id had been stored before.
        drop_reasons: Drops by priority, then by reason.
        max_lost: Upper bound of messages lost from the memory of processes that
            were killed inside their commit window.
        failure: Why the disk cannot be written; None while it can, or is full.
        is_misplaced: Whether not the disk is at fault, but the path in the settings or
            its owner.
        unstored: Messages put since the start that were in memory only, because of
            such a failure.
    """

    depth: Mapping[int, Depth]
    leased: int = 0
    put: Mapping[int, int] = field(default_factory=dict)
    acked: Mapping[int, int] = field(default_factory=dict)
    dropped: Mapping[int, int] = field(default_factory=dict)
    duplicates: int = 0
    drop_reasons: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    max_lost: int = 0
    failure: str | None = None
    unstored: int = 0
    is_misplaced: bool = False


def format_waiting(stats: QueueStats) -> str:
    """Number of messages by priority, most urgent first, such as ``5:1 3:13``."""
    depths = sorted(stats.depth.items(), reverse=True)
    return " ".join(f"{p}:{depth.rows}" for p, depth in depths if depth.rows)


def format_depth(stats: QueueStats, oldest_s: float | None) -> str:
    """Status text such as ``14 queued (5:1 3:13), oldest 35 s, 7 ever dropped``.

    Args:
        stats: Of the queue.
        oldest_s: Age of its oldest message; None without one.
    """
    waiting = format_waiting(stats)
    parts = [f"{sum(depth.rows for depth in stats.depth.values())} queued"]
    if waiting:
        parts[0] += f" ({waiting})"
        parts += [] if oldest_s is None else [f"oldest {oldest_s:.0f} s"]
    dropped = sum(stats.dropped.values())
    if dropped:
        parts.append(f"{dropped} ever dropped")
    return ", ".join(parts)


class SpareReason(NamedTuple):
    """Why a queue is a spare one in memory.

    Attributes:
        failure: See `QueueStats`.
        is_misplaced: See `QueueStats`.
    """

    failure: str
    is_misplaced: bool


class Queue(Protocol):
    """A durable priority queue. Methods may be called from any thread."""

    def put(
        self,
        drafts: Sequence[MessageDraft],
        state: Mapping[str, str] | None = None,
    ) -> list[MessageId | None]:
        """Store messages in one transaction before returning.

        With a commit window (see `Durability`), less urgent messages may stay in
        memory for that time, and only these can be missing after a crash. Puts are
        idempotent: an id that was stored once is never stored again.

        Args:
            drafts: Messages.
            state: Key-value pairs to store in the same transaction (see `get_state`).

        Returns:
            For each draft its id, or None for a duplicate.

        Raises:
            QueueFullError: The messages exceed the budget, and evicting less urgent
                ones does not suffice; none was stored.
            QueueFileError: The store failed (disk full); none was stored. Stored
                messages can still be leased and acknowledged; put again later.
        """

    def waiting_priorities(self) -> frozenset[int]:
        """Priorities that have an unleased message.

        A priority whose last messages are expired or damaged may be included until
        the next `lease` finds none.
        """

    def lease(
        self,
        limit: int = 1,
        max_bytes: int | None = None,
        *,
        priority: int | None = None,
        newest: bool = False,
    ) -> list[QueuedMessage]:
        """Lease the most urgent unleased messages, without removing them.

        Leases exist in memory only: they end with `ack`, `release` or the process.

        Args:
            limit: Maximum number of messages.
            max_bytes: Maximum payload bytes in total; the first always fits.
            priority: Only this priority; None starts at the most urgent.
            newest: Newest first instead of oldest; requires a priority.

        Raises:
            ValueError: `newest` is set without a priority.
        """

    def ack(self, seqs: Iterable[int]) -> None:
        """Remove messages that the next store has on disk; ignore unknown numbers.

        A full disk raises no error: the messages are removed later, and a crash
        before that sends them again with the same id.
        """

    def hand_over(self, seqs: Iterable[int]) -> None:
        """Remove messages that another queue of this program has on disk.

        As `ack`, but their ids are new to this queue again: a message that comes back
        is no duplicate.
        """

    def release(self, seqs: Iterable[int]) -> None:
        """End leases; the messages keep their position."""

    def withhold(self, seqs: Iterable[int]) -> None:
        """End leases of messages that this process cannot send.

        They stay stored, may be evicted, and are hardly leased again by this process.
        """

    def age_s(self, message: QueuedMessage) -> float | None:
        """Seconds since the message was put; None without a clock.

        Ages persist across reboots (see `QueueClock`).
        """

    def oldest_s(self) -> float | None:
        """Age of the oldest message, leased or not, except withheld ones.

        None without messages or without a clock.
        """

    def ages_s(self) -> Mapping[int, float]:
        """Ages as `oldest_s`, by priority; empty without a clock."""

    def release_all(self) -> int:
        """End all leases; return their number."""

    def get_state(self, name: str) -> str | None:
        """Value stored under a name by `put`, or None."""

    def stats(self) -> QueueStats:
        """Depth and counts, without reading messages."""

    def close(self) -> None:
        """Flush and close; stored messages remain."""


class QueueError(Exception):
    """Base class of the queue's errors."""


class QueueFullError(QueueError, OSError):
    """The queue's budget, or that of one priority, is exhausted.

    Attributes:
        stored_bytes: Bytes of the budget in use.
        max_bytes: The budget.
        priority: Whose budget it is; None is the whole queue's.
    """

    def __init__(
        self, stored_bytes: int, max_bytes: int, priority: int | None = None
    ) -> None:
        self.stored_bytes = stored_bytes
        self.max_bytes = max_bytes
        self.priority = priority
        scope, remedy = "", "raise queue.max_bytes"
        if priority is not None:
            scope = f" for priority {priority}"
            remedy = "raise its number in queue.max_bytes_of"
        super().__init__(
            f"queue is full{scope}: {stored_bytes} of {max_bytes} bytes; "
            f"{remedy} or restore the uplink"
        )


class QueueShareError(QueueFullError):
    """A node has used up its share of a queue; the rest is for other nodes.

    Attributes:
        node: The node.
        draft: The message that was refused.
    """

    def __init__(self, node: str, draft: MessageDraft, held: int, share: float) -> None:
        super().__init__(held, int(share))
        self.node = node
        self.draft = draft
        text = f"the share of {node} is full: {held} bytes of {int(share)}"
        self.args = (f"{text}; the rest is for other nodes, restore the uplink",)


class QueueFileError(QueueError, OSError):
    """The queue file cannot be used.

    Attributes:
        path: The file.
        reason: The cause.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"queue file {path} cannot be used: {reason}")


class QueueDiskFullError(QueueFileError):
    """The disk is full; stored messages can still be leased and acknowledged."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path,
            "its disk is full; free space there, restore the uplink, "
            "or lower queue.max_bytes",
        )


OnPut = Callable[[Sequence[MessageId | None], Sequence[MessageDraft]], object]
"""Called after each `put` that stored messages, with their ids (None for a duplicate)
and their drafts, in the thread that called `put`."""


@dataclass(frozen=True)
class Durability:
    """Durability of `put` and `ack` by priority.

    Only the process that owns the file (the one that leases) may use a commit
    window; all others commit each put. A draft with an id is committed at once
    whatever its priority, because its sender gets a receipt for it.

    Attributes:
        urgent_from: Lowest priority that is on disk before `put` returns.
        window_s: Maximum time that a less urgent message may be in memory only; 0
            commits each put. The window ends with a journal record or a commit (see
            `write_journal`).
        max_pending: Number of pending messages that forces a commit.
        removal_delay_s: Maximum time that the removal of acknowledged messages waits
            for the commit of a put, which halves the commits. After a crash in that
            time they are sent again with the same id; other processes still see them. 0
            removes them before `ack` returns. Ignored where there is a window.
        held_bytes: Maximum size in the file of the messages that stay in memory, and
            are leased, while it cannot be written; 0 lets `put` raise its error. Less
            urgent ones give way. On a full disk only urgent ones are held.
    """

    urgent_from: int = LADDER.urgent_from
    window_s: float = 2.0
    max_pending: int = 50
    removal_delay_s: float = 0.0
    held_bytes: int = 0

    @property
    def leases_alone(self) -> bool:
        """Whether the process must own the file: messages may be in its memory only."""
        return self.window_s > 0 or self.held_bytes > 0


COMMIT_EVERY_PUT = Durability(window_s=0.0)
"""Every put and every ack is a commit."""

COMMIT_PUTS_DEFER_ACKS = Durability(window_s=0.0, removal_delay_s=0.5)
"""Every put is a commit, which also removes acknowledged messages."""


@dataclass(frozen=True)
class ExpiryPolicy:
    """Maximum age of messages.

    Attributes:
        mono_s: Monotonic seconds since the machine started.
        ttl_s: Maximum age by priority; a priority without an entry never expires.
    """

    mono_s: Callable[[], float]
    ttl_s: Mapping[int, float] = field(default_factory=dict)


class QueueClock:
    """Clock in milliseconds that continues across reboots.

    After a reboot it continues from the last commit, so messages from an earlier
    boot keep their age. The time between that commit and the reboot is not counted,
    because no monotonic clock covers it.

    Args:
        expiry: The machine's clock; None for a queue without ages.
        machine_boot: Id of the machine's boot.
        saved_state: Value that `to_state` returned for the last commit.
    """

    def __init__(
        self, expiry: ExpiryPolicy | None, machine_boot: str, saved_state: str | None
    ) -> None:
        self._ageing = expiry
        self._boot = machine_boot
        self._offset_ms = 0
        if expiry is None or saved_state is None:
            return
        mono_ms = int(expiry.mono_s() * 1000)
        with suppress(ValueError):  # damaged: ages start again
            boot, offset_ms, last_ms = saved_state.rsplit(" ", 2)
            self._offset_ms = (
                int(offset_ms) if boot == machine_boot else int(last_ms) - mono_ms
            )

    def now_ms(self) -> int | None:
        """The queue's time; None without a clock."""
        if self._ageing is None:
            return None
        return int(self._ageing.mono_s() * 1000) + self._offset_ms

    def to_state(self) -> dict[str, str]:
        """State to store with each commit."""
        now_ms = self.now_ms()
        if now_ms is None:
            return {}
        return {"queue/clock": f"{self._boot} {self._offset_ms} {now_ms}"}

    def is_expired(self, priority: int, born_ms: int | None) -> bool:
        """Whether a message is older than its priority's TTL."""
        if self._ageing is None or born_ms is None:
            return False
        ttl_s = self._ageing.ttl_s.get(priority, math.inf)
        return (self.now_ms() or 0) - born_ms > ttl_s * 1000

    @property
    def priorities_with_ttl(self) -> tuple[int, ...]:
        """Priorities with a TTL."""
        return tuple(self._ageing.ttl_s) if self._ageing else ()
