"""Records of several Managers merge to the same, whatever the way they come."""

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
def test_merging_does_not_mind_order_grouping_or_repetition(
    one: Record, other: Record, third: Record
) -> None:
    """So retained messages may arrive twice and by any way."""
    assert merge_records(one, other) == merge_records(other, one)
    assert merge_records(merge_records(one, other), third) == merge_records(
        one, merge_records(other, third)
    )
    assert merge_records(one, merge_records(one, other)) == merge_records(one, other)


def test_later_word_wins_and_a_later_word_that_knew_is_no_conflict() -> None:
    """Correcting oneself is not contradicting somebody."""
    first = Record(B1, edits={}).with_value(B1, HybridTimestamp(5, 0, "a"))
    second = first.with_value(B2, HybridTimestamp(9, 0, "b"))
    blind = Record(None, edits={}).with_value(B2, HybridTimestamp(7, 0, "b"))

    assert merge_records(first, second).value == B2
    assert not is_conflict(first, second)
    assert is_conflict(first, blind)
    assert merge_records(first, blind).value == B2
    assert not is_conflict(merge_records(first, blind), blind)


def test_two_who_say_the_same_do_not_contradict() -> None:
    """Both hear the same gateway."""
    one = Record(None, edits={}).with_value(B1, HybridTimestamp(5, 0, "a"))
    other = Record(None, edits={}).with_value(B1, HybridTimestamp(6, 0, "b"))

    assert not is_conflict(one, other)


def test_settings_that_differ_are_a_conflict() -> None:
    """Nobody said it later: every Manager takes the same one, and all are told."""
    assert is_conflict(Record(B1), Record(B2))
    assert merge_records(Record(B1), Record(B2)) == merge_records(
        Record(B2), Record(B1)
    )


@given(stamps, st.integers(-5, 5), st.sampled_from(MANAGERS))
def test_stamp_is_later_than_all_that_was_seen(
    seen: HybridTimestamp, now_ms: int, manager: str
) -> None:
    """Also where the wall clock is set back."""
    made = seen.next(now_ms, manager)

    assert made > seen
    assert made.ms == max(seen.ms, now_ms)


words = st.lists(
    st.tuples(
        st.sampled_from(MANAGERS),
        st.sampled_from(["/", "/1", "/1/2"]),
        st.sampled_from([B1, B2, None]),
        st.integers(0, 5),
    ),
    max_size=20,
)


@given(words, st.data())
def test_managers_that_exchanged_all_they_know_agree(
    said: list[tuple[str, str, BrokerInfo | None, int]], data: st.DataObject
) -> None:
    """Whatever was said to whom, with whatever clocks, heard in whatever order."""
    managers = {me: Registry(me) for me in MANAGERS}
    for me, area, broker, now_ms in said:
        managers[me] = managers[me].with_value("broker", area, broker, now_ms)
        if data.draw(st.booleans()):
            other = data.draw(st.sampled_from(MANAGERS))
            managers[other] = exchange(managers[other], managers[me], data.draw)
    for _ in MANAGERS:
        for me in MANAGERS:
            for other in MANAGERS:
                managers[me] = exchange(managers[me], managers[other], data.draw)

    told = {me: (m.table, dict(m.records)) for me, m in managers.items()}
    assert told["a"] == told["b"] == told["c"]
    assert managers["a"].version >= len(said)


def exchange(
    to: Registry, of: Registry, draw: Callable[[st.SearchStrategy], object]
) -> Registry:
    for key in draw(st.permutations(sorted(of.records))):
        to = to.with_record(key, of.records[key])
    return to


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"no json", "a manager's word must be JSON of its form"),
        (b'{"key":{"kind":"broker","name":"1"},"record":{"value":null}}', "levels"),
        (b'{"key":{"kind":"areas","name":"h"},"record":{"value":null}}', "host:port"),
        (b'{"key":{"kind":"broker","name":"/"},"record":{"value":["/"]}}', "one of"),
        (b'{"key":{"kind":"wish","name":"h:1"},"record":{"value":["x"]}}', "levels"),
    ],
)
def test_hostile_record_is_a_named_error(payload: bytes, reason: str) -> None:
    """A peer's bad word harms nobody."""
    with pytest.raises(DirectoryError, match=reason):
        decode_record(payload)


def test_record_survives_the_wire() -> None:
    """What one Manager retains, another one reads."""
    told = KeyedRecord(KEY, Record(B1, HybridTimestamp(3, 1, "a"), {"a": 2}))

    assert decode_record(msgspec.json.encode(told)) == told
