"""Messages of the overlay: packets and their frames, publications, backlog.

A frame is MessagePack, deflated when that pays off: names repeat in a report.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gateway_daemon.overlay.keys import (
    VECTOR_BITS,
    OverlayError,
    OverlayKey,
)
from gateway_daemon.overlay.partition import K, RangePart
from service_runtime.decoding import DECODE_ERRORS, decode_msgpack
from spatial_mqtt.batching import MAX_AGE_S
from spatial_mqtt.priority import LADDER
from spatial_mqtt.topics import check_publishable

DEFLATE_FROM_BYTES = 400
"""Frames of fewer bytes are not compressed."""

MAX_FRAME_BYTES = 1 << 20
"""Limit of an inflated frame."""

MAX_SUBSCRIBERS = 1_000_000
"""Limit of subscriber counts and positions in packets."""

MAX_LINK_NUMBER = 2**53
"""Limit of the parts of a link's number, to which one is added at each change."""

PLAIN, DEFLATED = b"\0", b"\1"


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


class LinkSequence(NamedTuple):
    """Sequence number of a link: an era, which a repair increments, and a number."""

    repair: int = 0
    number: int = 0

    def next(self) -> "LinkSequence":
        """Return the next number of the same era."""
        return LinkSequence(self.repair, self.number + 1)


class LinkChange(Enum):
    """Why a right link changes."""

    INSERT = "insert"
    DELETE = "delete"
    REPAIR = "repair"


class LinkStatus(Enum):
    """State of a node in the list; only a node that is IN may change links."""

    OUT = "out"
    INSERTING = "inserting"
    IN = "in"
    LEAVING = "leaving"


@dataclass(frozen=True)
class NeighbourQuery:
    """Request for a `NeighbourReply`."""


@dataclass(frozen=True)
class NeighbourReply(Generic[K]):
    """Answer to `NeighbourQuery`, and to a `SetRight` that was refused.

    Attributes:
        status: State of the sender.
        right: Its right neighbour.
        seq: Of its right link.
        lefts: The sender and the nodes left of it, nearest first.
        refused: Whether it answers a `SetRight`.
    """

    status: LinkStatus
    right: K
    seq: LinkSequence
    lefts: tuple[K, ...]
    refused: bool = False


@dataclass(frozen=True)
class SetRight(Generic[K]):
    """Request to make ``new`` the right neighbour, if it still is ``expected``."""

    kind: LinkChange
    new: K
    expected: K
    seq: LinkSequence


@dataclass(frozen=True)
class SetRightReply(Generic[K]):
    """Answer to a `SetRight` that was carried out.

    Attributes:
        seq: Of the link from the new node to the right.
        lefts: The sender and the nodes left of it, nearest first.
    """

    seq: LinkSequence
    lefts: tuple[K, ...]


@dataclass(frozen=True)
class SetLeft(Generic[K]):
    """Notice that the left neighbour is ``lefts[0]``, if the number is newer."""

    seq: LinkSequence
    lefts: tuple[K, ...]


LinkPacket = (
    NeighbourQuery | NeighbourReply[K] | SetRight[K] | SetRightReply[K] | SetLeft[K]
)


class HasSubscribers(NamedTuple):
    """Whether a topic has subscribers; sent to the left."""

    value: bool


class HasSubscribersQuery(NamedTuple):
    """Query whether the topic has subscribers; sent to the right."""


@dataclass(frozen=True)
class LevelPacket:
    """A link packet for the list of one level."""

    level: int
    packet: LinkPacket[OverlayKey]


@dataclass(frozen=True)
class Locate:
    """Search for the nearest node left of ``origin``, sent to ever nearer nodes."""

    origin: OverlayKey


@dataclass(frozen=True)
class Located:
    """Answer to `Locate`: the sender is the nearest node that it knows."""


@dataclass(frozen=True)
class LevelSearch:
    """Search for a node that shares ``level`` bits, sent right one level below."""

    level: int
    origin: OverlayKey
    hops: int = 0


@dataclass(frozen=True)
class LevelSearchReply:
    """Answer to `LevelSearch`: the sender matches, or no node does."""

    level: int
    is_there: bool


@dataclass(frozen=True)
class ProbeRequest:
    """Request to query the sender, which is in the list of this level."""

    level: int


