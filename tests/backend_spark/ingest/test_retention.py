"""Retention of the log: unscored segments and message ids are never removed."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import free_port, wait_until

from backend_spark.ingest import deduplication
from backend_spark.ingest.deduplication import MessageIdSet, archived_ids_path
from backend_spark.ingest.retention import (
    DAY_S,
    IDS_KEEP_S,
    LogLimits,
    RemovedIngesters,
    SegmentRetention,
    StoredSegment,
    find_surplus,
    last_segments,
    read_committed_offsets,
)
from backend_spark.ingest.segment_log import (
    LogRow,
    SegmentName,
    SegmentWriter,
    list_segments,
    read_segments,
)
from service_runtime.files import acquire_lock
from spatial_mqtt.senml import MessageId

STREAM = "ingest-0.00"
NOW_S = 1.8e9


def checkpoint(folder: Path, number: int, *offsets: str, name: str = "score") -> None:
    """Write the checkpoint files that Spark leaves for a finished batch."""
    for kind, lines in (("offsets", ("v1", "{}", *offsets)), ("commits", ("v1", "{}"))):
        path = folder / name / kind / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")


def fill(folder: Path, count: int, each: int = 1) -> None:
    """Write segments of one node with modification times one second apart."""
    writer = SegmentWriter(folder, STREAM)
    for number in range(count):
        seqs = range(number * each, (number + 1) * each)
        rows = [LogRow(round(NOW_S * 1e6), "/4/1", b"", "n", "b", s, 1) for s in seqs]
        path = writer.append(rows)
        os.utime(path, (NOW_S - count + number,) * 2)


def retention(
    folder: Path, limits: LogLimits, scored: dict[str, int]
) -> SegmentRetention:
    """Retention of a log with the given scored offsets."""
    past = archived_ids_path(folder, "ingest-0")
    return SegmentRetention(folder, "ingest-0", limits, lambda: scored, past)


def test_unreadable_segment_is_moved_aside_and_the_rest_is_trimmed(
    tmp_path: Path,
) -> None:
    """Ingest starts with it, too, and knows the ids of the other segments."""
    fill(tmp_path, 4)
    bad = tmp_path / str(SegmentName(STREAM, 1))
    bad.write_bytes(bad.read_bytes()[:300])
    os.utime(bad, (NOW_S - 3,) * 2)
    known = MessageIdSet.read_log(tmp_path)
    trimmed = retention(tmp_path, LogLimits(2.5, 10**9, 10**9), {STREAM: 3})
    result = trimmed.trim(NOW_S)

    assert known.unreadable == {SegmentName(STREAM, 1)}
    assert list(known.ranges["n", "b"]) == [(0, 0), (2, 3)]
    assert result.removed == 2
    assert [p.name for p in (tmp_path / "damaged").iterdir()] == [bad.name]
    assert list(MessageIdSet.read_log(tmp_path).ranges["n", "b"]) == [(0, 0), (2, 3)]


def test_damaged_id_file_is_moved_aside(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    retention(tmp_path, LogLimits(1.5, 10**9, 10**9), {STREAM: 2}).trim(NOW_S)
    path = archived_ids_path(tmp_path, "ingest-0")
    path.write_bytes(path.read_bytes()[:100])

    assert list(MessageIdSet.read_log(tmp_path).ranges["n", "b"]) == [(2, 2)]
    assert [p.name for p in tmp_path.glob(".damaged*")] == [".damaged-ids-ingest-0"]


@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        (LogLimits(6.5, 10**9, 10**9), 4),
        (LogLimits(1e9, 700, 10**9), 3),
        (LogLimits(1e9, 10**9, 8), 2),
        (LogLimits(1e9, 10**9, 10), 0),
    ],
)
def test_each_limit_removes_the_oldest_segments(
    limits: LogLimits, removed: int
) -> None:
    """Age, bytes and number: the rest is within all three limits."""
    kept = [
        StoredSegment(SegmentName(STREAM, n), 100, NOW_S - 10 + n) for n in range(10)
    ]
    gone, held = find_surplus(kept, limits, NOW_S, {STREAM: 9})

    assert [each.name.seq for each in gone] == list(range(removed))
    assert held == []


def test_unscored_segments_are_kept_at_any_limit(tmp_path: Path) -> None:
    """Only segments up to the scorer's offset are removed; the others are counted."""
    fill(tmp_path, 10)
    done = retention(tmp_path, LogLimits(0, 0, 0), {STREAM: 3, "other.00": 99}).trim(
        NOW_S
    )

    assert [name.seq for name in list_segments(tmp_path)] == [4, 5, 6, 7, 8, 9]
    assert (done.removed, done.held, done.remaining) == (4, 6, 6)
    assert done.remaining_bytes == sum(
        p.stat().st_size for p in tmp_path.glob("*.arrow")
    )


def test_segments_of_another_ingester_are_not_removed(tmp_path: Path) -> None:
    """Each ingester trims its own segments under its own lock."""
    fill(tmp_path, 3)
    other = SegmentRetention(
        tmp_path, "ingest", LogLimits(0, 0, 0), lambda: {STREAM: 9}, None
    )

    assert other.trim(NOW_S).removed == 0


