"""What a log in Kafka does besides the contract: faults, retention, sizes, options."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from kafka_cluster import PRODUCE, KafkaCluster, run_kafka

from backend_spark.errors import LogUnavailableError
from backend_spark.ingest.deduplication import MessageIdSet
from backend_spark.ingest.kafka_log import KafkaLog, KafkaWriter, split_rows
from backend_spark.ingest.kafka_settings import KafkaSection, client_options
from backend_spark.ingest.log import check_files_are_read
from backend_spark.ingest.segment_log import LogRow, SegmentWriter, encode_segment
from backend_spark.tables.schemas import LOG
from service_runtime.errors import FieldError
from service_runtime.settings import SettingsError, build_settings

TOPIC = "log"
STREAM = "log.0"


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """A cluster with the topic."""
    with run_kafka() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


def section(kafka: KafkaCluster, **changes: object) -> KafkaSection:
    """Settings of the cluster."""
    values = {"servers": kafka.servers, "topic": TOPIC, "timeout_s": 5.0}
    return build_settings(KafkaSection, {**values, **changes})


def row(seq: int, payload: bytes = b"x") -> LogRow:
    """A message."""
    return LogRow(1_700_000_000_000_000 + seq, "/4/1", payload, "n", "b", seq, 1)


def seqs(log: KafkaLog) -> list[int]:
    """Sequence numbers of all messages."""
    end = {stream: last for stream, (_, last) in log.bounds().items()}
    tables = log.read(log.between({}, end))
    return [seq for table in tables for seq in table["seq"].to_pylist()]


def test_rows_are_written_once_when_the_brokers_come_back(kafka: KafkaCluster) -> None:
    """Until then nothing is confirmed; calling again does not append again."""
    writer, log = KafkaWriter(section(kafka), "a", wait_s=0.5), KafkaLog(section(kafka))
    writer.wait_s = 10.0
    writer.write([row(0)])
    kafka.set_up(is_up=False)
    writer.wait_s = 0.5
    rows = [row(1)]
    for _ in range(2):
        with pytest.raises(LogUnavailableError, match="got no answer for 1; they are"):
            writer.write(rows)
    kafka.set_up(is_up=True)
    writer.wait_s = 30.0
    writer.write(rows)

    assert seqs(log) == [0, 1]


def test_passing_error_is_repeated_by_the_producer(kafka: KafkaCluster) -> None:
    """Errors that repeating the request mends never reach the caller."""
    writer = KafkaWriter(section(kafka), "a", wait_s=30.0)
    kafka.fail(PRODUCE, KafkaError.REQUEST_TIMED_OUT)
    kafka.fail(PRODUCE, KafkaError.NOT_ENOUGH_REPLICAS, 2)
    writer.write([row(0)])
    writer.write([row(1)])

    assert seqs(KafkaLog(section(kafka))) == [0, 1]


@pytest.mark.parametrize(
    "error", [KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_LEADER_FOR_PARTITION]
)
def test_refused_record_is_in_the_log_before_the_next_one(
    kafka: KafkaCluster, error: int
) -> None:
    """With two on their way, the success of the second would confirm the first.

    librdkafka relies on brokers that refuse a record out of sequence. Those of Kafka
    accept one of a producer that they do not know yet; mock brokers accept any.
    """
    small = section(kafka, max_record_bytes=10_000)
    rows = [row(seq, b"y" * 3_000) for seq in range(6)]
    writer = KafkaWriter(small, "a", wait_s=30.0)
    writer.write(rows[:1])
    kafka.delay(100)
    kafka.fail(PRODUCE, error)
    writer.write(rows[1:])

    assert seqs(KafkaLog(small)) == list(range(6))


def test_slow_brokers_get_the_rest_of_a_batch_later(kafka: KafkaCluster) -> None:
    """A call returns after the time to wait, and the next one goes on."""
    small = section(kafka, max_record_bytes=10_000)
    rows = [row(seq, b"y" * 3_000) for seq in range(6)]
    writer = KafkaWriter(small, "a", wait_s=30.0)
    writer.write([row(6)])
    kafka.delay(300)
    writer.wait_s = 0.5
    missing = list[int]()
    while True:
        try:
            writer.write(rows)
            break
        except LogUnavailableError as error:
            missing.append(error.waiting)
    kafka.delay(0)

    assert len(missing) > 1
    assert missing == sorted(set(missing), reverse=True)
    assert seqs(KafkaLog(small)) == [6, *range(6)]


def test_confirmation_without_an_offset_is_none(kafka: KafkaCluster) -> None:
    """The library makes a success of this answer; here nothing was appended."""
    writer = KafkaWriter(section(kafka), "a", wait_s=30.0)
    kafka.fail(PRODUCE, KafkaError.DUPLICATE_SEQUENCE_NUMBER)

    with pytest.raises(FieldError, match=r"without an offset.*next start reads"):
        writer.write([row(0)])
    assert KafkaLog(section(kafka)).bounds() == {}


def test_record_without_rows_is_a_segment_without_rows(kafka: KafkaCluster) -> None:
    """Readers pass it."""
    writer, log = (
        KafkaWriter(section(kafka), "a", wait_s=30.0),
        KafkaLog(section(kafka)),
    )
    size_bytes = writer.write([])
    (table,) = log.read(log.between({}, {STREAM: 0}))

    assert log.bounds() == {STREAM: (0, 0)}
    assert (table.num_rows, table.schema) == (0, LOG)
    assert size_bytes > 0


def test_refusal_is_an_error_with_its_remedy(kafka: KafkaCluster) -> None:
    """The rows count as unwritten."""
    writer = KafkaWriter(section(kafka), "a", wait_s=30.0)
    kafka.fail(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    with pytest.raises(FieldError, match=r"authorization failed.*let this account"):
        writer.write([row(0)])


def test_missing_topic_is_an_error(kafka: KafkaCluster) -> None:
    """It is never created by the way, with one replica."""
    log = KafkaLog(section(kafka, topic="other"))
    writer = KafkaWriter(section(kafka, topic="other"), "a", wait_s=2.0)
    with pytest.raises(LogUnavailableError, match="got no answer for 1"):
        writer.write([row(0)])

    with pytest.raises(FieldError, match=r"Unknown topic.*create the topic"):
        log.bounds()


def log_without_its_begin(kafka: KafkaCluster) -> KafkaLog:
    """A log of six records, of which Kafka has deleted four."""
    writer = KafkaWriter(section(kafka), "a")
    for seq in range(6):
        writer.write([row(seq)])
    kafka.delete_before(TOPIC, 0, 4)
    return KafkaLog(section(kafka))


def test_records_deleted_before_they_were_read_are_reported(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading continues with the oldest that is left."""
    log = log_without_its_begin(kafka)
    with caplog.at_level(logging.ERROR):
        names = log.between({STREAM: 1}, {STREAM: 5})
        log.between({STREAM: 1}, {STREAM: 5})

    assert [name.seq for name in names] == [4, 5]
    assert caplog.text.count("2 records were deleted before they were read") == 1
    assert log.bounds() == {STREAM: (4, 5)}
    assert (log.count({}), log.count({STREAM: 4})) == (2, 1)


