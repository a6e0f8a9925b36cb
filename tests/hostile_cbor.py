"""CBOR of an attacker: shared references, and batches of any content."""

import zlib

from spatial_mqtt.batching import DEFLATE_DICTIONARY

SHARED, REFERENCE = b"\xd8\x1c", b"\xd8\x1d"
"""Semantic tags 28 and 29."""


def item_head(major: int, number: int) -> bytes:
    """Initial bytes of an item."""
    return bytes([major << 5 | 26]) + number.to_bytes(4, "big")


def nested_references(levels: int, width: int = 10) -> bytes:
    """A list of lists, each of which refers to the one before `width` times.

    Some hundred bytes for 12 levels, which stand for 10^12 items.
    """
    lists = [
        SHARED + bytes([0x80 + width]) + (REFERENCE + bytes([level])) * width
        for level in range(levels)
    ]
    return bytes([0x80 + levels + 1]) + SHARED + b"\x82\x00\x00" + b"".join(lists)


def deflate(raw: bytes) -> bytes:
    """Payload of a batch with any content."""
    deflater = zlib.compressobj(wbits=-15, zdict=DEFLATE_DICTIONARY)
    return deflater.compress(raw) + deflater.flush()
