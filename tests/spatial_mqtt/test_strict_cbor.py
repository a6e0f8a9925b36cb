"""CBOR of an attacker: nothing becomes large, and nothing takes long."""

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

import cbor2
import pytest
from hostile_cbor import deflate, item_head, nested_references

from service_runtime.errors import FieldError
from spatial_mqtt.batching import Fragment, decode_batch
from spatial_mqtt.certificates import RenewalAnswer, RenewalRequest
from spatial_mqtt.custody import CustodyOffer, CustodyReceipt
from spatial_mqtt.senml import (
    MAX_PAYLOAD_BYTES,
    CborError,
    decode_cbor,
    decode_message_id,
    decode_pack,
)

MAX_MEMORY_BYTES = 16 * 2**20
MAX_TIME_S = 2.0
"""Generous for a busy machine; a nested reference would take hours."""

MAX_ERROR_CHARS = 1000

READERS: dict[str, Callable[[bytes], object]] = {
    "pack": decode_pack,
    "message id": decode_message_id,
    "batch": decode_batch,
    "fragment": Fragment.decode,
    "receipt": CustodyReceipt.decode,
    "offer": CustodyOffer.decode,
    "renewal request": RenewalRequest.decode,
    "renewal answer": RenewalAnswer.decode,
}


def as_key(item: bytes) -> bytes:
    """The item as the key of a map in a list."""
    return b"\x81\xa1" + item + b"\x00"


def tagged(tag: int, item: bytes) -> bytes:
    return b"\x81" + item_head(6, tag) + item


ATTACKS = {
    "nested references": nested_references(12),
    "nested references as a key": as_key(nested_references(12)),
    "a cycle": b"\xd8\x1c\x81\xd8\x1d\x00",
    "regular expression": tagged(35, b"\x6a(a+)+(a+)+"),
    "big integer": tagged(2, b"\x59\xff\xff" + bytes(65535)),
    "decimal with a huge exponent": tagged(4, b"\x82\x1a\x7f\xff\xff\xff\x01"),
    "big float with a huge exponent": tagged(5, b"\x82\x1a\x7f\xff\xff\xff\x01"),
    "fraction": tagged(30, b"\x82\x01\x00"),
    "date": tagged(0, b"\x74" + b"9" * 20),
    "string references": tagged(256, b"\x82\x63abc\xd8\x19\x00"),
    "unknown tag": tagged(4711, b"\x00"),
    "a chain of tags": b"\x81" + b"\xc6" * 60_000 + b"\x00",
    "empty lists": item_head(4, 262_000) + b"\x80" * 262_000,
    "lists of one": item_head(4, 131_000) + b"\x81\x00" * 131_000,
    "empty maps": item_head(4, 262_000) + b"\xa0" * 262_000,
    "maps of one": item_head(4, 87_000) + b"\xa1\x00\x00" * 87_000,
    "indefinite lists": b"\x9f" + b"\x9f\xff" * 131_000 + b"\xff",
    "half floats": item_head(4, 87_000) + b"\xf9\x3c\x01" * 87_000,
    "deep lists": b"\x81" * 200_000 + b"\x00",
    "deep maps": b"\xa1\x00" * 100_000 + b"\x00",
    "indefinite depth": b"\x9f" * 250_000,
    "a list of 2^63 items": b"\x9b" + b"\x7f" + b"\xff" * 7,
    "a text of 2^62 bytes": b"\x7b\x3f" + b"\xff" * 7,
    "a map of 2^32 pairs": b"\xba" + b"\xff" * 4,
    "chunked text": b"\x7f" + b"\x61a" * 131_000 + b"\xff",
    "bytes after the value": b"\x80\x80",
    "json lists": json.dumps([[]] * 80_000, separators=(",", ":")).encode(),
    "json maps": json.dumps([{}] * 80_000, separators=(",", ":")).encode(),
    "json depth": b"[" * 250_000,
    "json number": b"[" + b"9" * 250_000 + b"]",
}


