"""Batches and fragments: several messages, or part of one, in a publication. No I/O.

A batch holds messages of one topic: CBOR deflated with a preset dictionary, a list of
payloads, each alone or as ``[payload, age_s]``. A fragment is part of a message that is
too large for a slow link: CBOR ``[id, number, count, crc, data]``, numbered from 0,
with the CRC-32 of the whole message. Both are sent only to a receiver that accepts them
(`custody.CustodyOffer.takes`); subscribers never see them.

The dictionary holds what packs look like; a small pack shrinks to half its size. Both
ends must have the same bytes. They belong to the content type ``parcel``: another
dictionary needs another content type.
"""

import zlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Final, NamedTuple

import cbor2

from spatial_mqtt.errors import BatchError, EnvelopeError
from spatial_mqtt.senml import MAX_PAYLOAD_BYTES, CborError, MessageId, decode_cbor


def _text(text: str) -> bytes:
    """CBOR of a short text."""
    return bytes([0x60 + len(text)]) + text.encode()


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

# A reading: a map of name (0), unit (1) and value (2) as double; also with a sum (5).
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

DEFLATE_DICTIONARY: Final = b"".join((
    *(_text(unit) for unit in _UNITS),
    *(_text(name) for name in _NAMES),
    *(reason.encode() for reason in _REASONS),
    _WIRE,
    _READINGS,
    _HEAD,
))
"""The most frequent strings last, where references to them are shortest."""


MAX_ITEMS = 4096
MAX_PARTIAL_BYTES = 4 * MAX_PAYLOAD_BYTES
"""Limit for the incomplete messages of all senders. The oldest of the sender with the
most bytes are dropped first; it repeats them because it gets no receipt."""

MAX_AGE_S = 999_999_999
"""As in the user property of a message that is published alone."""

FRAGMENT_OVERHEAD_BYTES = 100
"""Memory per fragment beside its data."""

PARTIAL_OVERHEAD_BYTES = 450
"""Memory per incomplete message beside its fragments, id, topic and sender."""

_RAW_DEFLATE = -15


@dataclass(frozen=True)
class BatchItem:
    """A message in a batch.

    Attributes:
        payload: Payload as it would have been published alone.
        age_s: Age when it was sent; None when it was not late.
    """

    payload: bytes
    age_s: int | None = None


def encode_batch(items: Sequence[BatchItem]) -> bytes:
    """Encode messages for one publication."""
    records = [
        item.payload if item.age_s is None else [item.payload, item.age_s]
        for item in items
    ]
    deflater = zlib.compressobj(
        9, zlib.DEFLATED, _RAW_DEFLATE, zdict=DEFLATE_DICTIONARY
    )
    return deflater.compress(cbor2.dumps(records)) + deflater.flush()


def decode_batch(payload: bytes) -> list[BatchItem]:
    """Decode a batch.

    Raises:
        BatchError: The payload does not parse, or holds too many messages.
    """
    records = _loads(_inflate(payload), "parcel")
    if not isinstance(records, list) or not 1 <= len(records) <= MAX_ITEMS:
        raise BatchError("parcel", f"a list of 1 to {MAX_ITEMS} messages", records)
    return [_item(record) for record in records]


@dataclass(frozen=True)
class Fragment:
    """Part of a large message.

    Attributes:
        message_id: Text of the message id.
        number: Position, from 0.
        count: Number of fragments.
        crc: CRC-32 of the whole message.
        data: Bytes of this part.
    """

    message_id: str
    number: int
    count: int
    crc: int
    data: bytes

    def encode(self) -> bytes:
        """Encode for the wire."""
        return cbor2.dumps([
            self.message_id,
            self.number,
            self.count,
            self.crc,
            self.data,
        ])

    @classmethod
    def decode(cls, payload: bytes) -> "Fragment":
        """Decode a fragment.

        Raises:
            BatchError: The payload does not parse.
        """
        fields = _loads(payload, "chunk")
        types = (str, int, int, int, bytes)
        is_five = isinstance(fields, list) and len(fields) == len(types)
        if not is_five or not all(
            type(value) is type_ for value, type_ in zip(fields, types, strict=True)
        ):
            raise BatchError("chunk", "id, number, count, crc and piece", fields)
        chunk = cls(*fields)
        if not 0 <= chunk.number < chunk.count <= MAX_PAYLOAD_BYTES:
            rule = "a number below the count of the pieces"
            raise BatchError("chunk", rule, (chunk.number, chunk.count))
        try:
            MessageId.parse(chunk.message_id)
        except EnvelopeError as error:
            raise BatchError("chunk", "a message id", chunk.message_id) from error
        return chunk


