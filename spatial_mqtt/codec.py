"""Codec for PUBLISH and PUBACK packets and for MQTT 5 properties. No I/O.

paho needs close to 100 us for each of these two packets, which come in thousands; it
encodes and decodes all others.

Source: MQTT 5.0 sections 1.5, 2.2.2, 3.3 and 3.4.
"""

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from spatial_mqtt.custody import decode_correlation
from spatial_mqtt.errors import PacketError
from spatial_mqtt.topics import (
    AGE_PROPERTY,
    ID_PROPERTY,
    MAX_TOPIC_CHARS,
    PRIORITY_PROPERTY,
)
from spatial_mqtt.transport import NO_SUBSCRIBERS, IncomingMessage, Publication, Session

MAX_RECEIVED_BYTES: Final = 16 * 2**20
"""Maximum Packet Size of CONNECT: the broker discards what is larger (MQTT 5.0 section
3.1.2.11.4). A list of 20,000 gateways with the longest names and areas is smaller."""

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def make_connect_properties(session: Session) -> Properties:
    """Make the properties of CONNECT."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = session.expiry_s
    properties.ReceiveMaximum = session.receive_maximum
    properties.MaximumPacketSize = MAX_RECEIVED_BYTES
    return properties


def make_publish_properties(
    publication: Publication, alias: int | None
) -> Properties | None:
    """Make the properties of PUBLISH; None without any."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    user_properties = {
        PRIORITY_PROPERTY: publication.priority,
        ID_PROPERTY: publication.message_id,
        AGE_PROPERTY: publication.age_s,
    }
    pairs = [(k, str(v)) for k, v in user_properties.items() if v is not None]
    if pairs:
        properties.UserProperty = pairs
    optional = {
        "ResponseTopic": publication.response_topic,
        "MessageExpiryInterval": publication.expiry_s,
        "ContentType": publication.content,
        "TopicAlias": alias,
        "CorrelationData": publication.correlation,
    }
    for name, value in optional.items():
        if value is not None:
            setattr(properties, name, value)
    return None if properties.isEmpty() else properties  # type: ignore[no-untyped-call]


def publish_packet_bytes(
    publication: Publication, topic: str, properties: Properties | None
) -> int:
    """Size of the PUBLISH packet (MQTT 5.0 section 3.3)."""
    property_bytes = 1 if properties is None else len(properties.pack())  # type: ignore[no-untyped-call]
    packet_id = 2 if publication.qos else 0
    rest = (
        2 + len(topic.encode()) + packet_id + property_bytes + len(publication.payload)
    )
    length_bytes = (max(rest.bit_length(), 1) + 6) // 7
    return 1 + length_bytes + rest


def find_user_property(properties: Properties | None, wanted: str) -> str | None:
    """The first user property with a name."""
    for name, value in getattr(properties, "UserProperty", ()):
        if name == wanted:
            return str(value)
    return None


def find_user_number(properties: Properties | None, wanted: str) -> int | None:
    """A user property as a number, not checked for its range."""
    return parse_number(find_user_property(properties, wanted))


def parse_number(text: str | None) -> int | None:
    """Parse a positive decimal number; None when the text is not one."""
    is_number = text is not None and _NUMBER.fullmatch(text) is not None
    return int(text) if text is not None and is_number else None


def get_property(properties: Properties | None, name: str) -> Any:  # noqa: ANN401 - paho's
    """A property by its name in MQTT, such as ``ResponseTopic``; None when absent."""
    return getattr(properties, name, None)


PUBLISH: Final = 0x30
PUBACK: Final = 0x40
QOS_1: Final = 0x02
RETAIN: Final = 0x01
DUP: Final = 0x08
NO_MATCHING_SUBSCRIBERS: Final = 0x10
MIN_FAILURE_CODE: Final = 0x80
CACHE_SIZE: Final = 4096
"""Encoded topics and property sets that are cached."""

EXPIRY, CONTENT, RESPONSE, CORRELATION, ALIAS, USER = 2, 3, 8, 9, 0x23, 0x26
_FIXED_BYTES: Final = {0x01: 1, EXPIRY: 4, ALIAS: 2}
_CONTINUATION: Final = 0x80
_MAX_LENGTH_BYTES: Final = 4
_SHORT: Final = struct.Struct("!H")


