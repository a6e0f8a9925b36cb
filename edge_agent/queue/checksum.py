"""Whether a stored message is what was put: all of it, not its payload alone."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

NEVER = -1
"""No checksum is negative."""

_TYPES = (int, int, str, str, int, str, int, bytes)


Head = tuple[int, int, str, str, int, str]
"""Priority, number, id and topic, in the file's order of columns."""


def checksum(head: Head, payload: bytes) -> int:
    """Checksum of everything in a message that is sent or that says how."""
    priority, seq, node, boot, origin_seq, topic = head
    words = f"{priority} {seq} {node} {boot} {origin_seq} {topic}"
    return crc32(words.encode("utf-8", "surrogateescape"), crc32(payload))


def matches(crc: int, head: Head, payload: bytes) -> bool:
    """Whether a message matches its checksum."""
    # Files of earlier versions have one of the payload alone.
    return crc == checksum(head, payload) or crc == crc32(payload)


def is_typed(values: Sequence[Any]) -> bool:
    """Whether a row's values are of the types that were stored."""
    return tuple(map(type, values[: len(_TYPES)])) == _TYPES


def emptied(values: Sequence[Any]) -> Sequence[Any]:
    """A row that is not, so that nothing breaks on it and its checksum fails.

    Damage can turn a text into bytes. The checksum stays, to remove the row by.
    """
    crc = values[6] if type(values[6]) is int and values[6] else NEVER
    return (*values[:2], "", "", 0, "", crc, b"", None)
