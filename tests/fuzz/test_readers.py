"""No external input ends a daemon: a reader returns or raises one of its errors.

The short form runs with the tests; ``make fuzz`` runs a million cases for each reader.
"""

import os
import random
import re
from itertools import islice

import cbor2
import msgspec
import pytest
from fuzz.file_readers import FILE_READERS, OWN_READERS
from fuzz.mutants import Mutants
from fuzz.reader import Reader
from fuzz.readers import READERS
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FUZZ_CASES", "600"))
"""Damaged messages for each reader."""

SEED = int(os.environ.get("FUZZ_SEED", "1"))

MAX_ERROR = 4000
"""In characters; errors are logged or sent to an administrator."""

ALL_READERS = (*READERS, *FILE_READERS, *OWN_READERS)
RULE = re.compile(r"a value|must|needs|cannot|no rain of|not a known key")
"""An error about a file must state a rule."""

BY_HYPOTHESIS = max(10, CASES // 50)
"""Hypothesis shrinks failing cases, but is a hundred times slower."""
DEEP = (b"[" * 20_000, b"\x81" * 20_000, b'{"a":' * 20_000, b"a = " + b"[" * 5_000)
HUGE_NUMBERS = (b"9" * 5000, b"a = " + b"9" * 5000, b"1e999", b"[1e999]")
EDGES = (b"", b"\x00", b"\xff" * 16, b"null", b"[]", b"{}", b"\xa0", b"\x80", b"NaN")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats()
    | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8) | st.integers(-9, 9), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def as_json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return repr(value).encode()


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A valid message with pieces removed, doubled or replaced."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 8)))
        new = draw(
            st.one_of(st.just(data[at:to] * 2), st.binary(max_size=6), st.just(b""))
        )
        data = data[:at] + new + data[to:]
    return data


def hostile(reader: Reader) -> st.SearchStrategy[bytes]:
    """Random bytes, values of the right format but wrong type, and damaged messages."""
    return st.one_of(
        damaged(reader.seeds),
        damaged(reader.seeds),
        st.binary(max_size=300),
        VALUES.map(as_json),
        VALUES.map(cbor2.dumps),
        st.text(max_size=100).map(lambda text: text.encode(errors="replace")),
    )


def check(reader: Reader, data: bytes) -> str:
    """Read the data; returns the outcome: the length of the value, or the error."""
    outcome = ""
    try:
        outcome = "a value " + "*" * min(64, len(str(reader.read(data))) // 16)
    except reader.refuses as error:
        outcome = str(error)
    is_short = not reader.is_remote or len(outcome) <= MAX_ERROR
    assert is_short, "the error is too long for a log"
    has_rule = not outcome or reader not in FILE_READERS or RULE.search(outcome)
    assert has_rule, f"the error states no rule: {outcome}"
    return outcome


@pytest.mark.parametrize("reader", ALL_READERS, ids=lambda r: r.name)
def test_reader_accepts_its_seeds(reader: Reader) -> None:
    """Mutants of an invalid seed would only test the first check."""
    if reader.name in {
        "record",
        "view",
        "report",
        "renewal",
        "manager.toml",
        "signed notice",
    }:
        check(reader, reader.seeds[0])
    else:
        for seed in reader.seeds:
            reader.read(seed)


@pytest.mark.parametrize("reader", ALL_READERS, ids=lambda r: r.name)
def test_reader_survives_deep_huge_and_empty_input(reader: Reader) -> None:
    """Deep nesting and long numbers are the cheapest attack."""
    for data in (*DEEP, *HUGE_NUMBERS, *EDGES):
        check(reader, data)
        check(reader, reader.seeds[0] + data)
        check(reader, data + reader.seeds[0])


@pytest.mark.parametrize("reader", ALL_READERS, ids=lambda r: r.name)
def test_reader_survives_hostile_bytes(reader: Reader) -> None:
    """It raises only its own errors, with short messages."""

    @settings(
        max_examples=BY_HYPOTHESIS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(hostile(reader))
    @example(b"")
    def run(data: bytes) -> None:
        check(reader, data)

    run()


@pytest.mark.parametrize("reader", ALL_READERS, ids=lambda r: r.name)
def test_reader_survives_damaged_messages(reader: Reader) -> None:
    """Valid messages, mutated further where the outcome is new."""
    mutants = Mutants(reader.seeds, random.Random(f"{SEED} {reader.name}"))
    for data in islice(mutants, CASES):
        try:
            mutants.learn(data, check(reader, data))
        except Exception as error:
            error.add_note(f"FUZZ_SEED={SEED}, {reader.name}: {data!r}")
            raise
