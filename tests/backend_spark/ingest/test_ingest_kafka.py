"""The ingest process with its log in Kafka, on a real Mosquitto, killed and restarted.

The brokers of Kafka are librdkafka's mock brokers in a process of their own.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from conftest import Broker, free_port, wait_until
from ingesting import TOPIC, IngestBench, Sender, scrape, value
from kafka_cluster import PRODUCE, KafkaCluster, run_kafka

from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.ingester import AppendRetry, KafkaTopic
from backend_spark.ingest.kafka_log import KafkaLog, KafkaWriter
from backend_spark.ingest.kafka_settings import KafkaSection
from backend_spark.ingest.log import end_of
from backend_spark.ingest.segment_log import (
    LogRow,
    SegmentWriter,
    list_segments,
    read_segments,
)
from service_runtime.watchdog import no_heartbeat
from spatial_mqtt.senml import MessageId
from spatial_mqtt.transport import Publication

pytestmark = pytest.mark.broker

LOG_TOPIC = "yamamori-log"


class KafkaIngestBench(IngestBench):
    """Ingester processes that write to Kafka."""

    kafka_log: KafkaLog

    def logged(self) -> Counter[int]:
        tables = self.kafka_log.read(self.kafka_log.between({}, end_of(self.kafka_log)))
        return Counter(seq for table in tables for seq in table["seq"].to_pylist())


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """A cluster with the topic."""
    with run_kafka() as cluster:
        cluster.create_topic(LOG_TOPIC)
        yield cluster


@pytest.fixture
def port() -> int:
    """Port of the metrics."""
    return free_port()


@pytest.fixture
def ingester(
    broker: Broker, kafka: KafkaCluster, port: int, make_data: Callable[[str], Any]
) -> Iterator[KafkaIngestBench]:
    """An ingester that reads from the broker and writes to Kafka."""
    data = make_data(
        f'[ingest]\nbroker = "{broker.url}"\n[kafka]\nservers = "{kafka.servers}"\n'
        f'max_record_bytes = 20000\n[metrics]\nlisten = "127.0.0.1:{port}"\n'
    )
    ingester = KafkaIngestBench(data.config, data.folder)
    ingester.kafka_log = KafkaLog(KafkaSection(servers=kafka.servers, topic=LOG_TOPIC))
    yield ingester
    ingester.end_all()


def test_message_is_in_kafka_when_its_receipt_arrives(
    ingester: KafkaIngestBench, sender: Sender
) -> None:
    """A duplicate gets a receipt but is not logged; no segment file is written."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))
    logged = ingester.logged()
    sender.receipts.clear()
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))

    process.terminate()
    _, stderr = process.communicate(timeout=60)

    assert logged == {1: 1}
    assert ingester.logged() == {1: 1}
    assert "kafka.topic must have 2 replicas or more, got 1" in stderr
    assert list_segments(ingester.log) == []


def test_ids_are_known_after_a_change_from_files(
    ingester: KafkaIngestBench, sender: Sender
) -> None:
    """Also when the files, which have been scored, have become too old."""
    writer = SegmentWriter(ingester.log, "ingest-0.01")
    for seq in (1, 2):
        path = writer.append([LogRow(1, TOPIC, b"", "node-1", "b", seq, 5)])
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))
    process.terminate()
    process.communicate(timeout=60)
    sender.offers.clear()
    os.utime(path, (0, 0))
    checkpoint = ingester.log.parent / "checkpoints/score"
    for kind, text in (("offsets", 'v1\n{}\n{"ingest-0.01": 1}'), ("commits", "v1")):
        (checkpoint / kind).mkdir(parents=True)
        (checkpoint / kind / "0").write_text(text)
    process = ingester.start()
    wait_until(lambda: len(list_segments(ingester.log)) == 1)
    process.terminate()
    process.communicate(timeout=60)
    ingester.start()
    for seq in (1, 2, 3):
        sender.send(seq, priority=5)
    wait_until(lambda: sender.has_receipt(2) and sender.has_receipt(3))

    assert ingester.logged() == {3: 1}


class LaggingKafka(KafkaWriter):
    """A writer to a cluster that shows a record only when the next is confirmed.

    Where a replica was slow, readers do not see yet what an earlier run sent.
    """

    def write(self, rows: Sequence[LogRow]) -> int:
        """Make the earlier record visible, then append rows."""
        earlier = LogRow(1, TOPIC, b"", "node-1", "b", 7, 1)
        KafkaWriter(self.section, self.ingester, wait_s=60.0).write([earlier])
        return super().write(rows)


def test_start_knows_the_ids_of_records_that_were_on_their_way(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Those of a run that was killed before the replicas had them."""
    section = KafkaSection(servers=kafka.servers, topic=LOG_TOPIC)
    writer, log = LaggingKafka(section, "ingest-0", wait_s=60.0), KafkaLog(section)
    retry = AppendRetry(lambda _: False)
    topic = KafkaTopic(tmp_path, log, log.replicas, writer, retry)
    ids = MessageIdSet()
    is_ready = topic.prepare("ingest-0", no_heartbeat)
    topic.read_ids(ids, no_heartbeat)

    assert is_ready
    assert MessageId("node-1", "b", 7) in ids


def test_start_waits_until_records_are_confirmed(
    ingester: KafkaIngestBench, sender: Sender, kafka: KafkaCluster
) -> None:
    """It acknowledges nothing before, as it could not know all ids; a stop ends it."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    process.terminate()
    process.wait(60)
    sender.offers.clear()
    kafka.fail(PRODUCE, KafkaError.NOT_ENOUGH_REPLICAS, 10_000)
    sender.send(1, priority=5)
    process = ingester.start()
    assert process.stderr is not None
    while "got no answer for 1" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)
    offers = list(sender.offers)
    kafka.forgive(PRODUCE)
    ingester.start()
    wait_until(lambda: sender.has_receipt(1))

    assert process.returncode == 0
    assert offers == []
    assert ingester.logged() == {1: 1}


