"""What one publication carries: a message, a parcel of them, or a piece of one."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edge_agent.queue.base import Message, Queue
from edge_agent.uplink.in_flight import Custody, Flight, Limits
from edge_agent.uplink.scheduler import Order
from spatial_mqtt.batching import Chunk, Item, cut, encode_parcel
from spatial_mqtt.priority import QosPolicy
from spatial_mqtt.topics import CHUNK, PARCEL, Forward, custody_topic
from spatial_mqtt.transport import Publication

PARCELS_UP_TO = 3
"""Priorities whose messages may share a publication."""

PARCEL_RAW_BYTES = 8192
PARCEL_MESSAGES = 64
PARCEL_BYTES = 1200
"""Fits one segment, with its topic and headers: nothing overtakes within it."""

CONTENT_BYTES = 9
"""What the name of a parcel costs as MQTT 5's Content Type."""

CHUNK_BYTES = 1200
UNCUT_BYTES = 2 * CHUNK_BYTES


@dataclass(frozen=True)
class Sender:
    """Who sends, and how.

    Attributes:
        id: Names our custody topic and MQTT session.
        is_relay: A gateway: names itself in each message for the receipt, and
            carries the priority as a property because its topics have none.
        policy: QoS of each priority.
        limits: Bounds of the flight.
        custody: When a message may leave our queue.
        gather_s: How long routine messages wait for company.
        keepalive_s: Silence after which the link is tried.
        names_all: Whether every message says its id and priority, whoever listens:
            on a broker's own machine that costs nothing.
        by: Our name in the topics, for a broker that lets nobody else write it there.
    """

    id: str
    is_relay: bool = False
    policy: QosPolicy = field(default_factory=QosPolicy)
    limits: Limits = field(default_factory=Limits)
    custody: Custody = Custody.AUTO
    gather_s: float = 0.0
    keepalive_s: int = 60
    names_all: bool = False
    by: str | None = None

    def addressed(self, topic: str) -> str:
        """Where a message that waits for a ``/forward`` topic is published."""
        if self.by is None:
            return topic
        return str(replace(Forward.parse(topic), by=self.by))


class Load(NamedTuple):
    """One publication.

    Attributes:
        publication: As it goes to the link.
        messages: Those that are all sent with it; none with the first pieces of
            a large one.
    """

    publication: Publication
    messages: tuple[Message, ...]

    @property
    def packet_bytes(self) -> int:
        """About what its packet takes."""
        return len(self.publication.topic) + len(self.publication.payload) + 12


