"""Rollouts and the pieces of a bundle: what is said, and what is kept of it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatial_mqtt.announcements import Rollout, read_notice_time_s
from spatial_mqtt.errors import FileChunkError, RolloutError, TopicError
from spatial_mqtt.file_transfer import FileChunk, FileChunkRequest
from spatial_mqtt.topics import (
    file_chunk_topic,
    file_request_topic,
    parse_file_request_topic,
)

ROLLOUT = Rollout("2", "ab" * 32, 100_000_000, at_s=5.0, percent=10.0)


def test_rollout_comes_back_from_the_wire() -> None:
    """And gateways see its age as that of a notice."""
    assert Rollout.decode(ROLLOUT.encode()) == ROLLOUT
    assert read_notice_time_s(ROLLOUT.encode()) == 5.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "AB"}, "sha256 must be 64 of 0-9 a-f"),
        ({"size_bytes": 0}, "size_bytes must be 1 to"),
        ({"percent": 101.0}, "percent must be 0 to 100, got 101"),
        ({"at_s": 0.0}, "at_s must be Unix seconds, got 0"),
        ({"where": "x"}, "unknown field `where`"),
    ],
)
def test_rollout_that_leads_nowhere_is_refused(
    change: dict[str, object], words: str
) -> None:
    """The words name the field and the rule."""
    told = {**msgspec.to_builtins(ROLLOUT), **change}
    with pytest.raises(RolloutError, match=words):
        Rollout.decode(msgspec.json.encode(told))


def test_share_of_the_nodes_grows_and_keeps_who_is_in() -> None:
    """Ten percent of 2,000 nodes are about 200, and are among the fifty percent."""
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
def test_bytes_of_chance_are_no_want_and_no_piece(payload: bytes) -> None:
    """A hostile peer gets an error of ours, or a value that keeps the rules."""
    for form in (FileChunkRequest, FileChunk):
        try:
            told = form.decode(payload)
        except FileChunkError:
            continue
        assert form.decode(told.encode()) == told


def test_topic_names_who_asks() -> None:
    """Both ways."""
    assert parse_file_request_topic(file_request_topic("kochi-1")) == "kochi-1"
    assert file_chunk_topic("kochi-1") == "/piece/for/kochi-1"
    with pytest.raises(TopicError, match="under /piece/want/"):
        parse_file_request_topic("/piece/for/kochi-1")
