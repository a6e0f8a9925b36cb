"""Rollouts, and chunks of update bundles."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.announcements import (
    FileChunk,
    FileChunkRequest,
    Rollout,
    read_notice_time_s,
)
from spatial_mqtt.errors import FileChunkError, RolloutError, TopicError
from spatial_mqtt.topics import (
    file_chunk_topic,
    file_request_topic,
    parse_file_request_topic,
)

ROLLOUT = Rollout("2", "ab" * 32, 100_000_000, at_s=5.0, percent=10.0)


def test_rollout_survives_encoding_and_decoding() -> None:
    """`read_notice_time_s` reads its time like that of a notice."""
    assert Rollout.decode(ROLLOUT.encode()) == ROLLOUT
    assert read_notice_time_s(ROLLOUT.encode()) == 5.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "AB"}, "sha256 must be 64 of 0-9 a-f"),
        ({"size_bytes": 0}, "size_bytes must be 1 to"),
        ({"percent": 101.0}, "percent must be 0 to 100, got 101"),
        ({"at_s": 0.0}, "at_s must be Unix seconds, got 0"),
        ({"where": "x"}, "unknown field `where`"),
    ],
)
def test_invalid_rollout_is_refused(change: dict[str, object], message: str) -> None:
    """The message names the field and the rule."""
    fields = {**msgspec.to_builtins(ROLLOUT), **change}
    with pytest.raises(RolloutError, match=message):
        Rollout.decode(msgspec.json.encode(fields))


def test_larger_share_includes_the_nodes_of_a_smaller_one() -> None:
    """10 % of 2,000 nodes are about 200, and are included in the 50 %."""
    nodes = [f"kochi-{number}" for number in range(2000)]
    shares = {
        p: {
            n
            for n in nodes
            if msgspec.structs.replace(ROLLOUT, percent=p).includes_node(n)
        }
        for p in (0.0, 10.0, 50.0, 100.0)
    }

    assert 150 < len(shares[10.0]) < 250
    assert shares[0.0] <= shares[10.0] <= shares[50.0] <= shares[100.0]
    assert (len(shares[0.0]), len(shares[100.0])) == (0, 2000)


@given(st.binary(max_size=40))
def test_random_bytes_are_a_chunk_message_or_refused(payload: bytes) -> None:
    """Hostile bytes raise `FileChunkError`, or decode to a valid value."""
    for form in (FileChunkRequest, FileChunk):
        try:
            decoded = form.decode(payload)
        except FileChunkError:
            continue
        assert form.decode(decoded.encode()) == decoded


def test_file_request_topic_names_the_node() -> None:
    """Formatting and parsing are inverse."""
    assert parse_file_request_topic(file_request_topic("kochi-1")) == "kochi-1"
    assert file_chunk_topic("kochi-1") == "/piece/for/kochi-1"
    with pytest.raises(TopicError, match="under /piece/want/"):
        parse_file_request_topic("/piece/for/kochi-1")
