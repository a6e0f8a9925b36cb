"""Messages of the overlay: packets, actions of forwarders, publications, backlog."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gateway_daemon.overlay.keys import OverlayError
from gateway_daemon.overlay.partition import K, RangePart
from service_runtime.decoding import DECODE_ERRORS, decode_msgpack
from spatial_mqtt.batching import MAX_AGE_S
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import check_publishable


class RankedNode(NamedTuple, Generic[K]):
    """A node and its estimated position.

    Attributes:
        key: Its key.
        position: Subscribers between the start of the list and it; an estimate.
    """

    key: K
    position: int


@dataclass(frozen=True)
class OverlayMessage:
    """A published message.

    Attributes:
        id: Unique; a node delivers it once.
        priority: Of the ladder.
        payload: Opaque.
    """

    id: str
    priority: int
    payload: bytes = b""


@dataclass(frozen=True)
class MessageCopy(Generic[K]):
    """A message with the range that the receiver is responsible for.

    Attributes:
        number: The sender's number of this copy, repeated in receipts.
        message: The message.
        low: First key of the range.
        high: First key after it.
        share: Estimated subscribers in it.
        tree: Index among the message's trees, 0 the first.
    """

    number: int
    message: OverlayMessage
    low: K
    high: K
    share: int
    tree: int = 0


@dataclass(frozen=True)
class CopyReceipt:
    """The copy has arrived; the receiver is now responsible for its range."""

    number: int


class RangeReport(msgspec.Struct, Generic[K], frozen=True, omit_defaults=True):
    """The range is finished. Serves as a receipt as well.

    Defaults are not sent: a refusal has the form that older gateways send.

    Attributes:
        number: Of the copy.
        count: Subscribers that were reached in the range.
        sample: Some of them, evenly spaced, always including the first.
        is_whole: Whether all of these have stored the message, and no part of the range
            was given up.
        missing: Ranges in it that were given up, each with the node that did not
            answer. Another node may reach it. Older gateways ignore this.
        is_rest_whole: Whether ranges are missing, and all else is whole.
    """

    number: int
    count: int
    sample: tuple[RankedNode[K], ...]
    is_whole: bool = True
    missing: tuple[RangePart[K], ...] = ()
    is_rest_whole: bool = False


ForwarderPacket = MessageCopy[K] | CopyReceipt | RangeReport[K]


class SendPacket(NamedTuple, Generic[K]):
    """An action: send a packet.

    Attributes:
        to: Receiver.
        packet: The packet.
        reported_id: Message that a `RangeReport` is about; otherwise empty.
    """

    to: K
    packet: ForwarderPacket[K]
    reported_id: str = ""


class DeliverMessage(NamedTuple):
    """An action: deliver the message to the gateway's own subscribers."""

    message: OverlayMessage


class PublicationDone(NamedTuple, Generic[K]):
    """An action: report the end of a publication to the publisher.

    Attributes:
        publication: The copy that was published.
        reached: Subscribers that were reached.
        is_complete: Whether all of them have stored it, and no node was given up.
    """

    publication: MessageCopy[K]
    reached: int
    is_complete: bool


ForwarderAction = SendPacket[K] | DeliverMessage | PublicationDone[K]


class CarriedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A client's message, as the payload of an overlay message.

    Attributes:
        topic: Topic that subscribers see.
        payload: Content.
        age_s: Its age when it was published here.
    """

    topic: str
    payload: bytes
    age_s: float = 0.0


def decode_carried(message: OverlayMessage) -> CarriedMessage:
    """Decode the client's message in an overlay message.

    Raises:
        OverlayError: It does not parse, or nobody could publish it.
    """
    try:
        carried = decode_msgpack(message.payload, CarriedMessage)
        check_publishable(carried.topic)
    except DECODE_ERRORS as error:
        rule = f"a client's message ({error})"
        raise OverlayError("message", rule, message.id) from error
    if not carried.age_s >= 0:  # also NaN
        raise OverlayError("age", "0 or more seconds", carried.age_s)
    return msgspec.structs.replace(carried, age_s=min(carried.age_s, MAX_AGE_S))


class PublicationResult(NamedTuple):
    """Result of a publication.

    Attributes:
        message_id: Of the message.
        reached: Subscriptions that were reached, in all areas.
        is_complete: Whether all of them have stored it, and no node had to be given up.
    """

    message_id: str
    reached: int
    is_complete: bool


@dataclass
class _Open:
    stretches: set[str]
    reached: int = 0
    is_whole: bool = True


class OpenPublications:
    """Publications of one gateway that have not ended."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def begin(self, message_id: str, areas: Iterable[str]) -> None:
        """Register a publication to these areas; a repeated one starts again."""
        self._open[message_id] = _Open(set(areas))

    def refuse(self, message_id: str) -> None:
        """Note that a message could not be stored for our own clients."""
        if publication := self._open.get(message_id):
            publication.is_whole = False

    def end_area(
        self, message_id: str, area: str, reached: int, is_complete: bool
    ) -> PublicationResult | None:
        """End one area; return the result if it was the last one."""
        publication = self._open.get(message_id)
        if publication is None or area not in publication.stretches:
            return None
        publication.stretches.discard(area)
        publication.reached += reached
        publication.is_whole &= is_complete
        if publication.stretches:
            return None
        del self._open[message_id]
        return PublicationResult(message_id, publication.reached, publication.is_whole)


T = TypeVar("T")

AGEING_S = 2.0
"""Waiting time that counts as one priority more."""


class PriorityBacklog(Generic[T]):
    """Priority queue with ageing: a message waits longest in that of a busy gateway.

    Ageing raises a message step by step, but never to the top priority: a routine
    message never overtakes an emergency.
    """

    def __init__(self, ageing_s: float = AGEING_S) -> None:
        self._ageing_s = ageing_s
        self._queues: dict[int, deque[tuple[float, T]]] = {
            priority: deque() for priority in LADDER.descending
        }

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def has_top(self) -> bool:
        """Whether the next message has the top priority."""
        return bool(self._queues[LADDER.top])

    def push(self, item: T, priority: int, now_s: float) -> None:
        """Add a message."""
        self._queues[priority].append((now_s, item))

    def pop(self, now_s: float) -> T:
        """Remove and return the most urgent message; of equals the oldest.

        Raises:
            IndexError: The queue is empty.
        """
        waiting = [
            (self._urgency(priority, now_s - line[0][0]), -line[0][0], priority)
            for priority, line in self._queues.items()
            if line
        ]
        if not waiting:
            raise IndexError("take from an empty backlog")
        return self._queues[max(waiting)[-1]].popleft()[1]

    def _urgency(self, priority: int, waited_s: float) -> int:
        if priority == LADDER.top:
            return priority
        return min(priority + int(waited_s / self._ageing_s), LADDER.top - 1)
