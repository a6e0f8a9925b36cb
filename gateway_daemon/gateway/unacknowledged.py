"""Publications that are not acknowledged yet, or whose acknowledgement may be lost.

Messages that could not be stored are retried before later ones. The broker delivers
again what it had no acknowledgement for; of that, messages without an id that are
stored are recognised by their packet id and content.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from zlib import crc32

from edge_agent.queue.base import cost_bytes
from gateway_daemon.gateway.incoming import ParsedMessage, ReceivedPublication
from spatial_mqtt.priority import LADDER
from spatial_mqtt.transport import IncomingMessage

RETRY_S = 0.5
MAX_WAITING = 500
MAX_WAITING_BYTES = 8 * 2**20
"""Further messages are kept by their senders only; those without an id are lost."""

REDELIVERY_STATE_KEY = "front/unacknowledged"
"""Key under which a lane stores the state of `RedeliveryFilter`."""

BATCHES_KEY = 0
"""Key of the number of batches in that state; no packet has this id."""

MAX_ACKNOWLEDGED = 10_000
"""Acknowledged messages without an id that are recognised after the next connection."""


class StorageRetries:
    """Messages that could not be stored, to be retried before later messages.

    Urgent ones: their senders keep them, but would send them again only when a receipt
    is overdue, and later messages would overtake them. On a full disk also those
    without an id, whose senders do not send them again; their publications are not
    acknowledged, so that the broker has them after a crash of the gateway. Less urgent
    messages are not stored then: space may become free between two retries.
    """

    def __init__(self) -> None:
        self._held: list[ParsedMessage] = []
        self._held_bytes = 0
        self._is_disk_full = False

    @property
    def deliveries(self) -> Collection[tuple[int, int]]:
        """Deliveries of the held messages without an id, which QoS 0 has none of."""
        ours = (m.incoming for m in self._held if m.draft.id is None)
        return {incoming.delivery for incoming in ours if incoming.qos}

    def add(self, message: ParsedMessage, *, is_disk_full: bool = True) -> None:
        """Hold a message that could not be stored, if it is one of these.

        Of those that do not fit, the sender with the most bytes has one discarded: a
        flood does not push out another's alarm.
        """
        if message.draft.id is None:
            is_held = is_disk_full and not _is_part(message)
        else:
            is_held = LADDER.is_urgent(message.draft.priority)
        if is_held:
            self._held.append(message)
            self._held_bytes += _size_bytes(message)
            self._is_disk_full = is_disk_full
            while len(self._held) > MAX_WAITING or self._held_bytes > MAX_WAITING_BYTES:
                self._discard_one()

    def must_wait(self, message: ParsedMessage) -> bool:
        """Whether a more urgent message must be stored first."""
        if not self._is_disk_full or (message.draft.id is None and _is_part(message)):
            return False
        return any(each.draft.priority > message.draft.priority for each in self._held)

    def adopt(self, redelivered: IncomingMessage) -> bool:
        """Whether a publication is a redelivery of a held one, to acknowledge instead.

        The held message stays: a rate limit could reject the redelivery.
        """
        if not redelivered.is_duplicate:
            return False
        mark = make_mark(redelivered)
        for at, each in enumerate(self._held):
            if each.draft.id is None and make_mark(each.incoming) == mark:
                self._held[at] = replace(each, incoming=redelivered)
                return True
        return False

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
        """Discard the last of the least urgent messages of the largest sender."""
        sizes: Counter[str | None] = Counter()
        for message in self._held:
            sizes[_sender(message)] += _size_bytes(message)
        sender, _ = sizes.most_common(1)[0]
        theirs = (n for n, each in enumerate(self._held) if _sender(each) == sender)
        last = max(theirs, key=lambda n: (-self._held[n].draft.priority, n))
        self._held_bytes -= _size_bytes(self._held.pop(last))


def _sender(message: ParsedMessage) -> str | None:
    return None if message.draft.id is None else message.draft.id.node


def _is_part(message: ParsedMessage) -> bool:
    """Whether its publication has other messages, which may be stored."""
    return message.incoming.content is not None


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

    A batch may go to several lanes, each of which stores its own marks of the batch and
    all earlier ones. So after a restart the states of the last batch count. A lane
    without new messages has an older one, whose packet ids are used again by now.

    A broker that ends before it has read, or saved, an acknowledgement delivers the
    message again as well. So the marks of what was acknowledged last are kept, in
    memory only, until the end of the next connection: later the packet id may be that
    of another message with the same content.

    Source: MQTT 5.0 sections 3.3.1.1 and 4.4.
    """

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}
        self._batches = 0
        self._acknowledged: dict[int, int] = {}
        self._acknowledged_before: dict[int, int] = {}

    def load(self, states: Iterable[str]) -> None:
        """Load the state that `to_state` returned before a restart."""
        for text in states:
            pairs = (pair.partition(":") for pair in text.split())
            marks = {int(mid): int(checksum) for mid, _, checksum in pairs}
            batches = marks.pop(BATCHES_KEY, 0)
            if batches > self._batches:
                self._stored.clear()
                self._batches = batches
            if batches == self._batches:
                self._stored.update(marks)

    def clear(self) -> None:
        """Clear the state: the broker lost the session and delivers nothing again."""
        self._stored.clear()
        self._acknowledged, self._acknowledged_before = {}, {}

    def resume(self) -> None:
        """Begin a connection in which the broker delivers again what it must."""
        self._acknowledged, self._acknowledged_before = {}, self._acknowledged

    def is_stored(self, message: IncomingMessage) -> bool:
        """Whether a publication is a redelivery of a stored one."""
        if not message.is_duplicate:
            return False
        marks = self._stored, self._acknowledged_before
        return _checksum(message) in {each.get(_mid(message)) for each in marks}

    def to_state(self, marks: Iterable[RedeliveryMark]) -> str:
        """State to store with a batch of some marks, as pairs with a colon."""
        pairs = self._stored | dict(marks) | {BATCHES_KEY: self._batches + 1}
        return " ".join(f"{mid}:{checksum}" for mid, checksum in pairs.items())

    def mark_stored(self, marks: Iterable[RedeliveryMark]) -> None:
        """Record that a batch with the messages of some marks is stored."""
        self._stored.update(marks)
        self._batches += 1

    def discard(self, messages: Iterable[IncomingMessage]) -> None:
        """Remove acknowledged messages from the state to store."""
        for message in messages:
            mid = _mid(message)
            checksum = self._stored.pop(mid, None)
            if checksum is None and message.is_duplicate:
                checksum = self._acknowledged_before.get(mid)
            self._acknowledged.pop(mid, None)
            if checksum is not None:
                self._acknowledged[mid] = checksum
        while len(self._acknowledged) > MAX_ACKNOWLEDGED:
            del self._acknowledged[next(iter(self._acknowledged))]


def without_copies(
    publications: Sequence[ReceivedPublication],
) -> list[ReceivedPublication]:
    """Without the redeliveries of others of these, from before a lost connection."""
    found: set[RedeliveryMark] = set()
    new: list[ReceivedPublication] = []
    for each in publications:
        mark = make_mark(each.incoming)
        if not (each.incoming.is_duplicate and mark in found):
            new.append(each)
        found.add(mark)
    return new


def _mid(message: IncomingMessage) -> int:
    return message.delivery[1]


def _checksum(message: IncomingMessage) -> int:
    return crc32(message.payload, crc32(message.topic.encode(errors="replace")))
