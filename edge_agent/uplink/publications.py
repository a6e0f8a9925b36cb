"""Publications built from queued messages: one message, a parcel, or a chunk of one."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edge_agent.queue.base import Message, Queue
from edge_agent.uplink.in_flight import Custody, Flight, Limits
from edge_agent.uplink.scheduler import Order
from spatial_mqtt.batching import Chunk, Item, cut, encode_parcel
from spatial_mqtt.priority import LADDER, QosPolicy
from spatial_mqtt.topics import CHUNK, PARCEL, Forward, custody_topic
from spatial_mqtt.transport import Publication

PARCEL_RAW_BYTES = 8192
PARCEL_MESSAGES = 64
PARCEL_BYTES = 1200
"""Fits one segment with topic and headers, because nothing overtakes within it."""

CONTENT_BYTES = 9
"""Size of the MQTT 5 Content Type property of a parcel."""

CHUNK_BYTES = 1200
UNCUT_BYTES = 2 * CHUNK_BYTES


@dataclass(frozen=True)
class Sender:
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
        always_sends_ids: Always send id and priority as properties, as on loopback, where
            their size does not matter.
        publisher_id: Publisher id in the topics, for a broker that checks it against the
            certificate.
    """

    id: str
    is_relay: bool = False
    qos_policy: QosPolicy = field(default_factory=QosPolicy)
    limits: Limits = field(default_factory=Limits)
    custody: Custody = Custody.AUTO
    gather_s: float = 0.0
    keepalive_s: int = 60
    always_sends_ids: bool = False
    publisher_id: str | None = None

    def publish_topic(self, topic: str) -> str:
        """Topic on which a message for a ``/forward`` topic is published."""
        if self.publisher_id is None:
            return topic
        return str(replace(Forward.parse(topic), publisher=self.publisher_id))


class Load(NamedTuple):
    """A publication and the messages that are completely sent with it.

    Attributes:
        publication: As passed to the connection.
        messages: Empty for all chunks of a large message but the last.
    """

    publication: Publication
    messages: tuple[Message, ...]

    @property
    def packet_bytes(self) -> int:
        """Approximate size of its packet."""
        return len(self.publication.topic) + len(self.publication.payload) + 12


