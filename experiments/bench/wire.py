"""What the messages of the experiments look like, and what they must cost.

A message begins with its name, ``u00001 `` (urgent) or ``b00001 `` (backlog),
and, where the sender is our uplink, the id that a receipt will name.
"""

from spatial_mqtt.senml import MessageId

CELL = "/3/1/0/2/2/1/3/0/2/1/1/3/0"
"""A topic of the usual length: a cell of S2 level 12."""

NAME_BYTES = 7
SEGMENT_BYTES = 1448
SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20 and its time stamps 12."""

PUBLISH_BYTES = 7
"""MQTT 3.1.1 QoS 1: 1 type, 2 remaining length, 2 topic length, 2 packet id."""


def name(is_urgent: bool, number: int) -> str:
    """A message's name."""
    return f"{'u' if is_urgent else 'b'}{number:05d}"


def payload(name_: str, size_bytes: int, message_id: MessageId | None = None) -> bytes:
    """A message of exactly a size."""
    text = f"{name_} {message_id or '-'} "
    if len(text) > size_bytes:
        raise ValueError(f"size_bytes must be at least {len(text)}, got {size_bytes}")
    return text.ljust(size_bytes, ".").encode()


def name_of(data: bytes) -> str:
    """The name at the front of a payload."""
    return data[: NAME_BYTES - 1].decode()


def id_of(data: bytes) -> MessageId | None:
    """The id behind the name, if there is one."""
    text = data.split(b" ", 2)[1].decode()
    return None if text == "-" else MessageId.parse(text)


def unavoidable_bytes(topic: str, size_bytes: int) -> float:
    """What a message must cost on the link at least.

    Payload, topic and MQTT's header, at their share of full TCP segments:
    ``(size + topic + 7) * (1448 + 66) / 1448``.
    """
    stream = size_bytes + len(topic) + PUBLISH_BYTES
    return stream * (SEGMENT_BYTES + SEGMENT_HEADER_BYTES) / SEGMENT_BYTES
