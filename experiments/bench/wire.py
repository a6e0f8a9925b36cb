"""Wire format of the experiments' messages, and their minimum cost on the link.

A message begins with its name, ``u00001 `` (urgent) or ``b00001 `` (backlog), followed
by the message id for the receipt if our uplink sends it.
"""

from spatial_mqtt.senml import MessageId

CELL = "/3/1/0/2/2/1/3/0/2/1/1/3/0"
"""Topic of typical length: a cell of S2 level 12."""

NAME_BYTES = 7
SEGMENT_BYTES = 1448
SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""

PUBLISH_BYTES = 7
"""MQTT 3.1.1 QoS 1: 1 type, 2 remaining length, 2 topic length, 2 packet id."""


def name(is_urgent: bool, number: int) -> str:
    """Return the name of a message."""
    return f"{'u' if is_urgent else 'b'}{number:05d}"


def payload(name_: str, size_bytes: int, message_id: MessageId | None = None) -> bytes:
    """Return a message of exactly this size."""
    text = f"{name_} {message_id or '-'} "
    if len(text) > size_bytes:
        raise ValueError(f"size_bytes must be at least {len(text)}, got {size_bytes}")
    return text.ljust(size_bytes, ".").encode()


def name_of(data: bytes) -> str:
    """Return the name at the beginning of a payload."""
    return data[: NAME_BYTES - 1].decode()


def id_of(data: bytes) -> MessageId | None:
    """Return the id after the name, or None."""
    text = data.split(b" ", 2)[1].decode()
    return None if text == "-" else MessageId.parse(text)


def unavoidable_bytes(topic: str, size_bytes: int) -> float:
    """Return the minimum bytes of a message on the link.

    Payload, topic and MQTT header, with their share of the headers of full TCP
    segments:
    ``(size + topic + 7) * (1448 + 66) / 1448``.
    """
    stream = size_bytes + len(topic) + PUBLISH_BYTES
    return stream * (SEGMENT_BYTES + SEGMENT_HEADER_BYTES) / SEGMENT_BYTES
