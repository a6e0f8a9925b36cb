"""The segment log on a real disk."""

import errno
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from backend_spark.errors import SegmentError
from backend_spark.ingest import segment_log
from backend_spark.ingest.deduplication import (
    ArchivedIds,
    MessageIdSet,
    archived_ids_path,
)
from backend_spark.ingest.segment_log import (
    DAMAGED_ROW,
    LogOffset,
    LogRow,
    SegmentLog,
    SegmentName,
    SegmentWriter,
    decode_segment,
    encode_segment,
    list_segments,
    read_intact_segment,
    read_segment_ids,
    read_segments,
    remove_unfinished,
)
from backend_spark.tables.schemas import LOG
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock
from spatial_mqtt.senml import MessageId


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def row(seq: int, node: str = "node-1") -> LogRow:
    """A message of a node."""
    return LogRow(1_700_000_000_000_000 + seq, "/4/1", b"x", node, "b", seq, 1)


def seqs(log: SegmentLog, start: LogOffset, end: LogOffset) -> list[int]:
    """Numbers of the segments between two offsets."""
    return [name.seq for name in log.between(start, end)]


def open_log(folder: Path) -> tuple[SegmentWriter, SegmentLog, list[float]]:
    """A stream, the log in its folder, and the clock of that."""
    now_s = [0.0]
    return SegmentWriter(folder, "a.01"), SegmentLog(folder, lambda: now_s[0]), now_s


def test_reader_waits_for_a_segment_that_a_listing_misses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On NFS another machine may list a later one first; deleted ones are skipped."""
    writer, log, now_s = open_log(tmp_path)
    paths = [writer.append([row(seq)]) for seq in range(4)]
    now_s[0] = paths[3].stat().st_mtime + 60.0
    end = {"a.01": 3}
    hidden = paths[1].rename(tmp_path / "hidden")
    young, first = seqs(log, {"a.01": 0}, end), seqs(log, {}, end)
    assert not caplog.messages
    now_s[0] += 61.0
    old = seqs(log, {"a.01": 0}, end)
    hidden.rename(paths[1])

    assert (young, first) == ([], [0])
    assert old == [2, 3]
    assert "a.01: segments 1 to 1 are gone" in caplog.messages
    assert seqs(log, {}, end) == [0, 1, 2, 3]


def test_segment_that_a_listing_misses_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last ones of a planned batch, and streams that the listing lacks."""
    first, second = (SegmentWriter(tmp_path, f"{name}.01") for name in "ab")
    for seq in range(4):
        first.append([row(seq)])
    second.append([row(9)])
    stale = [SegmentName("a.01", seq) for seq in (0, 2)]
    monkeypatch.setattr(segment_log, "list_segments", lambda _folder: stale)
    log = SegmentLog(tmp_path)

    assert seqs(log, {"a.01": 0}, {"a.01": 3, "b.01": 0}) == [1, 0, 2, 3]