def test_records_deleted_before_the_first_reading_are_reported(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by ingest, whose earlier runs have read their ids."""
    log = log_without_its_begin(kafka)
    ids = MessageIdSet()
    with caplog.at_level(logging.ERROR):
        ids.read_new_rows(KafkaLog(section(kafka)))
        by_ingest = list(caplog.messages)
        names = log.between({}, {STREAM: 5})
        log.between({}, {STREAM: 5})

    assert (by_ingest, ids.count()) == ([], 2)
    assert [name.seq for name in names] == [4, 5]
    assert caplog.text.count("4 records were deleted before the first reading") == 1


class ForgetfulConsumer(Consumer):
    """A consumer that withholds some records.

    Attributes:
        forgotten: Their offsets.
        is_cured: Whether the next one withholds nothing.
        made: Consumers made so far.
    """

    forgotten: ClassVar[set[int]] = set()
    is_cured: ClassVar[bool] = True
    made: ClassVar[int] = 0

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        type(self).made += 1
        self.is_forgetful = self.made == 1 or not self.is_cured

    def consume(self, *args: object, **options: object) -> list[Message]:
        """Records without those that are forgotten."""
        records = super().consume(*args, **options)
        return [each for each in records if not self.withholds(each)]

    def withholds(self, record: Message) -> bool:
        """Whether a record is forgotten; the end of a partition never is."""
        is_record = record.error() is None
        return is_record and self.is_forgetful and record.offset() in self.forgotten


@pytest.mark.parametrize("forgotten", [{0}, {2, 3}, {5}, set(range(6))])
@pytest.mark.parametrize("is_cured", [True, False])
def test_gap_is_read_again_and_then_reported(
    kafka: KafkaCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    forgotten: set[int],
    is_cured: bool,
) -> None:
    """At the beginning, within, at the end; with a new connection it is closed."""
    writer, log = KafkaWriter(section(kafka), "a"), KafkaLog(section(kafka))
    for seq in range(6):
        writer.write([row(seq)])
    for name, state in (("forgotten", forgotten), ("is_cured", is_cured), ("made", 0)):
        monkeypatch.setattr(ForgetfulConsumer, name, state)
    monkeypatch.setattr("backend_spark.ingest.kafka_log.Consumer", ForgetfulConsumer)
    with caplog.at_level(logging.ERROR):
        read = seqs(log)
    report = f"log.0: {len(forgotten)} records from {min(forgotten)} on are missing"

    assert read == [seq for seq in range(6) if is_cured or seq not in forgotten]
    assert ForgetfulConsumer.made == 2
    assert caplog.text.count(report) == (0 if is_cured else 1)


def test_record_that_is_no_segment_costs_itself_only(kafka: KafkaCluster) -> None:
    """It is a row with a reason, in its place."""
    writer, log = KafkaWriter(section(kafka), "a"), KafkaLog(section(kafka))
    writer.write([row(0)])
    stranger = Producer({"bootstrap.servers": kafka.servers})
    stranger.produce(TOPIC, b"hello", partition=0)
    stranger.flush(30)
    writer.write([row(1)])
    tables = log.read(log.between({}, {STREAM: 2}))
    rows = [each for table in tables for each in table.to_pylist()]

    assert [each["seq"] for each in rows] == [0, None, 1]
    assert "segment log.0-0000000001.arrow cannot be read" in rows[1]["reason"]
    assert "check the disks of the brokers" in rows[1]["reason"]


def test_files_that_were_not_read_are_not_left_behind(tmp_path: Path) -> None:
    """Kafka is refused until they are; without files any start is fine."""
    kafka = KafkaSection(servers="localhost:9092")
    check_files_are_read(tmp_path, kafka, lambda _: {})
    writer = SegmentWriter(tmp_path, "ingest-0.01")
    for seq in range(3):
        writer.append([row(seq)])
    check_files_are_read(tmp_path, kafka, lambda _: {"ingest-0.01": 2})
    check_files_are_read(tmp_path, KafkaSection(), lambda _: {})

    with pytest.raises(SettingsError, match=r"2 unread segments'; remove \[kafka\]"):
        check_files_are_read(tmp_path, kafka, lambda _: {"ingest-0.01": 0})


def test_new_topic_of_the_same_name_is_refused(kafka: KafkaCluster) -> None:
    """Its first messages would be skipped."""
    log = KafkaLog(section(kafka))
    KafkaWriter(section(kafka), "a").write([row(0)])

    with pytest.raises(FieldError, match=r"the one that was read, which has record 9"):
        log.between({STREAM: 9}, {STREAM: 9})


def test_ingesters_keep_to_one_partition_each(kafka: KafkaCluster) -> None:
    """The order of their messages holds; a task reads several partitions."""
    kafka.create_topic("wide", 4)
    wide = section(kafka, topic="wide")
    for ingester in "abcdefgh":
        writer = KafkaWriter(wide, ingester)
        for seq in range(3):
            writer.write([row(seq, ingester.encode())])
    log = KafkaLog(wide)
    end = {stream: last for stream, (_, last) in log.bounds().items()}
    read: dict[bytes, list[int]] = {}
    for table in log.read(log.between({}, end)):
        for each in table.to_pylist():
            read.setdefault(each["payload"], []).append(each["seq"])

    assert len(end) > 1
    assert read == {c.encode(): [0, 1, 2] for c in "abcdefgh"}


def test_large_batches_are_split_into_records(kafka: KafkaCluster) -> None:
    """None is larger than the limit, the first message of a part excepted."""
    small = section(kafka, max_record_bytes=50_000)
    rows = [row(seq, b"y" * (seq * 977 % 20_000)) for seq in range(100)]
    KafkaWriter(small, "a").write(rows)
    parts = list(split_rows(rows, 50_000))

    assert seqs(KafkaLog(small)) == list(range(100))
    assert 10 < len(parts) < 40
    assert max(len(encode_segment(part)) for part in parts) <= 50_000


@pytest.mark.parametrize(
    ("servers", "protocol"),
    [("127.0.0.1:9092,localhost:9093", "plaintext"), ("k1.example:9092", "ssl")],
)
def test_other_machines_are_reached_by_tls(servers: str, protocol: str) -> None:
    """A file of options can say otherwise."""
    options = client_options(KafkaSection(servers=servers))

    assert options["security.protocol"] == protocol


def test_file_of_options_is_added(tmp_path: Path) -> None:
    """Comments and empty lines are skipped."""
    path = tmp_path / "options"
    path.write_text("# ours\n\nsecurity.protocol = sasl_ssl\nsasl.password=a=b\n")
    options = client_options(
        KafkaSection(servers="k1.example:9092", options_file=str(path))
    )

    assert options["security.protocol"] == "sasl_ssl"
    assert options["sasl.password"] == "a=b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acks=1", r"line 1 must be name=value, and none of acks, .*got 'acks=...'"),
        ("delivery.timeout.ms=1", r"got 'delivery.timeout.ms=...'"),
        ("delivery.report.only.error=true", r"got 'delivery.report.only.error=...'"),
        ("\npassword", r"line 2 must be .*got 'a line without ='"),
        (None, "cannot be read"),
    ],
)
def test_unusable_options_are_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    """Among them those on which the promise of a receipt rests."""
    path = tmp_path / "options"
    if text is not None:
        path.write_text(text)

    with pytest.raises(SettingsError, match=message):
        client_options(KafkaSection(servers="localhost:1", options_file=str(path)))


@pytest.mark.parametrize("text", ["no.such.option=1", "retries=0"])
def test_options_that_the_library_refuses_are_settings_errors(
    tmp_path: Path, text: str
) -> None:
    """An unknown one, and one against the promise of a receipt."""
    path = tmp_path / "options"
    path.write_text(text)
    section = KafkaSection(servers="localhost:1", options_file=str(path))

    with pytest.raises(SettingsError, match=r"kafka\.options_file must be options of"):
        KafkaWriter(section, "a")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"servers": "k1"}, "servers must be host:port"),
        ({"servers": "http://k1:9092"}, "servers must be host:port"),
        ({"topic": "a/b"}, "topic must be 1 to 249"),
        ({"max_record_bytes": 1}, "max_record_bytes"),
    ],
)
def test_settings_are_checked(values: dict[str, object], field: str) -> None:
    """With the field and the rule."""
    with pytest.raises(SettingsError, match=field):
        build_settings(KafkaSection, values)
