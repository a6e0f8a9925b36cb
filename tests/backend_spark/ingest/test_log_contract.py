"""The contract of the log, on segment files and on a Kafka topic."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_cluster import KafkaCluster, RealCluster, new_topic, open_kafka

from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.kafka_log import KafkaLog, KafkaWriter
from backend_spark.ingest.kafka_settings import KafkaSection
from backend_spark.ingest.log import LogWriter, MessageLog
from backend_spark.ingest.segment_log import (
    LogOffset,
    LogRow,
    SegmentLog,
    SegmentWriter,
    advance_offset,
)
from backend_spark.tables.schemas import LOG
from spatial_mqtt.senml import MessageId


@dataclass
class LogBench:
    """A log and its writers."""

    log: MessageLog
    folder: Path | None
    section: KafkaSection | None

    def writer(self, ingester: str, run: str = "01") -> LogWriter:
        if self.section is not None:
            return KafkaWriter(self.section, ingester)
        assert self.folder is not None
        return SegmentWriter(self.folder, f"{ingester}.{run}")

    def end(self) -> LogOffset:
        return {stream: last for stream, (_, last) in self.log.bounds().items()}

    def seqs(self, names_from: LogOffset | None = None) -> list[int]:
        names = self.log.between(names_from or {}, self.end())
        return [seq for t in self.log.read(names) for seq in t["seq"].to_pylist()]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster | RealCluster]:
    """A cluster, that of ``KAFKA_SERVERS`` if set; each test has a topic of its own."""
    with open_kafka() as cluster:
        yield cluster


@pytest.fixture(params=["segments", "kafka"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> LogBench:
    """An empty log."""
    if request.param == "segments":
        return LogBench(SegmentLog(tmp_path), tmp_path, None)
    cluster: KafkaCluster | RealCluster = request.getfixturevalue("kafka")
    section = KafkaSection(servers=cluster.servers, topic=new_topic(cluster))
    return LogBench(KafkaLog(section), None, section)


def row(seq: int, payload: bytes = b"x", node: str = "node-1") -> LogRow:
    """A message of a node."""
    return LogRow(1_700_000_000_000_000 + seq, "/4/1", payload, node, "b", seq, 1)


def test_rows_are_read_as_they_were_written(bench: LogBench) -> None:
    """All columns, in the order of writing."""
    rows = [row(0), LogRow(1, "/4/2", b"\xff", reason="odd"), row(2)._replace(age_s=7)]
    writer = bench.writer("a")
    sizes = [writer.write(rows[:2]), writer.write(rows[2:])]
    read = pa.concat_tables(bench.log.read(bench.log.between({}, bench.end())))
    values = [v.cast(pa.int64()) if i == 0 else v for i, v in enumerate(read.columns)]

    assert read.schema == LOG
    assert [LogRow(*r) for r in zip(*(v.to_pylist() for v in values), strict=True)] == (
        rows
    )
    assert min(sizes) > 0


def test_empty_log_has_no_streams(bench: LogBench) -> None:
    """A reader can start before the first message."""
    assert bench.log.bounds() == {}
    assert bench.log.between({}, {}) == []
    assert bench.log.split([], 4) == []
    assert bench.log.count({}) == 0


def test_offsets_read_each_segment_once(bench: LogBench) -> None:
    """In batches of two, while more is written."""
    writer, offset, read = bench.writer("a"), LogOffset(), list[int]()
    for seq in range(7):
        writer.write([row(seq)])
        if seq % 3 == 2:
            names = bench.log.between(offset, bench.end(), 2)
            read += [n for t in bench.log.read(names) for n in t["seq"].to_pylist()]
            offset = advance_offset(offset, names)
    waiting = bench.log.count(offset)

    assert read == [0, 1, 2, 3]
    assert waiting == 3
    assert bench.seqs(offset) == [4, 5, 6]
    assert bench.log.count(bench.end()) == 0


def test_planned_batch_is_read_again_as_it_was(bench: LogBench) -> None:
    """What is written later is not part of it."""
    writer = bench.writer("a")
    for seq in range(3):
        writer.write([row(seq)])
    end = bench.end()
    writer.write([row(3)])
    names = bench.log.between({}, end)

    assert sorted(n for t in bench.log.read(names) for n in t["seq"].to_pylist()) == [
        0,
        1,
        2,
    ]


def test_tasks_have_each_segment_once(bench: LogBench) -> None:
    """Also for a reader that was sent to another process."""
    writer = bench.writer("a")
    for seq in range(50):
        writer.write([row(seq)])
    log = pickle.loads(pickle.dumps(bench.log))  # noqa: S301 - our own
    tasks = log.split(log.between({}, bench.end()), 2)
    read = [n for each in tasks for t in log.read(each) for n in t["seq"].to_pylist()]

    assert len(tasks) <= 2
    assert sorted(read) == list(range(50))


def test_ids_of_the_log_are_known_to_the_next_run(bench: LogBench) -> None:
    """Those that another process appends meanwhile, too; with heartbeats."""
    writer, beats = bench.writer("a"), list[None]()
    writer.write([row(0), LogRow(1, "/4/2", b"", reason="no id")])
    ids = MessageIdSet()
    ids.read_new_rows(bench.log, lambda: beats.append(None))
    first = ids.count()
    bench.writer("b", "02").write([row(1)])
    ids.read_new_rows(bench.log, lambda: beats.append(None))

    assert len(beats) == 2  # one for each segment
    assert (first, ids.count()) == (1, 2)
    assert MessageId("node-1", "b", 1) in ids
