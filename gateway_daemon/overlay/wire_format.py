"""Wire format: encoding of overlay packets as frames.

A frame is MessagePack, deflated when that pays off: names repeat in a report.
"""

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from gateway_daemon.overlay.ddll import (
    NeighbourQuery,
    NeighbourReply,
    SetLeft,
    SetRight,
    SetRightReply,
)
from gateway_daemon.overlay.keys import VECTOR_BITS, OverlayError, OverlayKey
from gateway_daemon.overlay.messages import CopyReceipt, MessageCopy, RangeReport
from gateway_daemon.overlay.skip_graph_node import (
    HasSubscribers,
    HasSubscribersQuery,
    LevelPacket,
    LevelSearch,
    LevelSearchReply,
    Locate,
    Located,
    NodePacket,
    ProbeRequest,
)
from service_runtime.decoding import decode_msgpack
from spatial_mqtt.priority import LADDER

DEFLATE_FROM_BYTES = 400
"""Frames of fewer bytes are not compressed."""

MAX_FRAME_BYTES = 1 << 20
"""Limit of an inflated frame."""

MAX_SUBSCRIBERS = 1_000_000
"""Limit of subscriber counts and positions in packets."""

MAX_LINK_NUMBER = 2**53
"""Limit of the parts of a link's number, to which one is added at each change."""

PLAIN, DEFLATED = b"\0", b"\1"

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
