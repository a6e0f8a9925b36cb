"""Batches and fragments of messages."""

import random
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import cbor2
import pytest
from hostile_cbor import deflate

from spatial_mqtt.batching import (
    DEFLATE_DICTIONARY,
    MAX_AGE_S,
    MAX_ITEMS,
    MAX_PARTIAL_BYTES,
    BatchItem,
    Fragment,
    FragmentJoiner,
    decode_batch,
    encode_batch,
    split_message,
)
from spatial_mqtt.errors import BatchError
from spatial_mqtt.senml import MAX_PAYLOAD_BYTES, MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import MAX_TOPIC_CHARS


def deflated(value: object) -> bytes:
    return deflate(cbor2.dumps(value))


def test_batch_survives_encoding_and_decoding() -> None:
    """Order, bytes and ages are kept; an absent age takes no bytes."""
    items = [BatchItem(b""), BatchItem(b"\x00\xff" * 40, 61), BatchItem(b"x", 0)]

    assert decode_batch(encode_batch(items)) == items


def test_age_is_bounded() -> None:
    """No store can save one of 2^64 - 1 seconds."""
    assert decode_batch(encode_batch([BatchItem(b"x", 2**64 - 1)])) == [
        BatchItem(b"x", MAX_AGE_S)
    ]


def test_similar_messages_are_compressed_together() -> None:
    """A batch of ten packs of one node is less than a quarter of their size."""
    packs = [b'[{"bn":"n17/","n":"rain","u":"mm","v":%d}]' % n for n in range(10)]
    separate_size = sum(map(len, packs))

    assert len(encode_batch([BatchItem(p) for p in packs])) < separate_size / 4


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not deflated",
        deflated([]),
        deflated({"a": 1}),
        deflated([1]),
        deflated([[b"x"]]),
        deflated([[b"x", -1]]),
        deflated([[b"x", True]]),
        deflated([b""] * (MAX_ITEMS + 1)),
        deflated(["text"]),
        deflated([b"x"]) + b"more",
        deflated([b"x"])[:-1],
        zlib.compress(b"\x81\x5f", wbits=-15),
        deflated([b"\0" * (MAX_PAYLOAD_BYTES + 1)]),  # a bomb
    ],
)
def test_malformed_batch_is_refused(payload: bytes) -> None:
    """Hostile or damaged input raises an error and does not fill the memory."""
    with pytest.raises(BatchError, match="must be"):
        decode_batch(payload)


def test_any_bytes_are_a_batch_or_an_error() -> None:
    """Fuzzing: only `BatchError` is raised."""
    rng = random.Random(3)
    whole = encode_batch([BatchItem(b"abc" * 20, 5), BatchItem(b"def")])
    for _ in range(3000):
        broken = bytearray(whole)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        for data in (bytes(broken), rng.randbytes(rng.randrange(60))):
            try:
                decode_batch(data)
                Fragment.decode(data)
            except BatchError:
                pass


def test_fragments_are_joined_in_any_order() -> None:
    """Fragments may arrive out of order; the last one completes the message."""
    payload = random.Random(1).randbytes(10_001)
    fragments = split_message("n:b:1", payload, 1200)
    random.Random(2).shuffle(fragments)
    joiner = FragmentJoiner()
    results = [
        joiner.add("/t", Fragment.decode(fragment.encode())) for fragment in fragments
    ]

    assert [len(fragment.data) <= 1200 for fragment in fragments] == [True] * 9
    assert results[:-1] == [None] * 8
    assert results[-1] == payload


def test_message_that_is_sent_again_is_joined_again() -> None:
    """After a disconnect the sender starts over; earlier fragments do no harm."""
    first, again = (
        split_message("n:b:1", b"a" * 300, 100),
        split_message("n:b:1", b"b" * 250, 100),
    )
    joiner = FragmentJoiner()
    joiner.add("/t", first[0])
    results = [joiner.add("/t", fragment) for fragment in again]

    assert results == [None, None, b"b" * 250]