def cost(read: Callable[[bytes], object], payload: bytes) -> tuple[int, float]:
    """Memory in bytes and time in seconds; only the reader's errors are allowed."""
    begin_s = time.process_time()
    tracemalloc.start()
    error_text = ""
    try:
        read(payload)
    except FieldError as error:
        error_text = str(error)
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(error_text) < MAX_ERROR_CHARS
    return peak_bytes, time.process_time() - begin_s


WORST = ("nested references", "lists of one")
"""The attacks that are made on every reader; the others on that of packs."""


@pytest.mark.parametrize(
    ("attack", "reader"),
    [(a, r) for a in ATTACKS for r in READERS if r == "pack" or a in WORST],
)
def test_attack_costs_little_memory_and_time(attack: str, reader: str) -> None:
    payload = ATTACKS[attack]
    if reader == "batch":
        payload = deflate(payload)
    peak_bytes, time_s = cost(READERS[reader], payload[:MAX_PAYLOAD_BYTES])

    assert peak_bytes <= MAX_MEMORY_BYTES
    assert time_s <= MAX_TIME_S


@pytest.mark.parametrize("tag", [*range(64), 100, 256, 258, 260, 1001, 43000, 2**32])
def test_every_tag_is_refused_wherever_it_stands(tag: int) -> None:
    mark = b"\xdb" + tag.to_bytes(8, "big")
    for payload in (
        mark + b"\x80", b"\x81" + mark + b"\x80", b"\xa1\x00" + mark + b"\x01",
        b"\xa1" + mark + b"\x01\x00", b"\x9f" + mark + b"\x61a\xff",
    ):  # fmt: skip
        with pytest.raises(CborError, match=f"semantic tag {tag}$"):
            decode_cbor(payload)


def grammar(chance: random.Random, depth: int = 0) -> bytes:
    """A random item with tags, references and wrong counts."""
    kind = chance.randrange(9 if depth < 5 else 4)
    count = chance.randrange(6)
    if kind in {4, 5, 6}:
        tag = chance.choice((0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 256, 258))
        return item_head(6, tag) + grammar(chance, depth + 1)
    if kind == 7:
        inside = b"".join(grammar(chance, depth + 1) for _ in range(count))
        return item_head(4, count + chance.choice((0, 0, 0, 1, 2**31))) + inside
    if kind == 8:
        inside = b"".join(grammar(chance, depth + 1) for _ in range(2 * count))
        return item_head(5, count) + inside
    return chance.choice((
        item_head(0, chance.randrange(2**32)), item_head(1, 7), b"\x61a", b"\x41\x00",
        b"\xf4", b"\xf6", b"\xf7", b"\xfb\x7f\xf8" + bytes(6), b"\x9f\x00\xff", b"\xf0",
    ))  # fmt: skip


def test_grammar_of_tags_never_passes() -> None:
    """Whatever is decoded has only plain types; everything else is refused."""
    chance = random.Random(1)
    accepted = 0
    for _ in range(20_000):
        try:
            decoded = decode_cbor(grammar(chance))
        except CborError:
            continue
        accepted += 1
        assert all(type(each) in PLAIN for each in parts(decoded))
    assert accepted > 500


PLAIN = {
    *(int, float, str, bytes, bool, type(None), list, dict, tuple),
    *(cbor2.CBORSimpleValue, type(cbor2.undefined), cbor2.frozendict),
}


def parts(value: object) -> Iterator[object]:
    yield value
    inside: Iterator[object] = iter(())
    if isinstance(value, (list, tuple)):
        inside = iter(value)
    elif isinstance(value, dict):
        inside = iter([*value.keys(), *value.values()])
    for each in inside:
        yield from parts(each)


def test_plain_values_and_the_mark_of_cbor_are_decoded() -> None:
    value = [{-2: "n/", "seq": 7, 2: 1.5, "x": [None, True, b"\x00", {"k": [1]}]}]
    data = cbor2.dumps(value)

    assert decode_cbor(data) == value
    assert decode_cbor(b"\xd9\xd9\xf7" + data) == value
