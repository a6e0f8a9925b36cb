"""Scheduling: which messages are sent next, and the publications that are made of them.

Urgent priorities are strict. The others share the bytes by weight, so that a storm of
priority 3 does not starve routine readings. Within a priority that has a backlog,
current readings and late ones share the bytes in the same way, 3 to 1. A publication is
one message, a batch, or a chunk of one.

Source: weighted fair queueing (Demers, Keshav, Shenker 1989), with a virtual time.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edge_agent.queue.base import Queue, QueuedMessage
from edge_agent.uplink.in_flight import CustodyMode, FlightLimits, InFlight
from edge_agent.uplink.offer_memory import KnownStores
from spatial_mqtt.batching import BatchItem, encode_batch, split_message
from spatial_mqtt.custody import COMPACT_FORM, encode_correlation
from spatial_mqtt.errors import EnvelopeError, TopicError
from spatial_mqtt.priority import LADDER, QosPolicy
from spatial_mqtt.senml import decode_message_id, may_be_pack
from spatial_mqtt.topics import (
    BATCH_CONTENT,
    FRAGMENT_CONTENT,
    ForwardTopic,
    custody_topic,
)
from spatial_mqtt.transport import Publication

log = logging.getLogger(__name__)

STRICT_FROM = LADDER.urgent_from
WEIGHTS: Mapping[int, float] = {3: 8.0, 2: 4.0, 1: 1.0}


class WeightedFairQueue:
    """Weighted fair queueing below `STRICT_FROM`, strict priority from there up.

    Args:
        weights: Weights of the priorities below `STRICT_FROM`.
    """

    def __init__(self, weights: Mapping[int, float] = WEIGHTS) -> None:
        self._weights = dict(weights)
        self._virtual_time = dict.fromkeys(self._weights, 0.0)
        self._previous: frozenset[int] = frozenset()

    def choose(self, waiting: Collection[int]) -> int | None:
        """The priority to serve next; None when none is waiting."""
        strict = [priority for priority in waiting if priority >= STRICT_FROM]
        if strict:
            return max(strict)
        self._advance_idle(frozenset(waiting))
        return min(waiting, key=lambda p: (self._virtual_time[p], -p), default=None)

    def charge(self, priority: int, size_bytes: int) -> None:
        """Charge a message that was sent."""
        if priority in self._weights:
            self._virtual_time[priority] += size_bytes / self._weights[priority]

    def _advance_idle(self, waiting: frozenset[int]) -> None:
        """Advance priorities that were idle: they have no credit for that time."""
        times = [self._virtual_time[p] for p in waiting & self._previous]
        if times:
            for priority in waiting - self._previous:
                time = self._virtual_time[priority]
                self._virtual_time[priority] = max(time, min(times))
        self._previous = waiting


LATE_AFTER_S = 60.0
"""A message that waited longer is late and is sent with its age."""

MAX_GATHER_PRIORITY = 2
"""Highest priority whose messages may wait to share a publication."""

FULL_BATCH_BYTES = 6000
FULL_BATCH_MESSAGES = 64
"""What fills a batch, and so a segment, waits no longer. Our readings are deflated to
about a quarter; others take several segments."""

FULL_CHECK_INTERVAL_S = 1.0

_LIVE, _LATE = 1, 0
_LIVE_WEIGHTS = {_LIVE: 3.0, _LATE: 1.0}


class PriorityScheduler:
    """Leases messages from a queue in the order in which they should be sent.

    Args:
        queue: The queue; nothing else may lease from it.
        gather_s: How long routine messages wait to share a publication, if they do
            not fill one before.
    """

    def __init__(self, queue: Queue, gather_s: float = 0.0) -> None:
        self._queue = queue
        self._gather_s = gather_s
        # Messages held back for batching do not count as late.
        self._late_after_s = LATE_AFTER_S + gather_s
        self._fair_queue = WeightedFairQueue()
        self._live_queues: dict[int, WeightedFairQueue] = {}
        self._waiting_since: dict[int, float] = {}
        self._next_check_s: dict[int, float] = {}

    def next_priority(self, now_s: float, lowest: int) -> int | None:
        """The priority to serve next; None when no message may be sent.

        Args:
            now_s: Monotonic time.
            lowest: Lowest priority that the rate limit permits now; one below it only
                if no other waits.
        """
        waiting = self._queue.waiting_priorities()
        for priority in self._waiting_since.keys() - waiting:
            del self._waiting_since[priority]
        for priority in waiting:
            self._waiting_since.setdefault(priority, now_s)
        ripe = [p for p in waiting if self._is_ripe(p, now_s)]
        permitted = [p for p in ripe if p >= lowest]
        if ripe and not permitted:
            return max(ripe)  # without a turn: it is not sent now
        return self._fair_queue.choose(permitted)

    def lease(
        self, priority: int, limit: int, max_bytes: int, *, is_mixed: bool = False
    ) -> list[QueuedMessage]:
        """Lease the next messages of a priority.

        Args:
            priority: On the ladder.
            limit: Maximum number.
            max_bytes: Maximum payload bytes in total; the first always fits.
            is_mixed: Whether they may have different topics.

        Returns:
            The messages; empty when the queue has none, or when an urgent one of a
            higher priority was put since this priority was chosen. What was put after
            that one would otherwise be leased as well, and be sent before it.
        """
        batch = self._lease(priority, limit, max_bytes, is_mixed=is_mixed)
        if batch and self._has_urgent_above(priority):
            self._queue.release([m.seq for m in batch])
            return []
        return batch

    def _lease(
        self, priority: int, limit: int, max_bytes: int, *, is_mixed: bool
    ) -> list[QueuedMessage]:
        keep = list if is_mixed else self._of_one_topic
        batch = self._queue.lease(limit, max_bytes, priority=priority)
        if priority >= STRICT_FROM or not batch or not self.lateness_s(batch[0]):
            return keep(batch)
        live_queue = self._live_queues.setdefault(
            priority, WeightedFairQueue(_LIVE_WEIGHTS)
        )
        kept: list[QueuedMessage] = []
        turn = live_queue.choose((_LIVE, _LATE))
        if turn == _LIVE:
            self._queue.release([m.seq for m in batch])
            kept = keep(self._newest(priority, limit, max_bytes))[::-1]
            batch = kept or self._queue.lease(limit, max_bytes, priority=priority)
        if not kept:
            kept, turn = keep(batch), _LATE
        live_queue.charge(turn or _LATE, sum(len(m.payload) for m in kept))
        return kept

    def charge(self, priority: int, size_bytes: int) -> None:
        """Charge a publication that was sent."""
        self._fair_queue.charge(priority, size_bytes)

    def lateness_s(self, message: QueuedMessage) -> int | None:
        """Age of a late message in seconds; None when it is not late."""
        age_s = self._queue.age_s(message)
        return int(age_s) if age_s is not None and age_s > self._late_after_s else None

    def _has_urgent_above(self, priority: int) -> bool:
        """Whether an urgent message of a higher priority waits."""
        highest = max(self._queue.waiting_priorities(), default=0)
        return highest > priority and highest >= STRICT_FROM

    def _is_ripe(self, priority: int, now_s: float) -> bool:
        if priority > MAX_GATHER_PRIORITY:
            return True
        waited_s = now_s - self._waiting_since[priority]
        return waited_s >= self._gather_s or self._fills_batch(priority, now_s)

    def _fills_batch(self, priority: int, now_s: float) -> bool:
        """Whether enough waits for a full batch; looked up once in a second if not."""
        if now_s < self._next_check_s.get(priority, 0.0):
            return False
        batch = self._queue.lease(
            FULL_BATCH_MESSAGES, FULL_BATCH_BYTES, priority=priority
        )
        self._queue.release([m.seq for m in batch])
        size_bytes = sum(len(m.payload) for m in batch)
        is_full = len(batch) == FULL_BATCH_MESSAGES
        if is_full or size_bytes > FULL_BATCH_BYTES * 3 // 4:
            return True
        self._next_check_s[priority] = now_s + FULL_CHECK_INTERVAL_S
        return False

    def _newest(self, priority: int, limit: int, max_bytes: int) -> list[QueuedMessage]:
        """The newest messages that are not late, newest first."""
        batch = self._queue.lease(limit, max_bytes, priority=priority, newest=True)
        late = [m.seq for m in batch if self.lateness_s(m) is not None]
        self._queue.release(late)
        return [m for m in batch if m.seq not in late]

    def _of_one_topic(self, batch: list[QueuedMessage]) -> list[QueuedMessage]:
        """The messages with the topic of the first; release the others."""
        others = [m.seq for m in batch if m.topic != batch[0].topic]
        self._queue.release(others)
        return [m for m in batch if m.topic == batch[0].topic]


MAX_PARCEL_RAW_BYTES = 8192
MAX_PARCEL_BYTES = 1200
"""Maximum size of a batch (content type ``parcel``): a segment with topic and headers,
because an urgent message cannot overtake within it."""

CONTENT_TYPE_BYTES = 9
"""Size of the MQTT 5 Content Type property of a batch."""

CHUNK_BYTES = 1200
MAX_UNCHUNKED_BYTES = 2 * CHUNK_BYTES


@dataclass(frozen=True)
class SenderProfile:
    """Identity and settings of a sender.

    Attributes:
        id: Name of its custody topic and MQTT session.
        is_relay: True for a gateway: it puts its custody topic and the priority into
            properties, because ids and topics of its messages are those of the nodes.
        qos_policy: QoS of each priority.
        limits: Limits of the messages in flight.
        custody: When a message may leave the queue.
        gather_s: How long routine messages wait to share a publication.
        keepalive_s: MQTT keep-alive.
        always_sends_ids: Always send id and priority as properties, as on loopback,
            where their size does not matter.
        publisher_id: Publisher id in the topics, for a broker that checks it against
            the certificate.
        has_compact_peers: Whether all other gateways read `COMPACT_FORM` now.
        stores: Stores at all brokers of a gateway.
    """

    id: str
    is_relay: bool = False
    qos_policy: QosPolicy = field(default_factory=QosPolicy)
    limits: FlightLimits = field(default_factory=FlightLimits)
    custody: CustodyMode = CustodyMode.AUTO
    gather_s: float = 0.0
    keepalive_s: int = 60
    always_sends_ids: bool = False
    publisher_id: str | None = None
    has_compact_peers: Callable[[], bool] = lambda: False
    stores: KnownStores | None = None

    def publish_topic(self, topic: str, *, has_priority: bool) -> str:
        """Topic on which a queued message is published.

        Args:
            topic: A ``/forward`` topic with its priority; others are not changed.
            has_priority: Whether the priority stays in it.
        """
        if self.is_relay or (has_priority and self.publisher_id is None):
            return topic
        try:
            forward = ForwardTopic.parse(topic)
        except TopicError:
            return topic
        priority = forward.priority if has_priority else None
        return str(replace(forward, priority=priority, publisher=self.publisher_id))


class OutgoingPublication(NamedTuple):
    """A publication and the messages that are completely sent with it.

    Attributes:
        publication: As passed to the connection.
        messages: Empty for all chunks of a large message but the last.
    """

    publication: Publication
    messages: tuple[QueuedMessage, ...]

    @property
    def packet_bytes(self) -> int:
        """Approximate size of its packet."""
        return len(self.publication.topic) + len(self.publication.payload) + 12


class PublicationBuilder:
    """Builds publications from queued messages, most urgent first.

    Args:
        queue: The queue.
        sender: Identity and settings.
        in_flight: State of the link, with the content types that the receiver decodes.

    Attributes:
        withheld_count: Messages of another node that are not sent.
    """

    def __init__(
        self, queue: Queue, sender: SenderProfile, in_flight: InFlight
    ) -> None:
        self._queue = queue
        self._sender = sender
        self._in_flight = in_flight
        self._scheduler = PriorityScheduler(queue, sender.gather_s)
        self.withheld_count = 0
        # Large messages that were sent in part, and the encoded fragments that are left
        # to be sent; the most urgent message last.
        self._large: list[tuple[QueuedMessage, list[bytes]]] = []
        # Routine ones that a break has ended, still leased, and the bytes of whole
        # messages of each priority since the last break.
        self._interrupted: list[QueuedMessage] = []
        self._passed_bytes: dict[int, int] = {}

    def next_priority(self, now_s: float, lowest: int) -> int | None:
        """Priority of the next publication; see `PriorityScheduler.next_priority`."""
        self._resume_interrupted()
        waiting = self._scheduler.next_priority(now_s, lowest)
        if not self._large:
            return waiting
        return max(waiting or 0, self._large[-1][0].priority)

    def build_next(self, priority: int) -> OutgoingPublication | None:
        """Build the next publication; None if `PriorityScheduler.lease` has none."""
        if self._large and priority <= self._large[-1][0].priority:
            large = self._large[-1][0]
            load = self._next_chunk()
            self._charge(large.priority, [load])
            return load
        limit = FULL_BATCH_MESSAGES if self._may_share(priority) else 1
        batch = self._lease(priority, limit, MAX_PARCEL_RAW_BYTES)
        if not batch:
            return None
        load = self._build(batch)
        self._charge(priority, [load])
        return load

    def _charge(self, priority: int, loads: Sequence[OutgoingPublication]) -> None:
        self._scheduler.charge(priority, sum(load.packet_bytes for load in loads))
        passed_bytes = self._passed_bytes.get(priority, 0)
        passed_bytes += sum(len(m.payload) for load in loads for m in load.messages)
        self._passed_bytes[priority] = passed_bytes

    def build_burst(
        self, priority: int, max_count: int, max_bytes: int
    ) -> list[OutgoingPublication]:
        """Build the next publications: several if each contains one message.

        Empty if `PriorityScheduler.lease` has none.

        Args:
            priority: Of all of them.
            max_count: Maximum number.
            max_bytes: Approximate maximum of their total size; the first always fits.
        """
        packs = self._may_use(BATCH_CONTENT) or self._may_use(FRAGMENT_CONTENT)
        if packs or self._large or max_count == 1:
            load = self.build_next(priority)
            return [] if load is None else [load]
        batch = self._lease(priority, max_count, max_bytes, is_mixed=True)
        loads = [
            OutgoingPublication(self._publication(message), (message,))
            for message in batch
        ]
        self._charge(priority, loads)
        return loads

    def put_back(self, loads: list[OutgoingPublication]) -> None:
        """Put back publications that did not fit; large messages go on where they were.

        Args:
            loads: The publications that were built last.
        """
        for load in loads:
            if load.publication.content == FRAGMENT_CONTENT:
                self._put_back_chunk(load)
            else:
                self._queue.release([m.seq for m in load.messages])

    def _put_back_chunk(self, load: OutgoingPublication) -> None:
        for message in load.messages:  # it was the last one
            self._large.append((message, []))
        message, chunks = self._large[-1]
        chunks.insert(0, load.publication.payload)
        self._scheduler.charge(message.priority, -load.packet_bytes)

    def release(self, loads: list[OutgoingPublication]) -> None:
        """Release the messages of publications that were not sent."""
        self._queue.release([m.seq for load in loads for m in load.messages])
        self.release_large()

    def release_large(self) -> None:
        """Release large messages that were sent in part; they start again.

        A routine one that was the first of its priority on a link lets others go
        first, as many bytes as it has or until the next break: on a link that breaks
        every few kilobytes it would keep them back for ever.
        """
        large = [message for message, _ in self._large]
        again = [
            m.seq
            for m in large
            if LADDER.is_urgent(m.priority) or self._passed_bytes.get(m.priority)
        ]
        self._queue.release(again)
        self._interrupted += [m for m in large if m.seq not in again]
        self._large.clear()
        self._passed_bytes.clear()

    def _resume_interrupted(self) -> None:
        """Release interrupted messages when no others wait, or enough have passed."""
        if not self._interrupted:
            return
        waiting = self._queue.waiting_priorities()
        for message in list(self._interrupted):
            priority, size_bytes = message.priority, len(message.payload)
            passed_bytes = self._passed_bytes.get(priority, 0)
            if priority not in waiting or passed_bytes >= size_bytes:
                self._interrupted.remove(message)
                self._queue.release([message.seq])

    def _lease(
        self, priority: int, limit: int, max_bytes: int, *, is_mixed: bool = False
    ) -> list[QueuedMessage]:
        """Lease messages; withhold those that gateways refuse from this certificate."""
        while True:
            batch = self._scheduler.lease(priority, limit, max_bytes, is_mixed=is_mixed)
            is_checked = self._sender.publisher_id is not None
            others = [m for m in batch if is_checked and self._is_of_another(m)]
            if not others:
                return batch
            self._withhold(others)
            if own := [m for m in batch if m not in others]:
                return own

    def _is_of_another(self, message: QueuedMessage) -> bool:
        """Whether a message of this node's queue has the id of another node."""
        return not self._sender.is_relay and message.id.node != self._sender.id

    def _withhold(self, messages: list[QueuedMessage]) -> None:
        if not self.withheld_count:
            log.error(
                "messages of another node, such as %s, are in the queue and are not "
                "sent: gateways refuse them from the certificate of %s; save them by "
                "edge-agent queue export and send them by edge-agent queue replay with "
                "the settings and the certificate of that node",
                ascii(str(messages[0].id)),
                self._sender.id,
            )
        self.withheld_count += len(messages)
        self._queue.withhold([m.seq for m in messages])

    def _may_share(self, priority: int) -> bool:
        return not LADDER.is_urgent(priority) and self._may_use(BATCH_CONTENT)

    def _may_use(self, content: str, topic: str | None = None) -> bool:
        """Whether every receiver decodes a content type, on a topic or on some topic.

        A relay's messages also go to subscribers that make no offer.
        """
        if self._sender.is_relay:
            return False
        if topic is None:
            return self._in_flight.accepts_any(content)
        return self._in_flight.accepts(content, topic)

    def _build(self, batch: list[QueuedMessage]) -> OutgoingPublication:
        first = batch[0]
        is_urgent = LADDER.is_urgent(first.priority)
        if not is_urgent and self._may_use(BATCH_CONTENT, first.topic):
            return self._parcel(batch)
        return self._single(batch)

    def _single(self, batch: list[QueuedMessage]) -> OutgoingPublication:
        """The first message of a batch or its first chunk; release the others."""
        first = batch[0]
        self._queue.release([m.seq for m in batch[1:]])
        is_large = len(first.payload) > MAX_UNCHUNKED_BYTES
        if is_large and self._may_use(FRAGMENT_CONTENT, first.topic):
            chunks = split_message(str(first.id), first.payload, CHUNK_BYTES)
            self._large.append((first, [chunk.encode() for chunk in chunks]))
            return self._next_chunk()
        return OutgoingPublication(self._publication(first), (first,))

    def _parcel(self, batch: list[QueuedMessage]) -> OutgoingPublication:
        """A batch of as many messages as fit a segment; release the others."""
        count = len(batch)
        payload = self._packed(batch)
        while len(payload) > MAX_PARCEL_BYTES and count > 1:
            # The compression ratio hardly depends on the number of messages.
            count = min(count - 1, count * MAX_PARCEL_BYTES // len(payload)) or 1
            payload = self._packed(batch[:count])
        max_bytes = min(MAX_UNCHUNKED_BYTES, len(batch[0].payload) - CONTENT_TYPE_BYTES)
        if count == 1 and len(payload) >= max_bytes:
            return self._single(batch)
        self._queue.release([m.seq for m in batch[count:]])
        sent = batch[:count]
        # The receipts of all of them go where that of one must go.
        one = next(filter(self._is_of_another, sent), sent[0])
        publication = self._publication(one, payload, BATCH_CONTENT)
        return OutgoingPublication(publication, tuple(sent))

    def _packed(self, batch: list[QueuedMessage]) -> bytes:
        items = [BatchItem(m.payload, self._scheduler.lateness_s(m)) for m in batch]
        return encode_batch(items)

    def _next_chunk(self) -> OutgoingPublication:
        message, chunks = self._large[-1]
        publication = self._publication(message, chunks.pop(0), FRAGMENT_CONTENT)
        if chunks:
            return OutgoingPublication(publication, ())
        self._large.pop()
        return OutgoingPublication(publication, (message,))

    def _publication(
        self,
        message: QueuedMessage,
        payload: bytes | None = None,
        content: str | None = None,
    ) -> Publication:
        delivery = self._sender.qos_policy.delivery(message.priority)
        # Without a store no receipt can come, and the custody topic would only cost
        # bytes. Other gateways need priority and id even then.
        is_relay, flight = self._sender.is_relay, self._in_flight
        # Receipts of an id of another node would go to that node.
        names_sender = is_relay or self._is_of_another(message)
        is_answered = names_sender and flight.expects_receipt(message.topic)
        names_all = self._sender.always_sends_ids
        is_opaque = is_relay and not names_all and self._is_opaque(message)
        is_parcel = content == BATCH_CONTENT
        is_in_topic = not is_relay and flight.reads_priority(message.topic)
        publication = Publication(
            topic=self._sender.publish_topic(message.topic, has_priority=is_in_topic),
            payload=message.payload if payload is None else payload,
            qos=delivery.qos,
            retain=delivery.retain,
            expiry_s=delivery.expiry_s,
            content=content,
            age_s=None if is_parcel else self._scheduler.lateness_s(message),
        )
        if is_relay and not names_all and self._may_be_compact(message.topic):
            compact = encode_correlation(
                message.priority,
                message.id if is_opaque else None,
                self._sender.id if is_answered else None,
            )
            if compact is not None:
                return publication._replace(correlation=compact)
        return publication._replace(
            priority=message.priority if names_all or not is_in_topic else None,
            response_topic=custody_topic(self._sender.id) if is_answered else None,
            message_id=str(message.id) if is_opaque or names_all else None,
        )

    def _is_opaque(self, message: QueuedMessage) -> bool:
        """Whether the payload lacks the id: the relay or a client has assigned it."""
        if message.id.node == self._sender.id or not may_be_pack(message.payload):
            return True
        try:
            return decode_message_id(message.payload)[0] != message.id
        except EnvelopeError:
            return True

    def _may_be_compact(self, topic: str) -> bool:
        """Whether every store of a topic and every other gateway reads that form."""
        is_read = self._in_flight.stores_take(COMPACT_FORM, topic)
        return is_read and self._sender.has_compact_peers()