def test_segments_of_removed_ingesters_are_trimmed(tmp_path: Path) -> None:
    """Not those of one in the settings, nor of one that runs, by other settings."""
    for ingester in ("east", "north", "west"):
        writer = SegmentWriter(tmp_path, f"{ingester}.00")
        for seq in range(3):
            writer.append([LogRow(1, "/4/1", b"", ingester, "b", seq, 1)])
    scored = {f"{ingester}.00": 1 for ingester in ("east", "north", "west")}
    own = retention(tmp_path, LogLimits(0, 0, 0), scored)
    removed = RemovedIngesters(own, frozenset({"ingest-0", "north"}))
    lock = acquire_lock(tmp_path / ".lock-west")
    result = removed.trim(NOW_S)
    left = [str(name) for name in list_segments(tmp_path)]
    os.close(lock)
    removed.trim(NOW_S)

    assert (result.removed, result.held, result.remaining) == (2, 1, 1)
    assert left == [
        "east.00-0000000002.arrow",
        *(f"north.00-000000000{seq}.arrow" for seq in range(3)),
        *(f"west.00-000000000{seq}.arrow" for seq in range(3)),
    ]
    assert len(list_segments(tmp_path)) == 5
    assert MessageIdSet.read_log(tmp_path).count() == 9
    assert archived_ids_path(tmp_path, "east").exists()


def test_process_trims_the_log_of_a_removed_ingester(
    make_data: Callable[[str], Any],
) -> None:
    """Such as one that was renamed; its lock is free again afterwards."""
    broker = f"mqtt://127.0.0.1:{free_port()}"
    data = make_data(f'[ingest]\nid = "new"\nbroker = "{broker}"\nkeep_segments = 10\n')
    fill(data.folder / "log", 15)
    checkpoint(data.folder / "checkpoints", 5, f'{{"{STREAM}": 14}}')
    command = [sys.executable, "-m", "backend_spark", "ingest", "--config"]
    process = subprocess.Popen([*command, str(data.config)])
    wait_until(lambda: len(list_segments(data.folder / "log")) == 10)
    process.terminate()
    process.wait()

    os.close(acquire_lock(data.folder / "log/.lock-ingest-0"))
    assert MessageIdSet.read_log(data.folder / "log").count() == 15


def test_ids_are_kept_after_their_segments_are_removed(tmp_path: Path) -> None:
    """A message that is redelivered later is still a duplicate."""
    fill(tmp_path, 5, each=3)
    watcher = MessageIdSet.read_log(tmp_path)
    retention(tmp_path, LogLimits(0, 0, 2), {STREAM: 9}).trim(NOW_S)
    retention(tmp_path, LogLimits(0, 0, 0), {STREAM: 9}).trim(NOW_S)
    fill(tmp_path / "elsewhere", 1)
    watcher.read_new_segments(tmp_path)
    seen = MessageIdSet.read_log(tmp_path)

    assert list_segments(tmp_path) == []
    assert seen.count() == watcher.count() == 15
    assert MessageId("n", "b", 14) in seen


