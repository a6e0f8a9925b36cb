"""Records of several Managers merge to the same value in any order."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_daemon.manager.registry import Registry
from gateway_daemon.manager.replication import (
    HybridTimestamp,
    KeyedRecord,
    Record,
    RecordKey,
    decode_record,
    is_conflict,
    merge_records,
)
from spatial_mqtt.directory import BrokerInfo
from spatial_mqtt.errors import DirectoryError

MANAGERS = ("a", "b", "c")
B1, B2 = BrokerInfo("b", 1), BrokerInfo("b", 2)
KEY = RecordKey("broker", "/1")

stamps = st.builds(
    HybridTimestamp,
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(("", *MANAGERS)),
)
records = st.builds(
    Record,
    st.sampled_from([B1, B2, None]),
    stamps,
    st.dictionaries(st.sampled_from(MANAGERS), st.integers(1, 3)),
)


@given(records, records, records)
def test_merging_is_commutative_associative_and_idempotent(
    one: Record, other: Record, third: Record
) -> None:
    """So retained messages may arrive twice and by any route."""
    assert merge_records(one, other) == merge_records(other, one)
    assert merge_records(merge_records(one, other), third) == merge_records(
        one, merge_records(other, third)
    )
    assert merge_records(one, merge_records(one, other)) == merge_records(one, other)


def test_later_value_wins_and_conflicts_only_without_knowledge_of_the_first() -> None:
    """A change based on the earlier record is no conflict."""
    first = Record(B1, edits={}).with_value(B1, HybridTimestamp(5, 0, "a"))
    second = first.with_value(B2, HybridTimestamp(9, 0, "b"))
    blind = Record(None, edits={}).with_value(B2, HybridTimestamp(7, 0, "b"))

    assert merge_records(first, second).value == B2
    assert not is_conflict(first, second)
    assert is_conflict(first, blind)
    assert merge_records(first, blind).value == B2
    assert not is_conflict(merge_records(first, blind), blind)


def test_equal_values_are_no_conflict() -> None:
    """Both Managers receive the same gateway's notices."""
    one = Record(None, edits={}).with_value(B1, HybridTimestamp(5, 0, "a"))
    other = Record(None, edits={}).with_value(B1, HybridTimestamp(6, 0, "b"))

    assert not is_conflict(one, other)


def test_settings_that_differ_are_a_conflict() -> None:
    """Neither is later; every Manager selects the same one and logs the conflict."""
    assert is_conflict(Record(B1), Record(B2))
    assert merge_records(Record(B1), Record(B2)) == merge_records(
        Record(B2), Record(B1)
    )


@given(stamps, st.integers(-5, 5), st.sampled_from(MANAGERS))
def test_next_stamp_is_later_than_every_stamp_seen(
    seen: HybridTimestamp, now_ms: int, manager: str
) -> None:
    """Also after the wall clock was set back."""
    later = seen.next(now_ms, manager)

    assert later > seen
    assert later.ms == max(seen.ms, now_ms)


changes = st.lists(
    st.tuples(
        st.sampled_from(MANAGERS),
        st.sampled_from(["/", "/1", "/1/2"]),
        st.sampled_from([B1, B2, None]),
        st.integers(0, 5),
    ),
    max_size=20,
)


@given(changes, st.data())
def test_managers_agree_after_exchanging_all_records(
    made: list[tuple[str, str, BrokerInfo | None, int]], data: st.DataObject
) -> None:
    """Any changes at any Manager, with any clocks, exchanged in any order."""
    managers = {me: Registry(me) for me in MANAGERS}
    for me, area, broker, now_ms in made:
        managers[me] = managers[me].with_value("broker", area, broker, now_ms)
        if data.draw(st.booleans()):
            other = data.draw(st.sampled_from(MANAGERS))
            managers[other] = exchange(managers[other], managers[me], data.draw)
    for _ in MANAGERS:
        for me in MANAGERS:
            for other in MANAGERS:
                managers[me] = exchange(managers[me], managers[other], data.draw)

    states = {me: (m.table, dict(m.records)) for me, m in managers.items()}
    assert states["a"] == states["b"] == states["c"]
    assert managers["a"].version >= len(made)


def exchange(
    to: Registry, of: Registry, draw: Callable[[st.SearchStrategy], object]
) -> Registry:
    for key in draw(st.permutations(sorted(of.records))):
        to = to.with_record(key, of.records[key])
    return to


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"no json", "record of a Manager must be JSON of its form"),
        (b'{"key":{"kind":"broker","name":"1"},"record":{"value":null}}', "levels"),
        (b'{"key":{"kind":"areas","name":"h"},"record":{"value":null}}', "host:port"),
        (b'{"key":{"kind":"broker","name":"/"},"record":{"value":["/"]}}', "one of"),
        (b'{"key":{"kind":"wish","name":"h:1"},"record":{"value":["x"]}}', "levels"),
    ],
)
def test_hostile_record_is_a_named_error(payload: bytes, reason: str) -> None:
    """A bad record from a peer harms no other record."""
    with pytest.raises(DirectoryError, match=reason):
        decode_record(payload)


def test_record_survives_encoding_and_decoding() -> None:
    """Managers exchange records as retained messages."""
    keyed = KeyedRecord(KEY, Record(B1, HybridTimestamp(3, 1, "a"), {"a": 2}))

    assert decode_record(msgspec.json.encode(keyed)) == keyed
