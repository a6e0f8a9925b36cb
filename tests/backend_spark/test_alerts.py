"""Urgent messages from segments of the real log writer to a real Delta table."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import wait_until
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from kafka_cluster import KafkaCluster, run_kafka

from backend_spark import alerts
from backend_spark.alerts import (
    AlertCheckpoint,
    AlertWriter,
    LogFollower,
    read_alert_ids,
    read_offset,
)
from backend_spark.ingest.kafka_log import KafkaWriter
from backend_spark.ingest.log import LogWriter
from backend_spark.ingest.retention import read_planned_offset, read_query_offset
from backend_spark.ingest.segment_log import (
    DAMAGED_ROW,
    LogRow,
    SegmentLog,
    SegmentWriter,
)
from backend_spark.tables import delta_writer
from backend_spark.tables.delta_writer import DataFile, create_tables
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.store import open_table
from service_runtime.crash_guard import make_crash_guard
from spatial_mqtt.cells import ANALYSIS_LEVEL, Cell
from spatial_mqtt.senml import MessageId, Pack, Reading, encode_cbor
from spatial_mqtt.topics import cell_topic

T0 = 1_750_000_200
CELL = Cell.at(33.56, 133.53)
MAX_AHEAD_S = 600


class PowerCutError(Exception):
    """Raised to simulate the death of the process."""


def message(seq: int, pri: int, node: str = "n", at_s: float = T0) -> LogRow:
    """A pack with rain, tilt and a cut wire, received soon after `T0`."""
    readings = (
        Reading("rain", "mm", None, 12.5),
        Reading("tilt/x", "deg", 0.25),
        Reading("wire", None, True),
    )
    codes = [["wire_cut", "w"]] if seq % 2 else []
    pack = Pack(
        MessageId(node, "b", seq), pri, at_s, readings, why="wire cut", reasons=codes
    )
    received_us = (T0 + 2) * 1_000_000
    topic = cell_topic(CELL)
    return LogRow(received_us, topic, encode_cbor(pack), node, "b", seq, pri)


def test_damage_in_the_log_stops_no_alert(
    open_alerts: Callable[[], AlertWriter], tmp_path: Path
) -> None:
    """An urgent message with a damaged payload is an alert with the reason."""
    writer = SegmentWriter(tmp_path / "log", "i.0a")
    paths = [writer.append([message(n, 5), message(n + 1, 5)]) for n in (0, 2, 4)]
    whole = bytearray(paths[0].read_bytes())
    whole[whole.index(message(1, 5).payload) + 1] ^= 1
    paths[0].write_bytes(whole)
    paths[1].write_bytes(paths[1].read_bytes()[:300])
    drain(open_alerts())
    rows = {r["seq"]: r["reason"] for r in open_tables(tmp_path).alerts().to_pylist()}

    assert rows == {0: None, 1: DAMAGED_ROW, 4: None, 5: None}


@pytest.fixture
def open_alerts(tmp_path: Path) -> Callable[[], AlertWriter]:
    """Function that opens the writer as a newly started process does."""
    tables = tmp_path / "tables"
    create_tables(tables, ["alerts"])
    (tmp_path / "log").mkdir()

    def make() -> AlertWriter:
        table, log = tables / "alerts", tmp_path / "log"
        messages = SegmentLog(log)
        offset = read_offset(table, messages)
        follower = LogFollower(log, time.monotonic, offset)
        known = read_alert_ids(DeltaTables(tables))
        progress = AlertCheckpoint(tmp_path / "checkpoints" / "alerts")
        guard = make_crash_guard(tmp_path, "alerts").open()
        return AlertWriter(
            *(table, messages, follower, known, time.monotonic, list, progress),
            *(guard, MAX_AHEAD_S),
        )

    return make


def drain(loop: AlertWriter) -> None:
    """Read to the end of the log, with a new follower per step that lists at once."""
    while True:
        assert isinstance(loop.follower, LogFollower)
        loop.follower = LogFollower(
            loop.follower.folder, time.monotonic, loop.follower.offset
        )
        before = loop.follower.offset
        loop.step()
        if loop.follower.offset == before:
            return


def ids(folder: Path) -> Counter[tuple[str, int]]:
    """Number of rows of each message in the table."""
    rows = open_tables(folder).alerts().to_pylist()
    return Counter((row["node"], row["seq"]) for row in rows)


def test_urgent_messages_become_rows_and_others_do_not(
    open_alerts: Callable[[], AlertWriter], tmp_path: Path
) -> None:
    """A row has cell, time, reason and readings; each id is there once."""
    writer = SegmentWriter(tmp_path / "log", "i.0a")
    writer.append([message(1, 3), message(2, 4), message(3, 5)])
    writer.append([message(3, 5), message(4, 1)])
    drain(open_alerts())
    rows = {r["seq"]: r for r in open_tables(tmp_path).alerts().to_pylist()}

    assert ids(tmp_path) == {("n", 2): 1, ("n", 3): 1}
    assert rows[2]["cell"] == CELL.parent(ANALYSIS_LEVEL).token
    assert rows[2]["at"].timestamp() == T0
    assert rows[2]["why"] == "wire cut"
    assert rows[2]["reason_codes"] is None
    assert rows[3]["reason_codes"] == ['["wire_cut","w"]']
    assert rows[2]["readings"] == ["rain 12.5 mm", "tilt/x 0.25 deg", "wire true"]


def test_time_of_a_clock_that_is_ahead_is_that_of_the_receipt(
    open_alerts: Callable[[], AlertWriter], tmp_path: Path
) -> None:
    """As in the silver table."""
    slightly, far = T0 + MAX_AHEAD_S, T0 + 86400
    rows = [message(1, 5, at_s=slightly), message(2, 5, at_s=far)]
    SegmentWriter(tmp_path / "log", "i.0a").append(rows)
    drain(open_alerts())
    found = {r["seq"]: r for r in open_tables(tmp_path).alerts().to_pylist()}

    assert (found[1]["at"].timestamp(), found[1]["synchronised"]) == (slightly, True)
    assert (found[2]["at"].timestamp(), found[2]["synchronised"]) == (T0 + 2, False)


def test_undecodable_urgent_message_is_an_alert_with_a_reason(
    open_alerts: Callable[[], AlertWriter], tmp_path: Path
) -> None:
    """A foreign payload that a gateway marked as urgent is not hidden."""
    foreign = LogRow(T0 * 1_000_000, "/1/2", b"help", "gw", "b", 1, 5)
    SegmentWriter(tmp_path / "log", "i.0a").append([foreign])
    drain(open_alerts())
    [row] = open_tables(tmp_path).alerts().to_pylist()

    assert (row["node"], row["pri"], row["at"], row["readings"]) == ("gw", 5, None, [])
    assert row["reason"]


def test_death_around_a_commit_loses_and_duplicates_nothing(
    open_alerts: Callable[[], AlertWriter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offset and rows are in the same commit."""
    writer = SegmentWriter(tmp_path / "log", "i.0a")
    commit = delta_writer.commit_files

    def die_after(*args: object, read: DeltaTable) -> None:
        commit(*args, read=read)  # type: ignore[arg-type]
        raise PowerCutError("power cut")

    def die_before(*args: object, read: DeltaTable) -> None:
        raise PowerCutError("power cut")

    for seq, die in enumerate((die_before, die_after, die_before, die_after)):
        writer.append([message(seq, 5)])
        monkeypatch.setattr(alerts, "commit_files", die)
        with pytest.raises(PowerCutError, match="power cut"):
            drain(open_alerts())
    monkeypatch.setattr(alerts, "commit_files", commit)
    drain(open_alerts())

    assert ids(tmp_path) == {("n", seq): 1 for seq in range(4)}