class Loader:
    """Makes publications of what waits, most urgent first.

    Args:
        queue: Where messages wait.
        sender: Who sends, and how.
        flight: Knows what the receiver reads.
    """

    def __init__(self, queue: Queue, sender: Sender, flight: Flight) -> None:
        self._queue = queue
        self._sender = sender
        self._flight = flight
        self._order = Order(queue, sender.gather_s)
        self._large: Message | None = None
        self._chunks: list[Chunk] = []

    def next_priority(self, now_s: float) -> int | None:
        """Priority of the next load; None when none may go."""
        waiting = self._order.next(now_s)
        if self._large is None:
            return waiting
        return max(waiting or 0, self._large.priority)

    def load(self, priority: int) -> Load | None:
        """Take the next load; None when there is none after all."""
        if self._large is not None and priority <= self._large.priority:
            return self._piece(self._large)
        batch = self._order.take(priority, *self._most(priority))
        if not batch:
            return None
        load = self._loaded(batch)
        self._order.spend(priority, load.packet_bytes)
        return load

    def loads(self, priority: int, most: int, max_bytes: int) -> list[Load]:
        """Take the next loads: several where each carries one message.

        Args:
            priority: Of all of them.
            most: How many there may be.
            max_bytes: About how large they may be together; the first always fits.
        """
        packs = self._flight.takes_any(PARCEL) or self._flight.takes_any(CHUNK)
        if packs or self._large is not None or most == 1:
            load = self.load(priority)
            return [] if load is None else [load]
        batch = self._order.take(priority, most, max_bytes, is_mixed=True)
        loads = [Load(self._publication(message), (message,)) for message in batch]
        self._order.spend(priority, sum(load.packet_bytes for load in loads))
        return loads

    def give_back(self, loads: list[Load]) -> None:
        """These were not handed over; nor is what was begun with them."""
        self._queue.release([m.seq for load in loads for m in load.messages])
        self.forget_large()

    def forget_large(self) -> None:
        """Give back a large message that is not all sent: it begins again."""
        if self._large is not None:
            self._queue.release([self._large.seq])
            self._large = None

    def _most(self, priority: int) -> tuple[int, int]:
        """How many messages, and of how many bytes, may share a publication."""
        may_share = priority <= PARCELS_UP_TO and self._flight.takes_any(PARCEL)
        return (PARCEL_MESSAGES if may_share else 1), PARCEL_RAW_BYTES

    def _loaded(self, batch: list[Message]) -> Load:
        first = batch[0]
        is_routine = first.priority <= PARCELS_UP_TO
        if is_routine and self._flight.takes(PARCEL, first.topic):
            return self._parcel(batch)
        return self._alone(batch)

    def _alone(self, batch: list[Message]) -> Load:
        """The first of a batch, or its first piece; the rest goes back."""
        first = batch[0]
        self._queue.release([m.seq for m in batch[1:]])
        is_large = len(first.payload) > UNCUT_BYTES
        if is_large and self._flight.takes(CHUNK, first.topic):
            self._large = first
            self._chunks = cut(str(first.id), first.payload, CHUNK_BYTES)
            return self._piece(first)
        return Load(self._publication(first), (first,))

    def _parcel(self, batch: list[Message]) -> Load:
        """As many of the batch as fit a segment; the rest goes back."""
        count = len(batch)
        payload = self._packed(batch)
        while len(payload) > PARCEL_BYTES and count > 1:
            # What deflating saves is much the same for half as many.
            count = min(count - 1, count * PARCEL_BYTES // len(payload)) or 1
            payload = self._packed(batch[:count])
        most_bytes = min(UNCUT_BYTES, len(batch[0].payload) - CONTENT_BYTES)
        if count == 1 and len(payload) >= most_bytes:
            return self._alone(batch)
        self._queue.release([m.seq for m in batch[count:]])
        publication = self._publication(batch[0], payload, PARCEL)
        return Load(publication, tuple(batch[:count]))

    def _packed(self, batch: list[Message]) -> bytes:
        items = [Item(m.payload, self._order.lateness_s(m)) for m in batch]
        return encode_parcel(items)

    def _piece(self, message: Message) -> Load:
        piece = self._chunks.pop(0).encode()
        publication = self._publication(message, piece, CHUNK)
        if self._chunks:
            return Load(publication, ())
        self._large = None
        return Load(publication, (message,))

    def _publication(
        self, message: Message, payload: bytes | None = None, content: str | None = None
    ) -> Publication:
        delivery = self._sender.policy.delivery(message.priority)
        # Who neither gives receipts nor passes messages on needs to know neither whom
        # to answer nor by what name: on a small message that is a third of its bytes.
        is_relay, flight = self._sender.is_relay, self._flight
        is_named = is_relay and flight.wants_names
        is_answered = is_named and flight.expects_receipt(message.topic)
        # A relay names what it gave an id itself: the payload says neither.
        is_opaque = is_named and message.id.node == self._sender.id
        names_all = self._sender.names_all
        is_parcel = content == PARCEL
        return Publication(
            topic=self._sender.addressed(message.topic),
            payload=message.payload if payload is None else payload,
            qos=delivery.qos,
            retain=delivery.retain,
            priority=message.priority if is_named or names_all else None,
            response_topic=custody_topic(self._sender.id) if is_answered else None,
            message_id=str(message.id) if is_opaque or names_all else None,
            expiry_s=delivery.expiry_s,
            content=content,
            age_s=None if is_parcel else self._order.lateness_s(message),
        )
