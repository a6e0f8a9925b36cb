"""Incoming messages: batched, admitted, and converted into drafts for the queue.

A message in an envelope keeps the id of its node. Any other payload (from a plain MQTT
client) gets an id of this gateway and the default priority, unless its topic or its
properties give one.

Admission is a rate limit per sender and a check of the node id. A message that is not
admitted gets no receipt, so its sender keeps it.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

import msgspec

from edge_agent.queue.base import MessageDraft
from edge_agent.uplink.link_rate import TokenBucket
from service_runtime.lifecycle import LogLimit
from spatial_mqtt.batching import Fragment, FragmentJoiner, decode_batch
from spatial_mqtt.custody import receipt_topic
from spatial_mqtt.errors import BatchError, EnvelopeError, TopicError
from spatial_mqtt.priority import LADDER
from spatial_mqtt.senml import MessageId, decode_message_id, may_be_pack
from spatial_mqtt.topics import BATCH_CONTENT, FRAGMENT_CONTENT, ForwardTopic
from spatial_mqtt.transport import IncomingMessage

log = logging.getLogger(__name__)

T = TypeVar("T")

CONTENT_TYPES = (BATCH_CONTENT, FRAGMENT_CONTENT)
"""Content types that `Unpacker` reads, as the gateway's offer lists them."""

MAX_BATCH = 500
FULL_BATCH = 100
"""After a batch of this size the next one is processed at once. A batch with an urgent
message has no more, unless all are urgent: it would be on disk later."""

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


class ReceivedPublication(NamedTuple):
    """A publication as it arrived from a client.

    Attributes:
        incoming: The publication.
        topic: Its topic, or the reason why it is not valid.
    """

    incoming: IncomingMessage
    topic: ForwardTopic | TopicError

    @classmethod
    def parse(cls, incoming: IncomingMessage) -> "ReceivedPublication":
        """Parse the topic."""
        try:
            return cls(incoming, ForwardTopic.parse(incoming.topic))
        except TopicError as error:
            return cls(incoming, error)

    @property
    def is_urgent(self) -> bool:
        """Whether its topic or its properties have an urgent priority."""
        if isinstance(self.topic, TopicError):
            return False
        return LADDER.is_urgent(self.topic.priority or self.incoming.priority or 0)


@dataclass(frozen=True)
class ParsedMessage:
    """A message on its way into the gateway's store.

    Attributes:
        draft: What the queue stores; its topic is the one subscribers see.
        receipt_topic: Topic of the receipt; None when the sender gave no id.
        incoming: The publication.
        publisher_id: Certificate name of the publisher; None where clients have none.
    """

    draft: MessageDraft
    receipt_topic: str | None
    incoming: IncomingMessage
    publisher_id: str | None = None


def parse_publication(
    incoming: IncomingMessage, topic: ForwardTopic, default_priority: int
) -> ParsedMessage:
    """Convert a publication on a topic under ``/forward`` or ``/from``."""
    draft = _draft(incoming, topic.topic, topic.priority, default_priority)
    where = None
    if draft.id is not None:
        where = receipt_topic(draft.id, incoming.response_topic)
    return ParsedMessage(draft, where, incoming, topic.publisher)


def parse_delivery(incoming: IncomingMessage, default_priority: int) -> MessageDraft:
    """Convert a distributed broker's message into a draft for the own broker."""
    priority = _valid_priority(incoming.priority)
    return _draft(incoming, incoming.topic, priority, default_priority)


def _draft(
    incoming: IncomingMessage, topic: str, priority: int | None, default_priority: int
) -> MessageDraft:
    message_id, sender_priority = _id_and_priority(incoming)
    payload = incoming.payload
    return MessageDraft(
        priority=priority or sender_priority or default_priority,
        topic=topic,
        encode=lambda _id: payload,
        id=message_id,
        age_s=incoming.age_s or 0.0,
    )


def _id_and_priority(incoming: IncomingMessage) -> tuple[MessageId | None, int | None]:
    """Id and priority that the sender gave, in the envelope or as properties."""
    if may_be_pack(incoming.payload):
        with suppress(EnvelopeError):
            return decode_message_id(incoming.payload)
    message_id = None
    if incoming.message_id is not None:
        with suppress(EnvelopeError):
            message_id = MessageId.parse(incoming.message_id)
    return message_id, _valid_priority(incoming.priority)


def _valid_priority(priority: int | None) -> int | None:
    """The priority, or None if it is not on the ladder."""
    return priority if priority in LADDER.descending else None