def test_nothing_is_acknowledged_while_kafka_is_away(
    ingester: KafkaIngestBench, sender: Sender, kafka: KafkaCluster, port: int
) -> None:
    """Neither by a receipt nor at a stop; the next run has each message once.

    The last one arrives while the flush of the one before it waits.
    """
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.send(1, priority=5)
    wait_until(lambda: sender.has_receipt(1))
    up = value(port, "ingest_log_unavailable"), value(port, "log_segments")
    kafka.set_up(is_up=False)
    sender.send(2, priority=5)
    wait_until(lambda: value(port, "ingest_log_unavailable") == 1)
    has_log_metrics = "yamamori_log_" in scrape(port)
    sender.send(3, priority=5)
    wait_until(lambda: value(port, "ingest_waiting_bytes") > 0)
    process.terminate()
    _, stderr = process.communicate(timeout=60)
    kafka.set_up(is_up=True)
    before = sender.has_receipt(2) or sender.has_receipt(3), ingester.logged()
    ingester.start()
    wait_until(lambda: sender.has_receipt(2) and sender.has_receipt(3))

    assert process.returncode == 0, stderr
    assert "got no answer for 1" in stderr
    assert "nothing is acknowledged until there is an answer" in stderr
    assert (up, has_log_metrics) == ((0, 2), False)  # one of the start
    assert before == (False, {1: 1})
    assert ingester.logged() == {1: 1, 2: 1, 3: 1}


def test_kill_during_a_stream_keeps_each_message_once(
    ingester: KafkaIngestBench, sender: Sender, kafka: KafkaCluster
) -> None:
    """Two kill -9 and passing errors while messages arrive, and answers take a while.

    As nodes do, the sender repeats what has no receipt; as systemd does, the process is
    started again if the cluster was too slow for it.
    """
    count = 400
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    kafka.delay(20)  # time enough for a second request
    for seq in range(count):
        sender.send(seq, priority=1 + seq % 5)
        if seq % 50 == 0:
            kafka.fail(PRODUCE, 7)
        if seq in {130, 270}:
            wait_until(lambda: bool(ingester.logged()))
            process.kill()
            process.wait()
            process = ingester.start()
    wait_until_logged(count, ingester, sender)
    assert ingester.logged() == dict.fromkeys(range(count), 1)
    for seq in range(0, count, 7):
        sender.send(seq)
    sender.receipts.clear()
    sender.send(count)
    wait_until(lambda: sender.has_receipt(count))

    assert ingester.logged() == dict.fromkeys(range(count + 1), 1)


def wait_until_logged(count: int, ingester: KafkaIngestBench, sender: Sender) -> None:
    """Wait until each message is in the log; repeat those without a receipt."""
    for _ in range(6):
        with suppress(AssertionError):
            wait_until(lambda: len(ingester.logged()) == count, timeout_s=30)
            return
        process = ingester.processes[-1]
        if process.poll() is not None:
            assert "brokers that answer within" in process.communicate()[1]
            ingester.start()
        receipted = {seq for seq in range(count) if sender.has_receipt(seq)}
        assert ingester.logged().keys() >= receipted
        for seq in set(range(count)) - receipted:
            sender.send(seq)


def test_message_too_large_for_a_record_goes_to_quarantine(
    ingester: KafkaIngestBench, sender: Sender
) -> None:
    """It does not stop the ones behind it."""
    ingester.start()
    wait_until(lambda: bool(sender.offers))
    sender.connection.publish(Publication(TOPIC, b"x" * 30_000))
    message = Publication(TOPIC, b"y" * 30_000, message_id="node-1:b:7")
    sender.connection.publish(message)
    sender.send(2)
    wait_until(lambda: sender.has_receipt(2))
    rows = [row for _, t in read_segments(ingester.quarantine) for row in t.to_pylist()]

    assert ingester.logged() == {2: 1}
    assert "payload must be at most 10000 bytes" in rows[1]["reason"]
    assert len(rows[1]["payload"]) == 30_000


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "let this account write and read the topic",
        ),
        (KafkaError.DUPLICATE_SEQUENCE_NUMBER, "was confirmed without an offset"),
    ],
)
def test_refused_records_end_the_process_without_loss(
    ingester: KafkaIngestBench,
    sender: Sender,
    kafka: KafkaCluster,
    error: int,
    words: str,
) -> None:
    """The error says what to do; the broker repeats the message to the next run."""
    process = ingester.start()
    wait_until(lambda: bool(sender.offers))
    kafka.fail(PRODUCE, error)
    sender.send(3, priority=5)
    _, stderr = process.communicate(timeout=60)
    ingester.start()
    wait_until(lambda: sender.has_receipt(3))

    assert process.returncode == 70
    assert words in stderr
    assert ingester.logged() == {3: 1}