class Loader:
    """Builds publications from queued messages, most urgent first.

    Args:
        queue: The queue.
        sender: Identity and settings.
        in_flight: State of the link, with the content types that the receiver decodes.
    """

    def __init__(self, queue: Queue, sender: Sender, in_flight: Flight) -> None:
        self._queue = queue
        self._sender = sender
        self._in_flight = in_flight
        self._scheduler = Order(queue, sender.gather_s)
        self._large: Message | None = None
        self._chunks: list[Chunk] = []

    def next_priority(self, now_s: float) -> int | None:
        """Priority of the next publication; None when none may be sent."""
        waiting = self._scheduler.next_priority(now_s)
        if self._large is None:
            return waiting
        return max(waiting or 0, self._large.priority)

    def build_next(self, priority: int) -> Load | None:
        """Build the next publication; None without a message."""
        if self._large is not None and priority <= self._large.priority:
            return self._next_chunk(self._large)
        limit = PARCEL_MESSAGES if self._may_share(priority) else 1
        batch = self._scheduler.lease(priority, limit, PARCEL_RAW_BYTES)
        if not batch:
            return None
        load = self._build(batch)
        self._scheduler.charge(priority, load.packet_bytes)
        return load

    def build_burst(self, priority: int, max_count: int, max_bytes: int) -> list[Load]:
        """Build the next publications: several if each contains one message.

        Args:
            priority: Of all of them.
            max_count: Maximum number.
            max_bytes: Approximate maximum of their total size; the first always fits.
        """
        packs = self._in_flight.accepts_any(PARCEL) or self._in_flight.accepts_any(
            CHUNK
        )
        if packs or self._large is not None or max_count == 1:
            load = self.build_next(priority)
            return [] if load is None else [load]
        batch = self._scheduler.lease(priority, max_count, max_bytes, is_mixed=True)
        loads = [Load(self._publication(message), (message,)) for message in batch]
        self._scheduler.charge(priority, sum(load.packet_bytes for load in loads))
        return loads

    def release(self, loads: list[Load]) -> None:
        """Release the messages of publications that were not sent."""
        self._queue.release([m.seq for load in loads for m in load.messages])
        self.release_large()

    def release_large(self) -> None:
        """Release a large message that was sent in part; it starts again."""
        if self._large is not None:
            self._queue.release([self._large.seq])
            self._large = None

    def _may_share(self, priority: int) -> bool:
        return not LADDER.is_urgent(priority) and self._in_flight.accepts_any(PARCEL)

    def _build(self, batch: list[Message]) -> Load:
        first = batch[0]
        is_urgent = LADDER.is_urgent(first.priority)
        if not is_urgent and self._in_flight.accepts(PARCEL, first.topic):
            return self._parcel(batch)
        return self._single(batch)

    def _single(self, batch: list[Message]) -> Load:
        """The first message of a batch or its first chunk; release the others."""
        first = batch[0]
        self._queue.release([m.seq for m in batch[1:]])
        is_large = len(first.payload) > UNCUT_BYTES
        if is_large and self._in_flight.accepts(CHUNK, first.topic):
            self._large = first
            self._chunks = cut(str(first.id), first.payload, CHUNK_BYTES)
            return self._next_chunk(first)
        return Load(self._publication(first), (first,))

    def _parcel(self, batch: list[Message]) -> Load:
        """A parcel of as many messages as fit a segment; release the others."""
        count = len(batch)
        payload = self._packed(batch)
        while len(payload) > PARCEL_BYTES and count > 1:
            # The compression ratio hardly depends on the number of messages.
            count = min(count - 1, count * PARCEL_BYTES // len(payload)) or 1
            payload = self._packed(batch[:count])
        max_bytes = min(UNCUT_BYTES, len(batch[0].payload) - CONTENT_BYTES)
        if count == 1 and len(payload) >= max_bytes:
            return self._single(batch)
        self._queue.release([m.seq for m in batch[count:]])
        publication = self._publication(batch[0], payload, PARCEL)
        return Load(publication, tuple(batch[:count]))

    def _packed(self, batch: list[Message]) -> bytes:
        items = [Item(m.payload, self._scheduler.lateness_s(m)) for m in batch]
        return encode_parcel(items)

    def _next_chunk(self, message: Message) -> Load:
        chunk = self._chunks.pop(0).encode()
        publication = self._publication(message, chunk, CHUNK)
        if self._chunks:
            return Load(publication, ())
        self._large = None
        return Load(publication, (message,))

    def _publication(
        self, message: Message, payload: bytes | None = None, content: str | None = None
    ) -> Publication:
        delivery = self._sender.qos_policy.delivery(message.priority)
        # A peer that neither gives receipts nor forwards needs no custody topic and no
        # message id; in a small message these are a third of the bytes.
        is_relay, flight = self._sender.is_relay, self._in_flight
        is_named = is_relay and flight.needs_message_ids
        is_answered = is_named and flight.expects_receipt(message.topic)
        # The payload does not contain an id that the relay itself has assigned.
        is_opaque = is_named and message.id.node == self._sender.id
        names_all = self._sender.always_sends_ids
        is_parcel = content == PARCEL
        return Publication(
            topic=self._sender.publish_topic(message.topic),
            payload=message.payload if payload is None else payload,
            qos=delivery.qos,
            retain=delivery.retain,
            priority=message.priority if is_named or names_all else None,
            response_topic=custody_topic(self._sender.id) if is_answered else None,
            message_id=str(message.id) if is_opaque or names_all else None,
            expiry_s=delivery.expiry_s,
            content=content,
            age_s=None if is_parcel else self._scheduler.lateness_s(message),
        )