class Unpacker:
    """Unpacks batches and joins fragments into the messages they contain.

    A publication that cannot be decoded is logged and dropped. Its sender gets no
    receipt and will send it again.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._joiner = FragmentJoiner()
        self._log_limit = LogLimit(clock)

    def unpack(
        self, incoming: IncomingMessage, sender: str = ""
    ) -> list[IncomingMessage]:
        """Return the messages that a publication contains or completes, in order.

        Args:
            incoming: The publication.
            sender: Its sender, whose fragments may displace only each other.
        """
        try:
            if incoming.content == BATCH_CONTENT:
                return [
                    incoming._replace(payload=i.payload, age_s=i.age_s, content=None)
                    for i in decode_batch(incoming.payload)
                ]
            if incoming.content == FRAGMENT_CONTENT:
                chunk = Fragment.decode(incoming.payload)
                whole = self._joiner.add(incoming.topic, chunk, sender)
                if whole is None:
                    return []
                return [incoming._replace(payload=whole, content=None)]
        except BatchError as error:
            cause = incoming.topic, incoming.content
            if (count := self._log_limit.count(cause)) is not None:
                log.error(  # noqa: TRY400 - no bug
                    "cannot unpack %s (%d times): %s", incoming.topic, count, error
                )
            return []
        return [incoming]


@dataclass(frozen=True)
class _Urgent(Generic[T]):
    """An urgent item in its place among the others; a batch may have it already."""

    item: T
    number: int


class BatchQueue(Generic[T]):
    """Queue between a network thread and the thread that stores, read in batches.

    Urgent items are in the next batch, whatever has arrived before them, and that batch
    is small. MQTT requires acknowledgements in the order of arrival, so these wait for
    the items before; see `passed`.

    Args:
        clock: Monotonic seconds.
        is_urgent: Whether an item must not wait for others.

    Attributes:
        passed: Items to acknowledge when the last batch is stored, in the order of
            arrival. All of them were in that batch or in an earlier one.
    """

    def __init__(
        self, clock: Callable[[], float], is_urgent: Callable[[T], bool]
    ) -> None:
        self._clock = clock
        self._is_urgent = is_urgent
        self._lock = threading.Lock()
        self._arrived: SimpleQueue[T | _Urgent[T] | None] = SimpleQueue()
        self._urgent: deque[_Urgent[T]] = deque()
        self._urgent_put = self._urgent_taken = 0
        self.passed: list[T] = []
        self._has_urgent = threading.Event()
        self._has_enough = threading.Event()
        self._batch_at_s = self._gathers_from_s = clock() - GATHER_S
        self._batch_size = 0

    def put(self, item: T) -> None:
        """Add an item."""
        if self._is_urgent(item):
            with self._lock:  # the same order in both
                urgent = _Urgent(item, self._urgent_put)
                self._urgent_put += 1
                self._urgent.append(urgent)
                self._arrived.put(urgent)
            self._has_urgent.set()
            self._has_enough.set()
            return
        self._arrived.put(item)
        if self._arrived.qsize() >= GATHERED_BATCH - 1:  # one is already taken
            self._has_enough.set()

    def close(self) -> None:
        """End the batches after the items that have arrived."""
        self._arrived.put(None)
        self._has_urgent.set()
        self._has_enough.set()

    def next_batch(self, timeout_s: float) -> list[T] | None:
        """Return the items to store next; `passed` are those to acknowledge then.

        The list is empty after `timeout_s` without an item; None means closed.
        """
        pause_ends_s = self._clock() + self._pause_s()
        self.passed = []
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
        batch = self._read(first)
        self._batch_size = len(batch)
        if is_gathered and self._batch_size == 1:
            self._gathers_from_s = self._batch_at_s + IN_VAIN_S
        return batch

    def take_urgent(self) -> list[T]:
        """Remove and return the urgent items that no batch has had.

        They are in `passed` of the batch of their place, so store them before it.
        """
        return [self._take_urgent() for _ in range(len(self._urgent))]

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

    def _read(self, first: T | _Urgent[T]) -> list[T]:
        """A batch that begins with an item, and has every urgent one if possible."""
        batch: list[T] = []
        limit = FULL_BATCH if self._urgent else MAX_BATCH
        entry: T | _Urgent[T] | None = first
        while True:
            if entry is None:
                self._arrived.put(None)
                break
            self._take(entry, batch)
            if len(batch) >= limit:
                break
            try:
                entry = self._arrived.get_nowait()
            except Empty:
                break
        while self._urgent and len(batch) < MAX_BATCH:
            batch.append(self._take_urgent())
        return batch

    def _take(self, entry: T | _Urgent[T], batch: list[T]) -> None:
        """Add an item that has arrived to a batch, unless an earlier one had it."""
        if not isinstance(entry, _Urgent):
            batch.append(entry)
            self.passed.append(entry)
            return
        self.passed.append(entry.item)
        if entry.number >= self._urgent_taken:
            batch.append(self._take_urgent())

    def _take_urgent(self) -> T:
        self._urgent_taken += 1
        return self._urgent.popleft().item


BURST_S = 10.0
"""Size of a bucket in seconds of its rate: a node that was cut off has a backlog."""

BYTES_PER_MESSAGE = 1024
"""A message above this size counts as several."""

MAX_ACCOUNTS = 50_000
MAX_FILE_BYTES = 16 * 2**20
"""Size at which the quarantine file is rotated; one older file is kept."""

LOG_EVERY_S = 60.0


@dataclass
class _Account:
    bucket: TokenBucket
    logged_s: float | None = None


class Sender(NamedTuple):
    """What a rate limit applies to.

    Urgent messages count by themselves, so that a flood of readings does not block the
    node's own alarm.

    Attributes:
        name: The publisher's certificate name where the topic has one, otherwise the
            topic; the id in an envelope could be forged.
        is_urgent: Whether its messages are urgent.
    """

    name: str
    is_urgent: bool

    @classmethod
    def of(cls, topic: ForwardTopic, *, is_urgent: bool) -> "Sender":
        """The sender of a publication on a topic."""
        return cls(topic.publisher or topic.topic, is_urgent)


class SenderRateLimit:
    """Token buckets per sender, with the least recently used discarded first.

    Args:
        max_per_s: Messages of up to `BYTES_PER_MESSAGE` per second for each bucket;
            None is no limit.

    Attributes:
        rejected: Publications that were rejected.
    """

    def __init__(self, max_per_s: float | None) -> None:
        self._per_s = max_per_s
        self._accounts: OrderedDict[Sender, _Account] = OrderedDict()
        self.rejected = 0

    def allows(self, sender: Sender, now_s: float) -> bool:
        """Whether a sender is within its limit."""
        if self._per_s is None:
            return True
        account = self._account(sender, self._per_s)
        if account.bucket.wait_s(now_s) <= 0:
            return True
        self.rejected += 1
        if account.logged_s is None or now_s - account.logged_s >= LOG_EVERY_S:
            account.logged_s = now_s
            log.warning(
                "%s sends more than %g messages/s; the excess is rejected without a "
                "receipt",
                sender.name,
                self._per_s,
            )
        return False

    def charge(
        self,
        sender: Sender,
        publication: IncomingMessage,
        messages: Sequence[IncomingMessage],
        now_s: float,
    ) -> None:
        """Charge a sender for the messages in a publication, and for at least one."""
        if self._per_s is not None:
            account = self._account(sender, self._per_s)
            # A message takes space for its topic, too.
            size_bytes = sum(len(each.payload) + len(each.topic) for each in messages)
            size_bytes = max(len(publication.payload), size_bytes)
            tokens = max(1, len(messages), size_bytes // BYTES_PER_MESSAGE)
            account.bucket.spend(tokens, now_s)

    def _account(self, sender: Sender, per_s: float) -> _Account:
        account = self._accounts.get(sender)
        if account is None:
            account = _Account(TokenBucket(per_s, per_s * BURST_S))
            self._accounts[sender] = account
            if len(self._accounts) > MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(sender)
        return account


class IdentityCheck:
    """Quarantines messages whose node id differs from the publisher's certificate.

    The broker lets a certificate publish under ``/from/<its own name>/`` only, so the
    topic names the true publisher. A different node id in the message is forged, or the
    node's settings do not match its certificate. A message without an id gets the
    gateway's and is always accepted.

    Args:
        path: Quarantine file with one JSON object per line: Unix time, topic, id, and
            the payload in base64.
        wall_s: Unix time.
        has_certificates: Whether clients of the own broker have certificates. Without
            them no publisher is known, and every id is accepted.

    Attributes:
        quarantined: Messages quarantined since the start.
    """

    def __init__(
        self, path: Path, wall_s: Callable[[], float], *, has_certificates: bool
    ) -> None:
        self._path = path
        self._wall_s = wall_s
        self._has_names = has_certificates
        self._logged_s: float | None = None
        self.quarantined = 0

    def filter_genuine(self, messages: Iterable[ParsedMessage]) -> list[ParsedMessage]:
        """Quarantine forged messages and return the others."""
        genuine: list[ParsedMessage] = []
        forged: list[ParsedMessage] = []
        for message in messages:
            (genuine if self._is_genuine(message) else forged).append(message)
        if forged:
            self._quarantine(forged)
        return genuine

    def _is_genuine(self, message: ParsedMessage) -> bool:
        claimed = message.draft.id
        if claimed is None:
            return True
        if message.publisher_id is None:
            return not self._has_names
        return claimed.node == message.publisher_id

    def _quarantine(self, forged: list[ParsedMessage]) -> None:
        self.quarantined += len(forged)
        now_s = self._wall_s()
        if self._logged_s is None or abs(now_s - self._logged_s) >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "%s publishes under the id %s; put aside without a receipt in %s "
                "(%d so far)",
                forged[0].publisher_id or "a client without a certificate name",
                forged[0].draft.id,
                self._path,
                self.quarantined,
            )
        try:
            self._append(b"".join(_line(message, now_s) for message in forged))
        except OSError as error:  # only evidence is lost: go on with the others
            log.warning("cannot write %s: %s", self._path, error)

    def _append(self, lines: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size > MAX_FILE_BYTES:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        with self._path.open("ab") as file:
            file.write(lines)


def _line(message: ParsedMessage, now_s: float) -> bytes:
    record = {
        "at": now_s,
        "topic": message.incoming.topic,
        "id": str(message.draft.id),
        "payload": message.incoming.payload,
    }
    return msgspec.json.encode(record) + b"\n"