def encode_publish(
    publication: Publication, topic: str, alias: int | None, mid: int
) -> bytes:
    """Encode a PUBLISH of QoS 1.

    Args:
        publication: The message.
        topic: Topic; empty when the alias replaces it.
        alias: Topic alias to define or use.
        mid: Packet id.
    """
    properties = _properties(
        publication.priority,
        publication.response_topic,
        publication.expiry_s,
        publication.content,
        publication.age_s,
    )
    if publication.message_id is not None:
        properties += _ID_HEAD + _text(publication.message_id)
    if publication.correlation is not None:
        length = _SHORT.pack(len(publication.correlation))
        properties += b"\x09" + length + publication.correlation
    if alias is not None:
        properties += b"\x23" + _SHORT.pack(alias)
    topic_field = _topic(topic)
    size = _number(len(properties))
    payload = publication.payload
    rest = len(topic_field) + 2 + len(size) + len(properties) + len(payload)
    first = PUBLISH | QOS_1 | (RETAIN if publication.retain else 0)
    return b"".join((
        bytes((first,)), _number(rest), topic_field, _SHORT.pack(mid), size,
        properties, payload,
    ))  # fmt: skip


def encode_pubacks(mids: list[int]) -> bytes:
    """Encode a PUBACK for each packet id."""
    return b"".join([b"\x40\x02" + _SHORT.pack(mid) for mid in mids])