def test_second_writer_of_the_same_segments_is_rejected(
    open_alerts: Callable[[], AlertWriter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slower process fails and writes nothing twice."""
    SegmentWriter(tmp_path / "log", "i.0a").append([message(1, 5)])
    slow, quick = open_alerts(), open_alerts()
    write_part = delta_writer.write_file

    def overtaken(folder: Path, rows: pa.Table, schema: pa.Schema) -> DataFile:
        monkeypatch.setattr(alerts, "write_file", write_part)
        drain(quick)
        return write_part(folder, rows, schema)

    stale = DeltaTable(str(slow.table))
    monkeypatch.setattr(alerts, "write_file", overtaken)
    monkeypatch.setattr(alerts, "open_table", lambda _path: stale)
    with pytest.raises(CommitFailedError, match="oncurrent"):
        slow.step()

    assert ids(tmp_path) == {("n", 1): 1}


def test_offset_is_committed_in_quiet_weather(
    open_alerts: Callable[[], AlertWriter], tmp_path: Path
) -> None:
    """Otherwise ingest counts, and keeps, a thousand segments as unread."""
    writer, now_s = SegmentWriter(tmp_path / "log", "i.0a"), [100.0]
    loop = open_alerts()
    loop.monotonic_s = lambda: now_s[0]
    counts = []
    for after_s in (0.0, 9.0, 2.0, 20.0):
        now_s[0] += after_s
        if after_s < 20.0:
            writer.append([message(int(now_s[0]), 1)])
        drain(loop)
        counts.append(loop.commits)

    assert counts == [0, 0, 1, 1]
    assert open_alerts().follower.offset == {"i.0a": 2}
    assert read_query_offset(tmp_path / "checkpoints/alerts") == {"i.0a": 2}


def test_message_that_comes_again_after_a_restart_is_one_alert(
    open_alerts: Callable[[], AlertWriter], tmp_path: Path
) -> None:
    """By another gateway, whose receipt was late; its id is in the table."""
    writer = SegmentWriter(tmp_path / "log", "i.0a")
    writer.append([message(1, 5)])
    drain(open_alerts())
    writer.append([message(1, 5), message(2, 5)])
    drain(open_alerts())

    assert ids(tmp_path) == {("n", 1): 1, ("n", 2): 1}


def test_segments_without_alerts_are_not_read_again(
    open_alerts: Callable[[], AlertWriter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart continues at the offset in the table."""
    monkeypatch.setattr(alerts, "COMMIT_AFTER_SEGMENTS", 5)
    writer = SegmentWriter(tmp_path / "log", "i.0a")
    for seq in range(7):
        writer.append([message(seq, 1)])
    monkeypatch.setattr(alerts, "MAX_SEGMENTS", 5)
    drain(open_alerts())

    checkpoint = tmp_path / "checkpoints" / "alerts"

    assert open_alerts().follower.offset == {"i.0a": 4}
    assert (checkpoint / "offsets" / "0").read_text().splitlines()[2] == '{"i.0a": 4}'
    assert (checkpoint / "commits" / "0").exists()
    assert ids(tmp_path) == {}


def test_follower_alternates_between_streams_and_finds_new_ones(tmp_path: Path) -> None:
    """The backlog of one ingester must not delay alerts of another."""
    now_s = [0.0]
    follower = LogFollower(tmp_path, lambda: now_s[0])
    first, second = (SegmentWriter(tmp_path, f"i.{run}") for run in ("0a", "0b"))
    for seq in range(3):
        first.append([message(seq, 5)])
    second.append([message(9, 5)])
    names = follower.next_segments(3)
    follower.mark_read(names)
    rest = follower.next_segments(9)
    follower.mark_read(rest)
    second.append([message(10, 5)])
    SegmentWriter(tmp_path, "i.0c").append([message(11, 5)])
    probed = [str(name) for name in follower.next_segments(9)]
    follower.mark_read(follower.next_segments(9))
    too_soon = follower.next_segments(9)
    now_s[0] += 1.0

    assert [(n.stream, n.seq) for n in names] == [("i.0a", 0), ("i.0b", 0), ("i.0a", 1)]
    assert [(n.stream, n.seq) for n in rest] == [("i.0a", 2)]
    assert probed == ["i.0b-0000000001.arrow"]
    assert too_soon == []
    assert [n.stream for n in follower.next_segments(9)] == ["i.0c"]


def test_streams_that_a_step_leaves_out_begin_with_their_first_segment(
    tmp_path: Path,
) -> None:
    """As when more ingesters have a backlog than a step reads segments."""
    follower = LogFollower(tmp_path, lambda: 0.0)
    streams, found = ("i.0a", "i.0b", "i.0c"), []
    for stream in streams:
        writer = SegmentWriter(tmp_path, stream)
        for seq in range(2):
            writer.append([message(seq, 5)])
    for _ in range(6):
        names = follower.next_segments(1)
        follower.mark_read(names)
        found += [(name.stream, name.seq) for name in names]

    assert sorted(found) == [(stream, seq) for stream in streams for seq in range(2)]


def test_follower_waits_for_a_segment_that_a_listing_misses(tmp_path: Path) -> None:
    """On NFS another machine may list a later one first; its alert must not be lost."""
    follower, writer = (
        LogFollower(tmp_path, lambda: 0.0),
        SegmentWriter(tmp_path, "i.0a"),
    )
    paths = [writer.append([message(seq, 5)]) for seq in range(3)]
    hidden = paths[1].rename(tmp_path / "hidden")
    first = follower.next_segments(9)
    follower.mark_read(first)
    meanwhile = follower.next_segments(9)
    hidden.rename(paths[1])

    assert [name.seq for name in first] == [0]
    assert meanwhile == []
    assert [name.seq for name in follower.next_segments(9)] == [1, 2]


def test_new_stream_is_found_while_another_never_pauses(tmp_path: Path) -> None:
    """A storm at one ingester; another one starts and has an urgent message."""
    now_s = [0.0]
    follower = LogFollower(tmp_path, lambda: now_s[0])
    busy = SegmentWriter(tmp_path, "east.0a")
    busy.append([message(0, 5)])
    follower.mark_read(follower.next_segments(9))
    SegmentWriter(tmp_path, "west.0b").append([message(0, 5, "west")])
    found = set()
    for seq in range(1, 9):
        now_s[0] += 0.25
        busy.append([message(seq, 5)])
        names = follower.next_segments(9)
        follower.mark_read(names)
        found |= {(name.stream, name.seq) for name in names}

    assert found == {("west.0b", 0), *(("east.0a", seq) for seq in range(1, 9))}


def test_files_are_read_before_a_topic(
    make_data: Callable[[str], Any], kafka: KafkaCluster
) -> None:
    """After the change to Kafka, with the offset of the files in the table."""
    data = make_data(f'[kafka]\nservers = "{kafka.servers}"\n')
    SegmentWriter(data.folder / "log", "i.0a").append([message(0, 5), message(1, 1)])
    KafkaWriter(data.settings.kafka, "i", wait_s=30.0).write([message(2, 5)])
    command = [sys.executable, "-m", "backend_spark", "alerts", "--config"]
    process = subprocess.Popen([*command, str(data.config)])
    wait_until(lambda: len(ids(data.folder)) == 2, timeout_s=60)
    process.terminate()
    table = open_table(data.folder / "tables" / "alerts")

    assert process.wait() == 0
    assert ids(data.folder) == {("n", 0): 1, ("n", 2): 1}
    assert table.transaction_version("i.0a") == 0
    assert table.transaction_version("yamamori-log.0") == 0
    # By which ingest knows that it may delete the files.
    plan = data.folder / "checkpoints" / "alerts" / "offsets" / "0"
    assert read_planned_offset(plan) == {"i.0a": 0, "yamamori-log.0": 0}


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """A cluster with the topic."""
    with run_kafka() as cluster:
        cluster.create_topic("yamamori-log")
        yield cluster


@pytest.fixture(params=["segments", pytest.param("kafka", marks=pytest.mark.long)])
def data_and_writer(
    request: pytest.FixtureRequest, make_data: Callable[[str], Any]
) -> tuple[Any, LogWriter]:
    """A data folder, and the writer of its log."""
    if request.param == "segments":
        data = make_data("")
        return data, SegmentWriter(data.folder / "log", "i.0a")
    kafka: KafkaCluster = request.getfixturevalue("kafka")
    data = make_data(f'[kafka]\nservers = "{kafka.servers}"\n')
    writer = KafkaWriter(data.settings.kafka, "i", wait_s=30.0)
    writer.write([])  # as ingest does at its start
    return data, writer


def test_process_killed_repeatedly_writes_each_alert_once(
    data_and_writer: tuple[Any, LogWriter],
) -> None:
    """The real command is killed by kill -9 while urgent messages arrive."""
    data, writer = data_and_writer
    command = [sys.executable, "-m", "backend_spark", "alerts", "--config"]
    stop = threading.Event()
    sent: list[int] = []

    def send() -> None:
        while not stop.wait(0.01):
            writer.write([message(len(sent), 4 + len(sent) % 2)])
            sent.append(len(sent))

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(4):
        before = len(ids(data.folder))
        process = subprocess.Popen([*command, str(data.config)])
        wait_until(lambda seen=before: len(ids(data.folder)) > seen, timeout_s=60)
        process.send_signal(signal.SIGKILL)
        process.wait()
    stop.set()
    sender.join()
    process = subprocess.Popen([*command, str(data.config)])
    wait_until(lambda: len(ids(data.folder)) == len(sent), timeout_s=60)
    process.terminate()

    assert process.wait() == 0
    assert ids(data.folder) == {("n", seq): 1 for seq in sent}