def test_ids_of_old_boots_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory must not grow without bound with restarts of nodes."""
    monkeypatch.setattr(deduplication, "MIN_ARCHIVED_RANGES", 2)
    writer, day_us = SegmentWriter(tmp_path, STREAM), round(DAY_S * 1e6)
    for day, boot in enumerate(("c", "a", "b", "d")):
        at_us = round(NOW_S * 1e6) + day * day_us
        writer.append([LogRow(at_us, "/4/1", b"", "n", boot, 0, 1)])
    trimmed = retention(tmp_path, LogLimits(0, 0, 0), {STREAM: 9})
    trimmed.trim(NOW_S + IDS_KEEP_S + 0.5 * DAY_S)
    first = {boot for _, boot in MessageIdSet.read_log(tmp_path).ranges}
    writer.append([LogRow(round(NOW_S * 1e6), "/4/1", b"", "n", "e", 0, 1)])
    trimmed.trim(NOW_S + IDS_KEEP_S + 60 * DAY_S)

    assert first == {"a", "b", "d"}
    assert {boot for _, boot in MessageIdSet.read_log(tmp_path).ranges} == {"b", "d"}


@pytest.mark.parametrize("years", [20, -20], ids=["ahead", "behind"])
def test_wrong_clock_removes_no_ids(tmp_path: Path, years: int) -> None:
    """After a restart a message that is sent again must still be a duplicate.

    A clock years ahead makes the segments old, and one years behind gives them times of
    receipt that are old when it has been set.
    """
    wrong_s = NOW_S + years * 365 * DAY_S
    received_s, trimmed_s = (NOW_S, wrong_s) if years > 0 else (wrong_s, NOW_S)
    path = SegmentWriter(tmp_path, STREAM).append([
        LogRow(round(received_s * 1e6), "/4/1", b"", "n", "b", 7, 1)
    ])
    os.utime(path, (received_s,) * 2)
    retention(tmp_path, LogLimits(30 * DAY_S, 10**9, 10**9), {STREAM: 0}).trim(
        trimmed_s
    )

    assert list_segments(tmp_path) == []
    assert MessageId("n", "b", 7) in MessageIdSet.read_log(tmp_path)


def test_quarantine_is_limited_by_size_only(tmp_path: Path) -> None:
    """It is never scored; segments beyond the limit are removed, oldest first."""
    fill(tmp_path, 4)
    size_bytes = sum(p.stat().st_size for p in tmp_path.glob("*.arrow"))
    limits = LogLimits(float("inf"), size_bytes - 1, sys.maxsize)
    SegmentRetention(
        tmp_path, "ingest-0", limits, partial(last_segments, tmp_path), None
    ).trim(NOW_S)

    assert [name.seq for name in list_segments(tmp_path)] == [1, 2, 3]


def test_committed_offsets_are_those_of_the_slowest_query(tmp_path: Path) -> None:
    """Only finished batches of queries that read the log count."""
    checkpoint(tmp_path, 9, f'{{"{STREAM}": 90, "b.01": 5}}')
    checkpoint(tmp_path, 10, f'{{"{STREAM}": 100, "b.01": 7}}')
    (tmp_path / "score/offsets/11").write_text(f'v1\n{{}}\n{{"{STREAM}": 200}}')
    assert read_committed_offsets(tmp_path) == {STREAM: 100, "b.01": 7}

    checkpoint(tmp_path, 0, '{"reservoirVersion": 4}', name="other")
    checkpoint(tmp_path, 2, f'{{"{STREAM}": 30}}', name="alerts")
    assert read_committed_offsets(tmp_path) == {STREAM: 30}


@pytest.mark.parametrize("is_discarded", [False, True], ids=["new", "discarded"])
def test_nothing_is_removed_before_scoring_has_committed(
    tmp_path: Path, is_discarded: bool
) -> None:
    """Offsets of alerts alone do not show that a segment is in the tables."""
    log, checkpoints = tmp_path / "log", tmp_path / "checkpoints"
    fill(log, 50)
    checkpoint(checkpoints, 0, f'{{"{STREAM}": 49}}', name="alerts")
    if is_discarded:
        (checkpoints / "score").mkdir()
    trimmed = retention(log, LogLimits(1e9, 10**9, 20), {})
    trimmed.scored = partial(read_committed_offsets, checkpoints)
    before = trimmed.trim(NOW_S, is_full=True)
    checkpoint(checkpoints, 0, f'{{"{STREAM}": 39}}')

    assert (before.removed, before.held) == (0, 50)
    assert trimmed.trim(NOW_S).removed == 30


@pytest.mark.parametrize("text", ["", "v1\n{}\n{}", "v1\n{}\n{broken", "v1\n{}\n{1"])
def test_missing_or_damaged_checkpoint_commits_nothing(
    tmp_path: Path, text: str
) -> None:
    """Without a query or batch, or with a damaged file, all segments are kept."""
    assert read_committed_offsets(tmp_path) == {}
    checkpoint(tmp_path, 0, f'{{"{STREAM}": 30}}', name="alerts")
    checkpoint(tmp_path, 3)
    (tmp_path / "score/offsets/3").write_text(text)
    assert read_committed_offsets(tmp_path) == {}
    (tmp_path / "score/offsets/3").unlink()
    assert read_committed_offsets(tmp_path) == {}


@pytest.mark.parametrize(
    ("rounds", "count"),
    [
        pytest.param(2, 1100, id="short"),
        pytest.param(20, 3000, id="long", marks=pytest.mark.long),
    ],
)
def test_kill_while_trimming_loses_no_id_and_no_unscored_segment(
    make_data: Callable[[str], Any], rounds: int, count: int
) -> None:
    """The real process, killed repeatedly by kill -9 while it trims, 500 at once."""
    broker = f"mqtt://127.0.0.1:{free_port()}"
    data = make_data(f'[ingest]\nbroker = "{broker}"\nkeep_segments = 10\n')
    logged = data.folder / "log"
    fill(logged, count)
    checkpoint(data.folder / "checkpoints", 5, f'{{"{STREAM}": {count - 101}}}')
    rng = random.Random(5)
    command = [sys.executable, "-m", "backend_spark", "ingest", "--config"]
    for _ in range(rounds):
        before = len(list_segments(logged))
        process = subprocess.Popen([*command, str(data.config)])
        wait_until(lambda n=before: len(list_segments(logged)) < n or n == 100)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.wait()
        unscored = {s for _, t in read_segments(logged) for s in t["seq"].to_pylist()}

        assert unscored >= set(range(count - 100, count))
        assert MessageIdSet.read_log(logged).count() == count
    log = data.folder / "ingest.log"
    with log.open("wb") as file:
        process = subprocess.Popen([*command, str(data.config)], stderr=file)
    wait_until(lambda: len(list_segments(logged)) == 100)
    wait_until(lambda: b"refused" in log.read_bytes())  # it handles signals by then
    process.terminate()

    assert process.wait() == 0
    assert MessageIdSet.read_log(logged).count() == count