def test_new_reader_begins_after_trimmed_segments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is reported; a listing that misses the first ones is waited for."""
    writer, log, now_s = open_log(tmp_path)
    paths = [writer.append([row(seq)]) for seq in range(3)]
    for path in paths[:2]:
        path.unlink()
    now_s[0] = paths[2].stat().st_mtime
    young = seqs(log, {}, {"a.01": 2})
    now_s[0] += 121.0

    assert young == []
    assert seqs(log, {}, {"a.01": 2}) == [2]
    assert not caplog.messages


def test_segments_return_the_written_rows(tmp_path: Path) -> None:
    """Names sort in the order of writing, and all rows have the schema `LOG`."""
    writer = SegmentWriter(tmp_path / "log", "in.0-0.00ab")
    paths = [writer.append([row(0), row(1)]), writer.append([row(2)])]
    read = list(read_segments(tmp_path / "log"))

    assert [path for path, _ in read] == paths
    assert [table["seq"].to_pylist() for _, table in read] == [[0, 1], [2]]
    assert read[0][1].schema == LOG
    assert SegmentName.parse(paths[1].name) == SegmentName("in.0-0.00ab", 1)


def test_segment_of_an_earlier_version_gets_the_new_column(tmp_path: Path) -> None:
    """Its rows have null in the column that was added later."""
    folder = tmp_path / "log"
    path = SegmentWriter(folder, "a.01").append([row(0)])
    ((_, today),) = read_segments(folder)
    older = today.drop_columns(["age_s"])  # and without checksums
    with pa.ipc.new_file(str(path), older.schema) as writer:
        writer.write_table(older)

    assert [table for _, table in read_segments(folder)] == [today]
    ((_, ids),) = read_segments(folder, ("seq", "age_s"))
    assert ids.to_pylist() == [{"seq": 0, "age_s": None}]
    assert read_intact_segment(path) == today


def test_checksums_of_rows_are_those_of_earlier_versions() -> None:
    """They are of the text of a tuple, whatever the columns contain."""
    rows = [
        row(1),
        LogRow(1, "/4/'1\"", b"", "n'1", "b\\", 2**62, 5, None, 3),
        LogRow(2, "/山", b"", reason="no id, got '\x00\n\u2028'"),
    ]
    texts = [f"{each.received_us} {each.topic} {each[3:]}" for each in rows]
    table = decode_segment(encode_segment(rows), "here")

    assert table["row_crc32"].to_pylist() == [zlib.crc32(t.encode()) for t in texts]


def test_unfinished_segment_is_invisible_until_removed(tmp_path: Path) -> None:
    """Each ingester removes its own unfinished files after a crash."""
    (tmp_path / ".unfinished-a.01-0000000000.arrow").write_bytes(b"half")
    (tmp_path / ".unfinished-b.01-0000000000.arrow").write_bytes(b"half")

    assert list_segments(tmp_path) == []
    assert remove_unfinished(tmp_path, "a") == 1
    assert [p.name[:13] for p in tmp_path.iterdir()] == [".unfinished-b"]


def test_existing_segment_is_never_replaced(tmp_path: Path) -> None:
    """Two writers of one stream, by mistake, lose no message."""
    first = SegmentWriter(tmp_path, "a.01").append([row(0)])
    before = first.read_bytes()
    with pytest.raises(FileExistsError, match="File exists"):
        SegmentWriter(tmp_path, "a.01").append([row(1)])

    assert first.read_bytes() == before


def test_damaged_segment_is_reported_by_name(tmp_path: Path) -> None:
    """The error names the file and the remedy, and when not to apply it."""
    path = SegmentWriter(tmp_path, "a.01").append([row(0)])
    path.write_bytes(path.read_bytes()[:40])
    remedy = r"a\.01-0000000000\.arrow.*named in the table rejected.*restore"
    with pytest.raises(SegmentError, match=remedy):
        list(read_segments(tmp_path))

    # The runbook searches for this begin.
    (reason,) = read_intact_segment(path)["reason"].to_pylist()
    assert reason.startswith(f"segment {path} cannot be read")


def test_bad_sector_costs_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's error is reported as damage: readers go on behind the segment."""
    path = SegmentWriter(tmp_path, "a.01").append([row(0)])

    def fail(path: Path) -> pa.OSFile:
        raise OSError(errno.EIO, f"cannot read {path}")

    monkeypatch.setattr(segment_log, "open_arrow_file", fail)

    assert "cannot be read" in read_intact_segment(path)["reason"].to_pylist()[0]
    with pytest.raises(SegmentError, match="cannot read"):
        read_segment_ids(path)


def test_shortage_of_descriptors_is_no_damage(tmp_path: Path) -> None:
    """The reader ends or tries again; no intact segment or id file is given up."""
    path = SegmentWriter(tmp_path, "a.01").append([row(0)])
    ids = ArchivedIds(archived_ids_path(tmp_path, "a"))
    ids.add_segment(read_segment_ids(path))
    ids.save(0)
    for read in (read_intact_segment, read_segment_ids):
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            read(path)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        ArchivedIds.load(ids.path)

    assert read_intact_segment(path)["seq"].to_pylist() == [0]
    assert ("node-1", "b") in ArchivedIds.load(ids.path).last_us


def test_flipped_bits_cost_the_damaged_rows_only(tmp_path: Path) -> None:
    """Bits all over a segment: every row is intact or reported, and no id is false."""
    writer = SegmentWriter(tmp_path, "a.01")
    path = writer.append([row(n, f"node-{n}") for n in range(3)])
    written = read_intact_segment(path).to_pylist()
    ids = read_segment_ids(path).to_pylist()
    whole = bytearray(path.read_bytes())
    lost = reported = 0
    for bit in range(0, 8 * len(whole), 41):
        damaged = whole.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        rows = read_intact_segment(path).to_pylist()

        if len(rows) == 1:
            lost += 1
            assert "cannot be read" in rows[0]["reason"]
            continue
        assert len(rows) == len(written)
        bad = [r for r, w in zip(rows, written, strict=True) if r != w]
        assert {(r["reason"], r["payload"]) for r in bad} <= {(DAMAGED_ROW, b"")}
        reported += len(bad)
        assert all(each in ids for each in read_segment_ids(path).to_pylist())
    assert lost
    assert reported


def test_message_ids_are_rebuilt_from_the_log(tmp_path: Path) -> None:
    """After a restart the known ids are read from the log."""
    writer = SegmentWriter(tmp_path, "a.01")
    writer.append([row(1), row(2), row(3)])
    writer.append([row(9), row(1, "node-2")])
    seen = MessageIdSet.read_log(tmp_path)

    assert seen.count() == 5
    assert list(seen.ranges["node-1", "b"]) == [(1, 3), (9, 9)]
    assert MessageId("node-2", "b", 1) in seen
    assert MessageId("node-2", "c", 1) not in seen
    assert MessageId("node-1", "b", 4) not in seen


def test_lock_rejects_a_second_holder(tmp_path: Path) -> None:
    """One process per name and folder; the error names the lock."""
    acquire_lock(tmp_path / "log" / ".lock-a")
    acquire_lock(tmp_path / "log" / ".lock-b")
    with pytest.raises(AlreadyRunningError, match=r"\.lock-a"):
        acquire_lock(tmp_path / "log" / ".lock-a")
