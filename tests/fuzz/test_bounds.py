"""No message costs a reader more than 50 ms of CPU or 16 MiB of memory."""

import os
import random
import time
import tracemalloc
from collections.abc import Iterator
from itertools import islice

import pytest
from fuzz.grammars import CborGrammar, as_sent, largest_messages
from fuzz.reader import Reader
from fuzz.readers import READERS

LONG_CASES = os.environ.get("FUZZ_CASES")
CASES = int(LONG_CASES or "500")
"""Cases of the tag grammar, each for every reader of CBOR."""

SEED = int(os.environ.get("FUZZ_SEED", "1"))
MAX_CPU_S = 0.05 if LONG_CASES else 0.5
"""The short form also runs beside other tests on a busy machine."""

MAX_MEMORY_BYTES = 16 * 2**20
MAX_ERROR_CHARS = 1000
ATTEMPTS = 5
"""A case counts as slow when it is slow each time."""

CBOR_READERS = (
    "envelope", "envelope id", "bronze row", "receipt", "offer", "parcel", "chunk",
    "gateway", "renewal", "renewed",
)  # fmt: skip
"""Names of the readers of CBOR from the network."""

MESSAGE_READERS = (
    *CBOR_READERS, "notice", "notices", "gateways", "table", "gateway notice", "here",
    "place", "area setting", "entry", "load", "record", "view", "report",
    "overlay frame", "signed notice", "age of a notice",
)  # fmt: skip
"""And of JSON and MessagePack: of every message that a network delivers."""


def readers(names: tuple[str, ...]) -> list[Reader]:
    found = {reader.name: reader for reader in READERS}
    return [found[name] for name in names]


def each_form(found: list[Reader], data: bytes) -> Iterator[tuple[Reader, bytes]]:
    return ((reader, each) for reader in found for each in as_sent(reader.name, data))


def read(reader: Reader, data: bytes) -> None:
    """Read; an error must be one of the reader's own, and short."""
    text = ""
    try:
        reader.read(data)
    except reader.refuses as error:
        text = str(error)
    assert len(text) < MAX_ERROR_CHARS


def cpu_s(reader: Reader, data: bytes) -> float:
    began_s = time.thread_time()
    read(reader, data)
    return time.thread_time() - began_s


def peak_bytes(reader: Reader, data: bytes) -> int:
    tracemalloc.start()
    try:
        read(reader, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_cpu(reader: Reader, data: bytes) -> None:
    if cpu_s(reader, data) > MAX_CPU_S:
        best_s = min(cpu_s(reader, data) for _ in range(ATTEMPTS))
        assert best_s <= MAX_CPU_S, f"{reader.name}: {best_s:.3f} s for {data[:80]!r}"


def test_tag_grammar_stays_within_the_bounds() -> None:
    """Shared references, big numbers, regular expressions, containers as keys."""
    found = readers(CBOR_READERS)
    grammar = CborGrammar(random.Random(f"{SEED} tags"))
    tracemalloc.start()
    try:
        for data in islice(grammar, CASES):
            for reader, message in each_form(found, data):
                tracemalloc.reset_peak()
                held, _ = tracemalloc.get_traced_memory()
                check_cpu(reader, message)
                _, peak = tracemalloc.get_traced_memory()
                assert peak - held < MAX_MEMORY_BYTES, (reader.name, message[:80])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", readers(MESSAGE_READERS), ids=lambda r: r.name)
def test_largest_messages_stay_within_the_bounds(reader: Reader) -> None:
    """A message as large as a broker or a reader accepts it."""
    step = 1 if LONG_CASES else 8 if reader.name == "gateway" else 4
    for data in islice(largest_messages(), None, None, step):
        for _, message in each_form([reader], data):
            check_cpu(reader, message)
            assert peak_bytes(reader, message) < MAX_MEMORY_BYTES, message[:80]
