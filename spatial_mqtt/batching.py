"""Parcels and chunks: how our own programs put messages into publications. No I/O.

A *parcel* is some messages of one topic in one publication: CBOR deflated with our
dictionary, a list of payloads, each alone or as ``[payload, age_s]``. A *chunk* is a
piece of a message that is too large for a slow link: CBOR ``[id, number, count, crc,
piece]``, numbered from 0, with the CRC-32 of the whole. Both travel only towards a
receiver that offered to read them (`custody.Offer.takes`); a subscriber never sees
them.

What our packs look like, for the deflater: a small pack shrinks to half.

Both ends must have the very same bytes. They belong to the content type ``parcel``:
other bytes need another name.
"""

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import cbor2

from spatial_mqtt.errors import ParcelError
from spatial_mqtt.senml import MAX_PAYLOAD_BYTES


def _text(words: str) -> bytes:
    """A short text as CBOR writes it."""
    return bytes([0x60 + len(words)]) + words.encode()


_UNITS: Final = ("V", "Cel", "%RH", "hPa", "count", "/", "m", "mm", "deg")
_NAMES: Final = (
    "gnss/moved", "node/cpu", "node/disk", "node/memory", "node/uptime", "battery",
    "air/temp", "air/humidity", "air/pressure", "span/health", "level", "vibration",
    "extensometer", "piezometer", "tilt/temp", "tilt/sigma", "tilt/y", "tilt/x",
    "moisture", "soil", "wire", "span", "rain",
)  # fmt: skip
_REASONS: Final = (
    "is cut: a flow may have occurred, unconfirmed", " deg/h >= 0.01", " tilts 0.0",
    "special-warning criterion ", "critical line at ", "warning criterion ",
    "advisory criterion ", " mm (assumed criteria)", "soil water index ",
    " (a while ago)", "ok",
)  # fmt: skip

# A reading: a map of name (0), unit (1) and value (2), a double, or of a sum (5) too.
_READINGS: Final = b"".join(
    b"\xa3\x00" + _text(name) + b"\x01" + _text(unit) + b"\x02\xfb\x3f"
    for name, unit in (
        ("air/temp", "Cel"), ("battery", "V"), ("level", "m"), ("soil", "/"),
        ("tilt/temp", "Cel"), ("tilt/sigma", "deg"), ("tilt/y", "deg"),
        ("tilt/x", "deg"),
    )
)  # fmt: skip
_WIRE: Final = b"\xa2\x00" + _text("span") + b"\x04\xf4"
_HEAD: Final = (
    b"\x21" + _text("node-0001/") + b"\x22\xfb\x41\xda" + _text("boot")
    + b"\x68" + _text("seq") + b"\x1a\x00\x00" + _text("pri") + b"\x01"
    + _text("tq") + b"\x00" + _text("mono") + b"\xfb\x40\xf4" + _text("why") + b"\x78"
    + b"\x00" + _text("rain") + b"\x01" + _text("mm")
    + b"\x02\xfb\x00\x00\x00\x00\x00\x00\x00\x00\x05\xfb\x40"
)  # fmt: skip

DICTIONARY: Final = b"".join((
    *(_text(unit) for unit in _UNITS),
    *(_text(name) for name in _NAMES),
    *(reason.encode() for reason in _REASONS),
    _WIRE,
    _READINGS,
    _HEAD,
))
"""The likeliest last, where a reference to it is shortest."""


MAX_ITEMS = 4096
MAX_PARTIAL_BYTES = 4 * MAX_PAYLOAD_BYTES
"""What unfinished messages of all senders may hold; the oldest go first, and are
sent again because nobody gives a receipt for them."""

PIECE_BYTES = 100
"""What a piece costs in memory beside its bytes."""

_RAW_DEFLATE = -15


@dataclass(frozen=True)
class Item:
    """A message in a parcel.

    Attributes:
        payload: As it would have been published.
        age_s: How late it was when it was sent; None when it was not.
    """

    payload: bytes
    age_s: int | None = None


def encode_parcel(items: Sequence[Item]) -> bytes:
    """Encode messages for one publication."""
    listed = [
        item.payload if item.age_s is None else [item.payload, item.age_s]
        for item in items
    ]
    deflater = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE, zdict=DICTIONARY)
    return deflater.compress(cbor2.dumps(listed)) + deflater.flush()


def decode_parcel(payload: bytes) -> list[Item]:
    """Decode a parcel.

    Raises:
        ParcelError: It is none, or holds more than a gateway takes.
    """
    listed = _loads(_inflate(payload), "parcel")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_ITEMS:
        raise ParcelError("parcel", f"a list of 1 to {MAX_ITEMS} messages", listed)
    return [_item(each) for each in listed]