SkipGraphPacket = (
    LevelPacket | Locate | Located | LevelSearch | LevelSearchReply | ProbeRequest
)

NodePacket = SkipGraphPacket | HasSubscribers | HasSubscribersQuery


PACKET_KINDS: Mapping[str, Any] = MappingProxyType({
    "ask": NeighbourQuery,
    "told": NeighbourReply[OverlayKey],
    "set right": SetRight[OverlayKey],
    "agreed": SetRightReply[OverlayKey],
    "set left": SetLeft[OverlayKey],
    "locate": Locate,
    "located": Located,
    "seek": LevelSearch,
    "found": LevelSearchReply,
    "meet": ProbeRequest,
    "heard": HasSubscribers,
    "heard?": HasSubscribersQuery,
    "copy": MessageCopy[OverlayKey],
    "receipt": CopyReceipt,
    "report": RangeReport[OverlayKey],
})

_NAMES = {
    getattr(form, "__origin__", form): kind for kind, form in PACKET_KINDS.items()
}

PacketBody = (
    NodePacket | MessageCopy[OverlayKey] | CopyReceipt | RangeReport[OverlayKey]
)


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A packet from one key to another.

    Attributes:
        to: Receiver.
        sender: Sender.
        kind: A key of `PACKET_KINDS`.
        body: The packet.
        level: Level of the list that it refers to.
    """

    to: OverlayKey
    sender: OverlayKey
    kind: str
    body: msgspec.Raw
    level: int = 0


def encode_frame(to: OverlayKey, sender: OverlayKey, packet: PacketBody) -> bytes:
    """Encode a packet as a frame."""
    level = 0
    inner: object = packet
    if isinstance(packet, LevelPacket):
        level, inner = packet.level, packet.packet
    body = msgspec.Raw(msgspec.msgpack.encode(inner))
    frame = Frame(to, sender, _NAMES[type(inner)], body, level)
    plain = msgspec.msgpack.encode(frame)
    if len(plain) < DEFLATE_FROM_BYTES:
        return PLAIN + plain
    return DEFLATED + zlib.compress(plain, 6)


def decode_frame(frame: bytes) -> tuple[OverlayKey, OverlayKey, PacketBody]:
    """Decode receiver, sender and packet of a frame.

    Raises:
        OverlayError: It is not a valid frame.
    """
    try:
        plain = _inflated(frame[1:]) if frame[:1] == DEFLATED else frame[1:]
        parsed = decode_msgpack(plain, Frame)
        packet = decode_msgpack(parsed.body, PACKET_KINDS[parsed.kind])
    except (
        msgspec.MsgspecError, zlib.error, KeyError, ValueError, RecursionError
    ) as error:  # fmt: skip
        rule = f"a packet of the overlay ({error})"
        raise OverlayError("frame", rule, frame[:80]) from error
    _check(parsed.level, packet, frame)
    if parsed.kind in LINK_KINDS:
        packet = LevelPacket(parsed.level, packet)
    return parsed.to, parsed.sender, packet


LINK_KINDS = frozenset({"ask", "told", "set right", "agreed", "set left"})


def _check(level: int, packet: Any, frame: bytes) -> None:  # noqa: ANN401 - any kind
    """Reject numbers out of range, before they are used."""
    levels, priority = [level], LADDER.default
    numbers: list[int] = []
    link: tuple[int, ...] = ()
    match packet:
        case MessageCopy():
            numbers, priority = [packet.share], packet.message.priority
        case RangeReport():
            numbers = [packet.count, *(each.position for each in packet.sample)]
        case LevelSearch():
            levels, numbers = [level, packet.level], [packet.hops]
        case LevelSearchReply() | ProbeRequest():
            levels = [level, packet.level]
        case NeighbourReply() | SetRight() | SetRightReply() | SetLeft():
            link = packet.seq
        case _:
            pass
    is_level = all(0 <= each <= VECTOR_BITS for each in levels)
    is_number = all(0 <= each <= MAX_SUBSCRIBERS for each in numbers)
    is_link = all(0 <= each <= MAX_LINK_NUMBER for each in link)
    if not (is_level and is_number and is_link and priority in LADDER.descending):
        raise OverlayError("frame", "valid levels, numbers and priority", frame[:80])


def _inflated(deflated: bytes) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(deflated, MAX_FRAME_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"more than {MAX_FRAME_BYTES} bytes")
    return plain


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