def test_unfinished_messages_do_not_fill_the_memory() -> None:
    """The oldest unfinished message is dropped; the others are completed."""
    joiner = FragmentJoiner(max_bytes=10_000)
    one, two = (
        split_message("n:b:1", b"a" * 9000, 3000),
        split_message("n:b:2", b"b" * 9000, 3000),
    )
    joiner.add("/t", one[0])
    joiner.add("/t", one[1])
    for fragment in two[:2]:
        joiner.add("/t", fragment)

    assert joiner.add("/t", two[2]) == b"b" * 9000
    assert joiner.add("/t", one[2]) is None


@pytest.mark.attack("fragments of messages that never become whole", "493 MiB")
def test_fragments_without_end_fill_no_memory_and_displace_no_others(
    report: Callable[..., None],
) -> None:
    """Ids and topics count as data does; the sender with the most bytes gives way."""
    ids = [f"{n:06d}" + "x" * 250_000 for n in range(40)]
    ids += [f"{n:063d}:{'b' * 32}:{n:019d}" for n in range(1500)]
    payload = random.Random(1).randbytes(MAX_PAYLOAD_BYTES)
    first, *others = split_message("n:b:1", payload, 1200)
    joiner = FragmentJoiner()
    joiner.add("/t", first, "n")
    tracemalloc.start()
    try:
        for number, message_id in enumerate(ids):
            hostile = Fragment(message_id, number, 10_000, number, b"").encode()
            topic = f"/{number:06d}/{'山' * (MAX_TOPIC_CHARS - 8)}"
            with suppress(BatchError):
                joiner.add(topic, Fragment.decode(hostile), "evil")
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    report(memory_mib=[size_bytes / 2**20])
    results = [joiner.add("/t", fragment, "n") for fragment in others]

    assert size_bytes < 1.25 * MAX_PARTIAL_BYTES
    assert results[-1] == payload


@pytest.mark.parametrize(
    "value",
    [
        [],
        ["n:b:1", 0, 1, 0],
        ["n:b:1", 1, 1, 0, b"x"],
        ["n:b:1", -1, 1, 0, b"x"],
        ["n:b:1", 0, 10**9, 0, b"x"],
        [1, 0, 1, 0, b"x"],
        ["n:b:1", 0, 1, 0, "x"],
        ["n:b:1", True, 2, 0, b"x"],
        ["n:b", 0, 2, 0, b"x"],
        ["n" * 250_000, 0, 2, 0, b"x"],
    ],
)
def test_malformed_fragment_is_refused(value: object) -> None:
    """For example an index beyond the count, which could never be completed."""
    with pytest.raises(BatchError, match="must be"):
        Fragment.decode(cbor2.dumps(value))


def test_checksum_mismatch_is_refused() -> None:
    """The checksum is that of the whole message."""
    with pytest.raises(BatchError, match="crc"):
        FragmentJoiner().add("/t", Fragment("n:b:1", 0, 1, 5, b"x"))


def test_compression_dictionary_is_unchanged() -> None:
    """Deployed gateways inflate with the dictionary that they were shipped with."""
    assert (len(DEFLATE_DICTIONARY), zlib.crc32(DEFLATE_DICTIONARY)) == (
        668,
        2487567952,
    )


def test_single_pack_shrinks_to_less_than_60_percent() -> None:
    """The dictionary holds its keywords, not its numbers."""
    readings = (
        Reading("rain", "mm", 0.5, 1234.5),
        Reading("soil", "/", 0.31234),
        Reading("tilt/x", "deg", 0.12345),
        Reading("tilt/y", "deg", -0.02341),
        Reading("tilt/temp", "Cel", 11.37),
        Reading("span", None, False),
    )
    pack = Pack(MessageId("kochi-0001", "1a2b3c4d", 4711), 1, 1.7950001e9, readings,
                mono_s=86_400.123)  # fmt: skip
    payload = encode_cbor(pack)

    assert len(encode_batch([BatchItem(payload)])) < 0.6 * len(payload)
