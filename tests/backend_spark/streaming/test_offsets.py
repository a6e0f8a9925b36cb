"""Offsets of the segment log, and how batches select segments."""

import json

from hypothesis import given
from hypothesis import strategies as st

from backend_spark.ingest.segment_log import (
    SegmentName,
    advance_offset,
    end_offset,
    group_segments,
    segments_between,
)

segments = st.builds(
    SegmentName, st.sampled_from(["a.01", "a.02", "b.01"]), st.integers(0, 30)
)
offsets = st.dictionaries(
    st.sampled_from(["a.01", "a.02", "b.01", "z.09"]), st.integers(0, 30)
)


def names(stream: str, *seqs: int) -> list[SegmentName]:
    """Segments of a stream."""
    return [SegmentName(stream, seq) for seq in seqs]


def test_end_offset_has_the_last_segment_of_each_stream() -> None:
    """One number per stream, keys sorted."""
    assert end_offset(names("b.01", 3, 1) + names("a.01", 7)) == {"a.01": 7, "b.01": 3}


def test_segments_alternate_between_streams() -> None:
    """A long backlog of one ingester must not delay another."""
    waiting = segments_between(
        names("a.01", 0, 1, 2) + names("b.01", 5), {"a.01": 0}, {"a.01": 2, "b.01": 5}
    )

    assert [str(n) for n in waiting] == [
        "a.01-0000000001.arrow",
        "b.01-0000000005.arrow",
        "a.01-0000000002.arrow",
    ]


def test_advance_keeps_streams_without_files() -> None:
    """The offset of an old run is unchanged."""
    assert advance_offset({"z.01": 4}, names("a.01", 1)) == {"a.01": 1, "z.01": 4}


@given(offsets, st.lists(segments))
def test_advance_never_goes_backwards_and_sorts_its_keys(
    start: dict[str, int], read: list[SegmentName]
) -> None:
    """Spark accepts a decreased offset silently, and compares the JSON text."""
    end = advance_offset(start, read)

    assert all(end[stream] >= seq for stream, seq in start.items())
    assert json.dumps(end) == json.dumps(end, sort_keys=True)


@given(st.sets(segments), st.integers(1, 5), st.data())
def test_capped_batches_read_every_segment_once(
    stored: set[SegmentName], cap: int, data: st.DataObject
) -> None:
    """Also if segments arrive between the batches."""
    late = data.draw(st.sets(st.sampled_from(sorted(stored)))) if stored else set()
    late = {
        n for n in late if all(o.stream != n.stream or o.seq <= n.seq for o in stored)
    }
    offset: dict[str, int] = {}
    read: list[SegmentName] = []
    for stored_now in [stored - late, *[stored] * (len(stored) + 1)]:
        end = advance_offset(
            offset, segments_between(stored_now, offset, end_offset(stored_now))[:cap]
        )
        read += segments_between(stored_now, offset, end)
        offset = end

    assert sorted(read) == sorted(stored)


def test_segments_are_grouped_by_bytes() -> None:
    """Few bytes are one task, however many files; many are divided evenly."""
    some = names("a.01", *range(200))

    assert [len(g) for g in group_segments(some, 150, 4, 100)] == [200]
    assert [len(g) for g in group_segments(some, 350, 4, 100)] == [67, 67, 66]
    assert [len(g) for g in group_segments(some, 10_000, 4, 100)] == [50] * 4
    assert [len(g) for g in group_segments(names("a.01", 0), 10_000, 4, 100)] == [1]
    assert group_segments([], 0, 4, 100) == []