@dataclass(frozen=True)
class Chunk:
    """A piece of a large message.

    Attributes:
        message: Text of the message id.
        number: From 0.
        count: How many pieces there are.
        crc: CRC-32 of the whole.
        piece: The bytes.
    """

    message: str
    number: int
    count: int
    crc: int
    piece: bytes

    def encode(self) -> bytes:
        """Encode for the wire."""
        return cbor2.dumps([
            self.message,
            self.number,
            self.count,
            self.crc,
            self.piece,
        ])

    @classmethod
    def decode(cls, payload: bytes) -> "Chunk":
        """Decode a chunk.

        Raises:
            ParcelError: It is none.
        """
        told = _loads(payload, "chunk")
        kinds = (str, int, int, int, bytes)
        is_five = isinstance(told, list) and len(told) == len(kinds)
        if not is_five or not all(
            type(value) is kind for value, kind in zip(told, kinds, strict=True)
        ):
            raise ParcelError("chunk", "id, number, count, crc and piece", told)
        chunk = cls(*told)
        if not 0 <= chunk.number < chunk.count <= MAX_PAYLOAD_BYTES:
            rule = "a number below the count of the pieces"
            raise ParcelError("chunk", rule, (chunk.number, chunk.count))
        return chunk


def cut(message_id: str, payload: bytes, most_bytes: int) -> list[Chunk]:
    """Cut a large message into chunks of at most so many bytes each."""
    starts = range(0, len(payload), most_bytes)
    crc = zlib.crc32(payload)
    return [
        Chunk(message_id, n, len(starts), crc, payload[at : at + most_bytes])
        for n, at in enumerate(starts)
    ]


@dataclass
class _Partial:
    count: int
    crc: int
    pieces: dict[int, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(len(piece) + PIECE_BYTES for piece in self.pieces.values())


class Joiner:
    """Puts chunks together again, in any order, in bounded memory."""

    def __init__(self, most_bytes: int = MAX_PARTIAL_BYTES) -> None:
        self._most_bytes = most_bytes
        self._partial: OrderedDict[tuple[str, str], _Partial] = OrderedDict()

    def add(self, topic: str, chunk: Chunk) -> bytes | None:
        """Add a chunk; the whole message with its last one.

        Raises:
            ParcelError: The pieces do not make the message they belong to.
        """
        key = (topic, chunk.message)
        partial = self._partial.get(key)
        if partial is None or (partial.count, partial.crc) != (chunk.count, chunk.crc):
            partial = self._partial[key] = _Partial(chunk.count, chunk.crc)
        partial.pieces[chunk.number] = chunk.piece
        self._partial.move_to_end(key)
        if len(partial.pieces) == partial.count:
            del self._partial[key]
            return _whole(chunk, partial)
        self._forget_oldest()
        return None

    def _forget_oldest(self) -> None:
        held = sum(partial.size_bytes for partial in self._partial.values())
        while held > self._most_bytes:
            _, oldest = self._partial.popitem(last=False)
            held -= oldest.size_bytes


def _whole(chunk: Chunk, partial: _Partial) -> bytes:
    whole = b"".join(partial.pieces[n] for n in range(partial.count))
    if zlib.crc32(whole) != chunk.crc:
        raise ParcelError("crc", "that of the pieces together", chunk.crc)
    return whole


def _inflate(payload: bytes) -> bytes:
    inflater = zlib.decompressobj(_RAW_DEFLATE, zdict=DICTIONARY)
    try:
        raw = inflater.decompress(payload, MAX_PAYLOAD_BYTES)
    except zlib.error as error:
        raise ParcelError("parcel", "deflated", str(error)) from error
    if not inflater.eof or inflater.unused_data:
        rule = f"at most {MAX_PAYLOAD_BYTES} bytes, and whole"
        raise ParcelError("parcel", rule, f"{len(payload)} bytes")
    return raw


def _loads(data: bytes, field_: str) -> Any:  # noqa: ANN401 - judged by the caller
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, RecursionError) as error:
        raise ParcelError(field_, "CBOR", str(error)) from error


def _item(told: object) -> Item:
    if isinstance(told, bytes):
        return Item(told)
    is_pair = isinstance(told, list) and list(map(type, told)) == [bytes, int]
    if not is_pair or told[1] < 0:  # type: ignore[index]
        raise ParcelError("message", "bytes, or bytes and an age in seconds", told)
    return Item(*told)  # type: ignore[misc]
