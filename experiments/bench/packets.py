"""MQTT packets encoded and decoded without a client library.

With hundreds of clients in one process a library's own cost would dominate the
measurement. Clients use QoS 1 and MQTT 5, or 3.1.1 where they only publish.
"""

import socket
import struct
from collections.abc import Iterator

CONNECT, PUBLISH, PUBACK, SUBSCRIBE = 0x10, 0x30, 0x40, 0x82
QOS_1, RETAIN = 0x02, 0x01
MQTT_311, MQTT_5 = 4, 5
CLEAN, KEEPALIVE_S = 2, 600
RECEIVE_MAXIMUM = b"\x21\xff\xff"
USER_PROPERTY, RESPONSE_TOPIC = 0x26, 0x08


def connected(
    host: str, port: int, client_id: str, version: int = MQTT_311
) -> socket.socket:
    """Connect with a clean session and without Nagle's delay.

    Raises:
        ConnectionError: The broker refused it.
    """
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = text("MQTT") + struct.pack("!BBH", version, CLEAN, KEEPALIVE_S)
    properties = bytes([len(RECEIVE_MAXIMUM)]) + RECEIVE_MAXIMUM
    optional = properties if version == MQTT_5 else b""
    sock.sendall(packet(CONNECT, head + optional + text(client_id)))
    connack = sock.recv(4096)
    if len(connack) < 4 or connack[3] != 0:  # noqa: PLR2004 - the return code
        raise ConnectionError(f"CONNACK must be a success, got {connack!r}")
    return sock


def subscribe(sock: socket.socket, filters: list[str]) -> None:
    """Subscribe an MQTT 5 connection with QoS 1, and wait for the SUBACK."""
    body = struct.pack("!HB", 1, 0) + b"".join(text(f) + b"\x01" for f in filters)
    sock.sendall(packet(SUBSCRIBE, body))
    sock.recv(4096)


def publish(topic: str, packet_id: int, data: bytes, more: bytes = b"") -> bytes:
    """Encode a PUBLISH of QoS 1.

    Args:
        topic: Topic name.
        packet_id: Packet identifier.
        data: Payload.
        more: Properties with their length; empty for MQTT 3.1.1.
    """
    body = text(topic) + struct.pack("!H", packet_id) + more + data
    return packet(PUBLISH | QOS_1, body)


def packet(kind: int, body: bytes) -> bytes:
    """Encode a packet: fixed header and body."""
    length, left = b"", len(body)
    while True:
        left, digit = divmod(left, 128)
        length += bytes([digit | (0x80 if left else 0)])
        if not left:
            return bytes([kind]) + length + body


def text(value: str) -> bytes:
    """Encode a UTF-8 string with its length."""
    data = value.encode()
    return struct.pack("!H", len(data)) + data


def packets(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Remove the complete packets from a buffer; yield first byte and body of each."""
    at, end = 0, len(buffer)
    while at + 1 < end:
        start, length, shift = at + 1, 0, 0
        while start < end:
            digit = buffer[start]
            length |= (digit & 0x7F) << shift
            start, shift = start + 1, shift + 7
            if digit < 0x80:  # noqa: PLR2004 - the last one
                break
        else:
            break
        if start + length > end:
            break
        yield buffer[at], bytes(buffer[start : start + length])
        at = start + length
    del buffer[:at]


def published(first: int, body: bytes) -> tuple[str, bytes, bytes, bytes]:
    """Return topic, packet id (empty at QoS 0), properties and payload of a PUBLISH."""
    topic_end = 2 + int.from_bytes(body[:2], "big")
    at = topic_end + (2 if first & 0x06 else 0)
    packet_id = body[topic_end:at]
    size = body[at]
    at += 1
    if size >= 0x80:  # noqa: PLR2004 - a second length byte follows
        size = size & 0x7F | body[at] << 7
        at += 1
    topic = body[2:topic_end].decode()
    return topic, packet_id, body[at : at + size], body[at + size :]


def decode_properties(properties: bytes) -> dict[str, str]:
    """Return user properties by name, and the response topic under ``response``."""
    found: dict[str, str] = {}
    at = 0
    while at < len(properties):
        kind, at = properties[at], at + 1
        if kind == USER_PROPERTY:
            name, at = _text_at(properties, at)
            found[name], at = _text_at(properties, at)
        elif kind == RESPONSE_TOPIC:
            found["response"], at = _text_at(properties, at)
        else:
            break  # the sender writes these first
    return found


def _text_at(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end].decode(), end