def split_message(message_id: str, payload: bytes, max_bytes: int) -> list[Fragment]:
    """Split a large message into fragments of at most `max_bytes` data each."""
    starts = range(0, len(payload), max_bytes)
    crc = zlib.crc32(payload)
    return [
        Fragment(message_id, n, len(starts), crc, payload[start : start + max_bytes])
        for n, start in enumerate(starts)
    ]


class _Key(NamedTuple):
    """What the fragments of a message have in common."""

    sender: str
    topic: str
    message_id: str


@dataclass
class _Partial:
    count: int
    crc: int
    size_bytes: int
    pieces: dict[int, bytes] = field(default_factory=dict)

    def add(self, fragment: Fragment) -> None:
        """Add a piece, or replace it."""
        replaced = self.pieces.get(fragment.number)
        if replaced is None:
            self.size_bytes += FRAGMENT_OVERHEAD_BYTES
        self.size_bytes += len(fragment.data) - len(replaced or b"")
        self.pieces[fragment.number] = fragment.data


class FragmentJoiner:
    """Reassembles fragments in any order, in bounded memory.

    When the memory is full, the sender with the most bytes loses its oldest incomplete
    message, so that one sender does not displace those of others.
    """

    def __init__(self, max_bytes: int = MAX_PARTIAL_BYTES) -> None:
        self._most_bytes = max_bytes
        self._total_bytes = 0
        self._sender_bytes: Counter[str] = Counter()
        self._partial: OrderedDict[_Key, _Partial] = OrderedDict()

    def add(self, topic: str, fragment: Fragment, sender: str = "") -> bytes | None:
        """Add a fragment; returns the message with the last one, else None.

        Raises:
            BatchError: The CRC of the assembled message is wrong.
        """
        key = _Key(sender, topic, fragment.message_id)
        partial = self._take(key)
        if partial is None or (partial.count, partial.crc) != (
            fragment.count,
            fragment.crc,
        ):
            size_bytes = PARTIAL_OVERHEAD_BYTES + sum(map(getsizeof, key))
            partial = _Partial(fragment.count, fragment.crc, size_bytes)
        partial.add(fragment)
        if len(partial.pieces) == partial.count:
            return _whole(fragment, partial)
        self._partial[key] = partial
        self._total_bytes += partial.size_bytes
        self._sender_bytes[sender] += partial.size_bytes
        while self._total_bytes > self._most_bytes:
            self._drop_oldest()
        return None

    def _take(self, key: _Key) -> _Partial | None:
        """Remove and return an incomplete message; None without one."""
        partial = self._partial.pop(key, None)
        if partial is not None:
            self._total_bytes -= partial.size_bytes
            self._sender_bytes[key.sender] -= partial.size_bytes
            if not self._sender_bytes[key.sender]:
                del self._sender_bytes[key.sender]
        return partial

    def _drop_oldest(self) -> None:
        """Drop the oldest incomplete message of the sender with the most bytes."""
        largest = max(self._sender_bytes, key=self._sender_bytes.__getitem__)
        self._take(next(key for key in self._partial if key.sender == largest))


def _whole(chunk: Fragment, partial: _Partial) -> bytes:
    whole = b"".join(partial.pieces[n] for n in range(partial.count))
    if zlib.crc32(whole) != chunk.crc:
        raise BatchError("crc", "that of the pieces together", chunk.crc)
    return whole


def _inflate(payload: bytes) -> bytes:
    inflater = zlib.decompressobj(_RAW_DEFLATE, zdict=DEFLATE_DICTIONARY)
    try:
        raw = inflater.decompress(payload, MAX_PAYLOAD_BYTES)
    except zlib.error as error:
        raise BatchError("parcel", "deflated", str(error)) from error
    if not inflater.eof or inflater.unused_data:
        rule = f"at most {MAX_PAYLOAD_BYTES} bytes, and whole"
        raise BatchError("parcel", rule, f"{len(payload)} bytes")
    return raw


def _loads(data: bytes, field_: str) -> Any:  # noqa: ANN401 - checked by the caller
    try:
        return decode_cbor(data)
    except CborError as error:
        raise BatchError(field_, "CBOR", str(error)) from error


def _item(record: object) -> BatchItem:
    if isinstance(record, bytes):
        return BatchItem(record)
    is_pair = isinstance(record, list) and list(map(type, record)) == [bytes, int]
    if not is_pair or record[1] < 0:  # type: ignore[index]
        raise BatchError("message", "bytes, or bytes and an age in seconds", record)
    return BatchItem(record[0], min(record[1], MAX_AGE_S))  # type: ignore[index]