def split_packets(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Remove complete packets from the receive buffer.

    Returns:
        First byte and body of each; an incomplete packet stays in the buffer.

    Raises:
        PacketError: A length field is too long.
    """
    found: list[tuple[int, bytes]] = []
    length, start = _length(buffer, 1)
    if start < 0 or start + length > len(buffer):
        return found  # a large packet, which is not copied at each read
    whole = bytes(buffer)
    at, end = 0, len(whole)
    while at + 1 < end:
        length, start = whole[at + 1], at + 2
        if length >= _CONTINUATION:
            length, start = _length(whole, at + 1)
        if start < 0 or start + length > end:
            break
        found.append((whole[at], whole[start : start + length]))
        at = start + length
    del buffer[:at]
    return found


def decode_publish(first: int, body: bytes, generation: int) -> IncomingMessage:
    """Decode a PUBLISH of QoS 0 or 1.

    Args:
        first: First byte of the packet.
        body: The packet after its length field.
        generation: Number of the connection, for `IncomingMessage.delivery`.

    Raises:
        PacketError: The packet is truncated, or a text is not UTF-8.
    """
    try:
        return _incoming(first, body, generation)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise PacketError("PUBLISH", "whole, its texts in UTF-8", body[:80]) from error


def decode_puback(body: bytes) -> tuple[int, str | None]:
    """Decode a PUBACK: packet id, and `describe_reason_code` of its reason.

    Raises:
        PacketError: The packet has no packet id.
    """
    if len(body) < _SHORT.size:
        raise PacketError("PUBACK", "at least 2 bytes", body)
    code = body[2] if len(body) > _SHORT.size else 0
    return _SHORT.unpack_from(body)[0], describe_reason_code(code)


def describe_reason_code(code: int) -> str | None:
    """Argument `refused` of `ConnectionHandler.on_published` for a reason code."""
    if code == NO_MATCHING_SUBSCRIBERS:
        return NO_SUBSCRIBERS
    if code < MIN_FAILURE_CODE:
        return None
    try:
        return str(ReasonCode(PacketTypes.PUBACK, identifier=code))
    except (KeyError, ValueError):  # not a code of PUBACK
        return f"reason code {code:#x}"


def _incoming(first: int, body: bytes, generation: int) -> IncomingMessage:
    at = 2 + _SHORT.unpack_from(body)[0]
    topic = _decode_text(body[2:at])
    qos = first >> 1 & 3
    mid = 0
    if qos:
        mid = _SHORT.unpack_from(body, at)[0]
        at += 2
    size, at = body[at], at + 1
    if size >= _CONTINUATION:
        size, at = _length(body, at - 1)
    end = at + size
    if at < 0 or end > len(body):
        raise IndexError(end)
    texts, correlation = _read_properties(body[at:end]) if size else _NO_PROPERTIES
    message = IncomingMessage(
        topic, body[end:], qos, bool(first & RETAIN),
        parse_number(texts.get(_PRIORITY)), texts.get(RESPONSE), texts.get(_ID),
        (generation, mid), texts.get(CONTENT),
        parse_number(texts.get(_AGE)), bool(first & DUP),
    )  # fmt: skip
    return with_correlation(message, correlation) if correlation else message


def with_correlation(message: IncomingMessage, data: bytes) -> IncomingMessage:
    """Add what the Correlation Data states, unless other properties state it."""
    found = decode_correlation(data)
    if found is None:
        return message
    return message._replace(
        priority=message.priority or found.priority,
        message_id=message.message_id or found.message_id,
        response_topic=message.response_topic or found.response_topic,
    )


_ID: Final = ID_PROPERTY
_AGE: Final = AGE_PROPERTY
_PRIORITY: Final = PRIORITY_PROPERTY
_NO_PROPERTIES: Final[tuple[dict[int | str, str], bytes]] = {}, b""


def _read_properties(raw: bytes) -> tuple[dict[int | str, str], bytes]:
    """Text properties, and the Correlation Data.

    Text properties of MQTT are by number, user properties by name.
    """
    found: dict[int | str, str] = {}
    correlation = b""
    at, end = 0, len(raw)
    while at < end:
        kind = raw[at]
        at += 1
        if kind == USER:
            name, at = _text_at(raw, at)
            value, at = _text_at(raw, at)
            found.setdefault(name, value)
        elif kind in {CONTENT, RESPONSE}:
            found[kind], at = _text_at(raw, at)
        elif kind == CORRELATION:
            correlation, at = _bytes_at(raw, at)
        else:
            at = _skip_property(kind, raw, at)
    return found, correlation


def _skip_property(kind: int, raw: bytes, at: int) -> int:
    """Offset after a property that is not read."""
    if kind in _FIXED_BYTES:
        end = at + _FIXED_BYTES[kind]
    elif kind == 0x0B:  # noqa: PLR2004 - subscription identifier
        end = _length(raw, at)[1]
    else:
        raise IndexError(kind)
    if not at < end <= len(raw):
        raise IndexError(end)
    return end


def _text_at(raw: bytes, at: int) -> tuple[str, int]:
    data, end = _bytes_at(raw, at)
    return data.decode(), end


def _bytes_at(raw: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + _SHORT.unpack_from(raw, at)[0]
    if end > len(raw):
        raise IndexError(end)
    return raw[at + 2 : end], end


def _length(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Decode a variable byte integer: value and end offset; -1 when incomplete."""
    value = 0
    for number in range(_MAX_LENGTH_BYTES):
        if at + number >= len(data):
            return 0, -1
        digit = data[at + number]
        value |= (digit & 0x7F) << 7 * number
        if digit < _CONTINUATION:
            return value, at + number + 1
    raise PacketError("length", "at most 4 bytes", bytes(data[at : at + 4]))


def _number(value: int) -> bytes:
    if value < _CONTINUATION:
        return _DIGITS[value]
    low, high = value & 0x7F | _CONTINUATION, value >> 7
    return _DIGITS[low] + _number(high)


_DIGITS: Final = [bytes((value,)) for value in range(256)]


def _text(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


_ID_HEAD: Final = bytes((USER,)) + _text(ID_PROPERTY)
_short_topic: Callable[[str], bytes] = lru_cache(CACHE_SIZE)(_text)
_decode_short: Callable[[bytes], str] = lru_cache(CACHE_SIZE)(bytes.decode)


def _topic(topic: str) -> bytes:
    return _short_topic(topic) if len(topic) <= MAX_TOPIC_CHARS else _text(topic)


def _decode_text(raw: bytes) -> str:
    return _decode_short(raw) if len(raw) <= MAX_TOPIC_CHARS else raw.decode()


@lru_cache(CACHE_SIZE)
def _properties(
    priority: int | None,
    response_topic: str | None,
    expiry_s: int | None,
    content: str | None,
    age_s: int | None,
) -> bytes:
    """Encode the properties that many messages share."""
    user_properties = ((PRIORITY_PROPERTY, priority), (AGE_PROPERTY, age_s))
    parts = [
        bytes((USER,)) + _text(name) + _text(str(value))
        for name, value in user_properties
        if value is not None
    ]
    if response_topic is not None:
        parts.append(bytes((RESPONSE,)) + _text(response_topic))
    if expiry_s is not None:
        parts.append(struct.pack("!BI", EXPIRY, expiry_s))
    if content is not None:
        parts.append(bytes((CONTENT,)) + _text(content))
    return b"".join(parts)
