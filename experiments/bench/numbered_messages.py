"""Numbered messages: SenML packs of a given size."""

import random

from spatial_mqtt.senml import MessageId, Pack, Reading, decode_pack, encode_cbor

_HEX_DIGITS = "0123456789abcdef"
_TIME_S = 1_782_831_600.25


def encode_numbered(
    number: int, priority: int, size_bytes: int, id_: MessageId
) -> bytes:
    """Encode a pack of exactly this size whose text begins with the number.

    Raises:
        ValueError: The size is too small.
    """
    bare = len(_encode(number, priority, id_, ""))
    # Random digits: the text must not compress better than real readings.
    rng = random.Random(number)  # noqa: S311 - no secrets
    filling = "".join(rng.choices(_HEX_DIGITS, k=max(0, size_bytes - bare)))
    # A CBOR text of 24 characters or more has an additional length byte.
    over = len(_encode(number, priority, id_, filling)) - size_bytes
    payload = _encode(number, priority, id_, filling[: len(filling) - over])
    if len(payload) != size_bytes:
        raise ValueError(f"size_bytes must be at least {bare + 24}, got {size_bytes}")
    return payload


def decode_number(payload: bytes) -> int:
    """Return the number of a message."""
    return int(str(decode_pack(payload).readings[0].value).split(" ", 1)[0])


def _encode(number: int, priority: int, id_: MessageId, filling: str) -> bytes:
    reading = Reading("text", None, f"{number:06d} {filling}")
    return encode_cbor(Pack(id_, priority, _TIME_S, (reading,)))
