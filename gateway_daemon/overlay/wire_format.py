"""Wire format: encoding of overlay packets as frames.

A frame is MessagePack, deflated when that pays off: names repeat in a report.
"""

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from gateway_daemon.overlay.ddll import Agreed, Ask, SetLeft, SetRight, Told
from gateway_daemon.overlay.keys import BITS, Key, OverlayError
from gateway_daemon.overlay.messages import Copy, Receipt, Report
from gateway_daemon.overlay.publisher_suspension import AskHeard, Heard
from gateway_daemon.overlay.skip_graph_node import (
    Found,
    Locate,
    Located,
    Meet,
    OnLevel,
    Said,
    Seek,
)
from spatial_mqtt.priority import LADDER

DEFLATES_FROM = 400
"""Frames of fewer bytes are not compressed."""

MOST_BYTES = 1 << 20
"""Limit of an inflated frame."""

MOST_SUBSCRIBERS = 1_000_000
"""Limit of subscriber counts in packets."""

PLAIN, DEFLATED = b"\0", b"\1"

KINDS: Mapping[str, Any] = MappingProxyType({
    "ask": Ask,
    "told": Told[Key],
    "set right": SetRight[Key],
    "agreed": Agreed[Key],
    "set left": SetLeft[Key],
    "locate": Locate,
    "located": Located,
    "seek": Seek,
    "found": Found,
    "meet": Meet,
    "heard": Heard,
    "heard?": AskHeard,
    "copy": Copy[Key],
    "receipt": Receipt,
    "report": Report[Key],
})

_NAMES = {getattr(form, "__origin__", form): kind for kind, form in KINDS.items()}

Spoken = Said | Copy[Key] | Receipt | Report[Key]


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A packet from one key to another.

    Attributes:
        to: Receiver.
        sender: Sender.
        kind: A key of `PACKET_KINDS`.
        body: The packet.
        level: Level of the list that it refers to.
    """

    to: Key
    sender: Key
    kind: str
    body: msgspec.Raw
    level: int = 0


def encode(to: Key, sender: Key, packet: Spoken) -> bytes:
    """Encode a packet as a frame."""
    level = 0
    inner: object = packet
    if isinstance(packet, OnLevel):
        level, inner = packet.level, packet.packet
    body = msgspec.Raw(msgspec.msgpack.encode(inner))
    frame = Frame(to, sender, _NAMES[type(inner)], body, level)
    plain = msgspec.msgpack.encode(frame)
    if len(plain) < DEFLATES_FROM:
        return PLAIN + plain
    return DEFLATED + zlib.compress(plain, 6)


def kind_of(frame: bytes) -> str:
    """Return the kind of packet in a frame, for diagnostics and tests."""
    plain = _inflated(frame[1:]) if frame[:1] == DEFLATED else frame[1:]
    return msgspec.msgpack.decode(plain, type=Frame).kind


def decode(frame: bytes) -> tuple[Key, Key, Spoken]:
    """Decode receiver, sender and packet of a frame.

    Raises:
        OverlayError: It is not a valid frame.
    """
    try:
        plain = _inflated(frame[1:]) if frame[:1] == DEFLATED else frame[1:]
        parsed = msgspec.msgpack.decode(plain, type=Frame)
        packet = msgspec.msgpack.decode(parsed.body, type=KINDS[parsed.kind])
    except (
        msgspec.MsgspecError, zlib.error, KeyError, ValueError, RecursionError
    ) as error:  # fmt: skip
        rule = f"a packet of the overlay ({error})"
        raise OverlayError("frame", rule, frame[:80]) from error
    _check(parsed.level, packet, frame)
    if parsed.kind in LINK_KINDS:
        packet = OnLevel(parsed.level, packet)
    return parsed.to, parsed.sender, packet


LINK_KINDS = frozenset({"ask", "told", "set right", "agreed", "set left"})


def _check(level: int, packet: Any, frame: bytes) -> None:  # noqa: ANN401 - any kind
    """Reject numbers out of range, before they are used."""
    is_copy = isinstance(packet, Copy)
    levels = (level, packet.level if isinstance(packet, Seek | Found | Meet) else 0)
    count = packet.count if isinstance(packet, Report) else 0
    numbers = (packet.share if is_copy else 0, count)
    priority = packet.message.priority if is_copy else LADDER.default
    is_level = all(0 <= each <= BITS for each in levels)
    is_number = all(0 <= each <= MOST_SUBSCRIBERS for each in numbers)
    if not (is_level and is_number and priority in LADDER.descending()):
        raise OverlayError("frame", "valid levels, numbers and priority", frame[:80])


def _inflated(deflated: bytes) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(deflated, MOST_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    return plain
