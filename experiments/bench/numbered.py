"""Messages with a number, in an envelope of a given size."""

import random

from spatial_mqtt.senml import MessageId, Pack, Reading, decode_pack, encode_cbor

_SIGNS = "0123456789abcdef"
_TIME_S = 1_782_831_600.25


def numbered(number: int, priority: int, size_bytes: int, id_: MessageId) -> bytes:
    """A pack of exactly a size, whose text begins with a number.

    Raises:
        ValueError: The size is too small for it.
    """
    bare = len(_encoded(number, priority, id_, ""))
    # What is gained by deflating it should be no more than of real readings.
    rng = random.Random(number)  # noqa: S311 - no secrets
    filling = "".join(rng.choices(_SIGNS, k=max(0, size_bytes - bare)))
    # A CBOR text of 24 signs or more takes another byte for its length.
    over = len(_encoded(number, priority, id_, filling)) - size_bytes
    payload = _encoded(number, priority, id_, filling[: len(filling) - over])
    if len(payload) != size_bytes:
        raise ValueError(f"size_bytes must be at least {bare + 24}, got {size_bytes}")
    return payload


def number_of(payload: bytes) -> int:
    """The number of a message."""
    return int(str(decode_pack(payload).readings[0].value).split(" ", 1)[0])


def _encoded(number: int, priority: int, id_: MessageId, filling: str) -> bytes:
    reading = Reading("text", None, f"{number:06d} {filling}")
    return encode_cbor(Pack(id_, priority, _TIME_S, (reading,)))
