"""In-memory buffers of ingress: batches, retries, redeliveries and receipts. No I/O."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar
from zlib import crc32

from edge_agent.queue.base import cost_bytes
from gateway_daemon.gateway.ingress_messages import ParsedMessage
from spatial_mqtt.custody import CustodyReceipt
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import IncomingMessage

T = TypeVar("T")

MAX_BATCH = 500
FULL_BATCH = 100
"""After a batch of this size the next one is processed at once."""

GATHERED_BATCH = 8
"""Items that do not wait for more."""

GATHER_S = 0.060
"""Minimum interval between smaller batches, except for urgent messages. A message that
arrives alone is processed at once; in a stream, some share the fixed cost of a batch:
a commit, a write to the next broker, and the wake-ups of five threads."""

IN_VAIN_S = 1.0
"""Time without waits after one that brought no second item: a client that sends one
message after the acknowledgement of the other would wait for each."""

MAX_PAUSE_S = 0.05

RETRY_S = 0.5
MAX_WAITING = 500
MAX_WAITING_BYTES = 8 * 2**20
"""Further messages are kept by their senders only."""

REDELIVERY_STATE_KEY = "front/unacknowledged"
"""Key under which a lane stores the state of `RedeliveryFilter`."""

GATHER_RECEIPTS_S = 1.0
"""Delay of a receipt for batching; senders ask again much later."""

MAX_GATHERED = 64


class BatchQueue(Generic[T]):
    """Queue between a network thread and the thread that stores, read in batches.

    Args:
        clock: Monotonic seconds.
        is_urgent: Whether an item must not wait for a batch to fill.
    """

    def __init__(
        self, clock: Callable[[], float], is_urgent: Callable[[T], bool]
    ) -> None:
        self._clock = clock
        self._is_urgent = is_urgent
        self._arrived: SimpleQueue[T | None] = SimpleQueue()
        self._has_urgent = threading.Event()
        self._has_enough = threading.Event()
        self._batch_at_s = self._gathers_from_s = clock() - GATHER_S
        self._batch_size = 0

    def put(self, item: T) -> None:
        """Add an item."""
        self._arrived.put(item)
        if self._is_urgent(item):
            self._has_urgent.set()
            self._has_enough.set()
        elif self._arrived.qsize() >= GATHERED_BATCH - 1:  # one is already taken
            self._has_enough.set()

    def close(self) -> None:
        """End the batches after the items that have arrived."""
        self._arrived.put(None)
        self._has_urgent.set()
        self._has_enough.set()

    def next_batch(self, timeout_s: float) -> list[T] | None:
        """Return the items that have arrived.

        The list is empty after `timeout_s` without an item; None means closed.
        """
        pause_ends_s = self._clock() + self._pause_s()
        try:
            first = self._arrived.get(timeout=timeout_s)
        except Empty:
            return []
        if first is None:
            return None
        self._wait_until(pause_ends_s, self._has_urgent)
        is_gathered = False
        if self._clock() >= self._gathers_from_s:
            due_s = self._batch_at_s + GATHER_S
            is_gathered = self._wait_until(due_s, self._has_enough)
        self._has_urgent.clear()  # before reading: later items apply to the next batch
        self._has_enough.clear()
        self._batch_at_s = self._clock()
        batch = [first, *self._following()]
        self._batch_size = len(batch)
        if is_gathered and self._batch_size == 1:
            self._gathers_from_s = self._batch_at_s + IN_VAIN_S
        return batch

    def _pause_s(self) -> float:
        """Pause after a batch that was not full, as long as it took.

        At most half of the time is spent on such batches: where the machine is short of
        time, more messages share their fixed cost.
        """
        if self._batch_size >= FULL_BATCH:
            return 0.0
        return min(MAX_PAUSE_S, self._clock() - self._batch_at_s)

    def _wait_until(self, at_s: float, or_event: threading.Event) -> bool:
        """Wait until a time or an event; whether the whole time was waited for."""
        wait_s = at_s - self._clock()
        return wait_s > 0 and not or_event.wait(wait_s)

    def _following(self) -> list[T]:
        batch: list[T] = []
        while len(batch) < MAX_BATCH - 1:
            try:
                item = self._arrived.get_nowait()
            except Empty:
                break
            if item is None:
                self._arrived.put(None)
                break
            batch.append(item)
        return batch


class UrgentRetries:
    """Urgent messages that could not be stored, to be retried before later messages.

    Their senders keep them, but would send them again only when a receipt is overdue,
    and later messages would overtake them. While the disk is full, less urgent messages
    are therefore not stored: space may become free between two retries.
    """

    def __init__(self) -> None:
        self._held: list[ParsedMessage] = []
        self._held_bytes = 0
        self._is_disk_full = False

    def add(self, message: ParsedMessage, *, is_disk_full: bool = True) -> None:
        """Hold a message that could not be stored, if it is urgent and has an id.

        Of those that do not fit, the sender with the most bytes has one discarded: a
        flood does not push out another's alarm.
        """
        if (
            LADDER.is_urgent(message.draft.priority)
            and message.publication_without_id is None
        ):
            self._held.append(message)
            self._held_bytes += _size_bytes(message)
            self._is_disk_full = is_disk_full
            while len(self._held) > MAX_WAITING or self._held_bytes > MAX_WAITING_BYTES:
                self._discard_one()

    def must_wait(self, message: ParsedMessage) -> bool:
        """Whether a more urgent message must be stored first.

        Never for a message without an id: its sender does not send it again.
        """
        if not self._is_disk_full or message.publication_without_id is not None:
            return False
        return any(each.draft.priority > message.draft.priority for each in self._held)

    def wait_s(self) -> float | None:
        """Seconds until the next retry; None when nothing is held."""
        return RETRY_S if self._held else None

    def retry(
        self, store: Callable[[list[ParsedMessage]], list[ParsedMessage]]
    ) -> list[ParsedMessage]:
        """Retry the most urgent message and, if it is stored, all others.

        Args:
            store: Returns the messages it stored; calls `add` for the others.
        """
        if not self._held:
            return []
        first, *others = sorted(self._held, key=lambda each: -each.draft.priority)
        self._held, self._held_bytes = [], 0
        stored = store([first])
        if not stored:
            self._held += others
            self._held_bytes = sum(map(_size_bytes, self._held))
            return []
        return stored + (store(others) if others else [])

    def _discard_one(self) -> None:
        """Discard the last message of the sender whose messages are largest."""
        sizes: Counter[str | None] = Counter()
        for message in self._held:
            sizes[_sender(message)] += _size_bytes(message)
        sender, _ = sizes.most_common(1)[0]
        last = max(n for n, each in enumerate(self._held) if _sender(each) == sender)
        self._held_bytes -= _size_bytes(self._held.pop(last))


def _sender(message: ParsedMessage) -> str | None:
    return None if message.draft.id is None else message.draft.id.node


def _size_bytes(message: ParsedMessage) -> int:
    return cost_bytes(message.draft.topic, message.incoming.payload)


RedeliveryMark = tuple[int, int]
"""Packet id and checksum of a publication without an id."""


def make_mark(message: IncomingMessage) -> RedeliveryMark:
    """The mark of a publication."""
    return _mid(message), _checksum(message)


class RedeliveryFilter:
    """Publications without an id that are stored but not yet acknowledged.

    Such a message gets its id here, so a second delivery would get another id. After a
    lost connection or a crash the broker delivers it again under the same packet id
    and marks it as a duplicate, so packet id and checksum are stored in the same
    transaction as the message.

    Source: MQTT 5.0 sections 3.3.1.1 and 4.4.
    """

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}

    def load(self, states: Iterable[str]) -> None:
        """Load the state that `to_state` returned before a restart."""
        for text in states:
            for pair in text.split():
                mid, _, checksum = pair.partition(":")
                self._stored[int(mid)] = int(checksum)

    def clear(self) -> None:
        """Clear the state: the broker lost the session and delivers nothing again."""
        self._stored.clear()

    def is_stored(self, message: IncomingMessage) -> bool:
        """Whether a publication is a redelivery of a stored one."""
        return message.is_duplicate and self._stored.get(_mid(message)) == _checksum(
            message
        )

    def to_state(self, marks: Iterable[RedeliveryMark]) -> str:
        """State to store with the messages of some marks, as pairs with a colon."""
        pairs = (self._stored | dict(marks)).items()
        return " ".join(f"{mid}:{checksum}" for mid, checksum in pairs)

    def mark_stored(self, marks: Iterable[RedeliveryMark]) -> None:
        """Record that the messages of some marks are stored."""
        self._stored.update(marks)

    def discard(self, messages: Iterable[IncomingMessage]) -> None:
        """Remove acknowledged messages: the broker does not deliver them again."""
        for message in messages:
            self._stored.pop(_mid(message), None)


def _mid(message: IncomingMessage) -> int:
    return message.delivery[1]


def _checksum(message: IncomingMessage) -> int:
    return crc32(message.payload, crc32(message.topic.encode(errors="replace")))


class ReceiptBatcher:
    """Ids of stored messages, batched by the topic of their receipt.

    Urgent messages are receipted at once, the others within `GATHER_RECEIPTS_S`.

    Attributes:
        sent_count: Number of ids that were receipted.
    """

    def __init__(self) -> None:
        self._ids: dict[str, list[MessageId]] = {}
        self._due_s: dict[str, float] = {}
        self.sent_count = 0

    def add(self, message: ParsedMessage, now_s: float) -> None:
        """Add a message that is on disk."""
        topic, message_id = message.receipt_topic, message.draft.id
        if topic is None or message_id is None:
            return
        ids = self._ids.setdefault(topic, [])
        ids.append(message_id)
        due_s = self._due_s.setdefault(topic, now_s + GATHER_RECEIPTS_S)
        if LADDER.is_urgent(message.draft.priority) or len(ids) >= MAX_GATHERED:
            self._due_s[topic] = min(due_s, now_s)

    def pop_due(self, now_s: float) -> list[tuple[str, CustodyReceipt]]:
        """Remove and return the receipts to publish now, with their topics."""
        topics = [topic for topic, due_s in self._due_s.items() if due_s <= now_s]
        for topic in topics:
            del self._due_s[topic]
        batches = [(topic, self._ids.pop(topic)) for topic in topics]
        self.sent_count += sum(len(ids) for _, ids in batches)
        return [(topic, CustodyReceipt.from_ids(ids)) for topic, ids in batches]

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next receipt is due; None without one."""
        due_s = min(self._due_s.values(), default=math.inf)
        return None if math.isinf(due_s) else max(0.0, due_s - now_s)
