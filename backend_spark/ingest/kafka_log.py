"""The log as a Kafka topic: each record is a segment, the one of an Arrow file.

A partition is a stream, ``<topic>.<partition in hexadecimal>``, the number of a segment
its offset. A record is confirmed by all replicas that are in sync (``acks=all``). The
producer is idempotent and repeats a record until then: what it repeats is stored once.
The next record is sent after that. With two on their way librdkafka takes the success
of the second for that of the first, even if a broker has refused the first: it relies
on brokers to refuse a gap in the producer's sequence, and those of Kafka accept one
from a producer that they do not know yet (KAFKA-15591).

Kafka deletes records by the topic's retention, whether they were read or not; a reader
that finds some deleted reports their number. `SegmentName` grows by one: transactions
and compaction, which leave gaps, are not used.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from backend_spark.errors import LogUnavailableError
from backend_spark.ingest.kafka_settings import KafkaSection, client_options
from backend_spark.ingest.segment_log import (
    LogOffset,
    LogRow,
    SegmentName,
    decode_segment,
    encode_segment,
    make_intact,
)
from service_runtime.errors import FieldError
from service_runtime.settings import Problem, SettingsError

log = logging.getLogger(__name__)

WAIT_S: Final = 5.0
"""Time until rows count as not confirmed; the producer goes on repeating them."""

ROW_BYTES: Final = 400
"""Largest part of a row in a record besides topic, payload and ids."""

FRAME_BYTES: Final = 8_000
"""Largest part of a record without any row: the schema and the buffers' lengths."""

_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001

RECORDS_PER_TASK: Final = 20
RECORDS_AT_ONCE: Final = 500
POLL_S: Final = 1.0

_REMEDIES: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "lower kafka.max_record_bytes, or raise "
    "max.message.bytes of the topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let this account write and read the topic",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic with kafka-topics.sh",
    KafkaError._UNKNOWN_TOPIC: "create the topic with kafka-topics.sh",  # noqa: SLF001
    KafkaError._INCONSISTENT: "ingest writes what is missing: the next start reads "  # noqa: SLF001
    "the topic",
}


def refusal(topic: str, error: KafkaError) -> FieldError:
    """Error for an answer that repeating the request does not change."""
    remedy = _REMEDIES.get(error.code(), "see the log of the brokers")
    return FieldError("kafka.topic", "usable", f"{topic}: {error.str()}", remedy)


@contextmanager
def _report_options(section: KafkaSection) -> Iterator[None]:
    """Raise a `SettingsError` for options that the library refuses."""
    try:
        yield
    except KafkaException as error:
        mistake = FieldError(
            "kafka.options_file",
            "options of librdkafka",
            f"{section.options_file}: {error.args[0].str()}",
        )
        raise SettingsError([Problem.of(mistake)]) from error


@dataclass
class KafkaWriter:
    """Appends segments to the topic, those of an ingester to one partition.

    Attributes:
        section: The cluster and the topic.
        ingester: Id of the ingester, the key of its records.
        wait_s: Time until rows count as not confirmed.
        monotonic_s: Clock.
    """

    section: KafkaSection
    ingester: str
    wait_s: float = WAIT_S
    monotonic_s: Callable[[], float] = time.monotonic  # noqa: TID251 - no other clock
    _producer: Producer = field(init=False, repr=False)
    _waiting: Sequence[LogRow] | None = None
    _parts: list[list[LogRow]] = field(default_factory=list)
    _is_sent: bool = False  # the first of the parts; it is not confirmed
    _size_bytes: int = 0
    _error: KafkaError | None = None

    def __post_init__(self) -> None:
        """Make the producer; it connects by itself."""
        options = client_options(self.section) | {
            "client.id": self.ingester,
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # repeats for ever
            # A deleted topic would come back with one replica.
            "allow.auto.create.topics": False,
            "message.max.bytes": self.section.max_record_bytes + FRAME_BYTES,
            "linger.ms": 0,
        }
        with _report_options(self.section):
            self._producer = Producer(options, logger=log)

    @property
    def place(self) -> str:
        """The brokers."""
        return str(self.section.servers)

    @property
    def max_payload_bytes(self) -> int:
        """Largest payload that fits a record."""
        return self.section.max_record_bytes // 2

    def write(self, rows: Sequence[LogRow]) -> int:
        """Append rows in one record or more; an empty record without any.

        Raises:
            LogUnavailableError: Not all are confirmed yet; call again with the rows.
            FieldError: The cluster refuses them; some may be in the log.
        """
        if self._waiting is None:
            self._waiting, self._size_bytes = rows, 0
            self._parts = [*split_rows(rows, self.section.max_record_bytes)] or [[]]
        if rows is not self._waiting:
            raise ValueError("rows that were not confirmed must be written first")
        until_s = self.monotonic_s() + self.wait_s
        while self._parts:
            if not self._is_sent:
                self._produce(encode_segment(self._parts[0]))
            self._producer.flush(max(0.0, until_s - self.monotonic_s()))
            if self._error is not None:
                raise refusal(self.section.topic, self._error)
            if self._is_sent:
                raise LogUnavailableError(self.place, len(self._parts))
            del self._parts[0]
        self._waiting = None
        return self._size_bytes

    def _produce(self, record: bytes) -> None:
        try:
            self._producer.produce(
                self.section.topic,
                record,
                self.ingester.encode(),
                on_delivery=self._confirm,
            )
        except KafkaException as error:
            raise refusal(self.section.topic, error.args[0]) from error
        self._is_sent = True
        self._size_bytes += len(record)

    def _confirm(self, error: KafkaError | None, record: Message) -> None:
        if error is None and record.offset() is None:
            # The library reports so what it only infers to be in the log.
            error = KafkaError(
                KafkaError._INCONSISTENT,  # noqa: SLF001
                "a record was confirmed without an offset",
            )
        self._error = error
        self._is_sent = error is not None


def split_rows(rows: Sequence[LogRow], max_bytes: int) -> Iterator[list[LogRow]]:
    """Split rows so that each part fits a record."""
    part: list[LogRow] = []
    size_bytes = FRAME_BYTES
    for row in rows:
        ids = len(row.node or "") + len(row.boot or "") + len(row.reason or "")
        row_bytes = len(row.payload) + 4 * (len(row.topic) + ids) + ROW_BYTES
        if part and size_bytes + row_bytes > max_bytes:
            yield part
            part, size_bytes = [], FRAME_BYTES
        part.append(row)
        size_bytes += row_bytes
    if part:
        yield part


@dataclass
class KafkaLog:
    """Reads the topic, without a consumer group: readers store their own offsets.

    Attributes:
        section: The cluster and the topic.
        monotonic_s: Clock.
    """

    section: KafkaSection
    monotonic_s: Callable[[], float] = time.monotonic  # noqa: TID251 - no other clock
    _consumer: Consumer | None = field(default=None, repr=False, compare=False)
    _deleted: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """State without the connection."""
        return self.__dict__ | {"_consumer": None}

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Number of the first and last segment of each stream that has had any.

        Raises:
            FieldError: The topic or the cluster is not there.
        """
        found = {}
        for number in self._partitions():
            at = TopicPartition(self.section.topic, number)
            low, high = self._ask("get_watermark_offsets", at)
            if high:
                found[self._stream(number)] = low, high - 1
        return dict(sorted(found.items()))

    def between(
        self, start: LogOffset, end: LogOffset, max_count: int | None = None
    ) -> list[SegmentName]:
        """Segments after one offset up to another, round-robin over the streams.

        Raises:
            FieldError: The topic ends before the start: it is another one.
        """
        streams = []
        for stream, (first, last) in self.bounds().items():
            read = start.get(stream, -1)
            if read > last:
                raise FieldError(
                    "kafka.topic",
                    f"the one that was read, which has record {read}",
                    f"{stream} with {last} as its last",
                    "set the topic of these tables, or a new name for a new topic",
                )
            if first > read + 1:
                moment = "the first reading" if read < 0 else "they were read"
                self._report_deleted(stream, first - read - 1, moment)
            numbers = range(max(first, read + 1), min(last, end.get(stream, -1)) + 1)
            streams.append(map(partial(SegmentName, stream), numbers))
        rounds = chain.from_iterable(zip_longest(*streams))
        return list(islice((name for name in rounds if name is not None), max_count))

    def _report_deleted(self, stream: str, count: int, moment: str) -> None:
        """Log an error; again only when more are deleted."""
        if self._deleted.get(stream) == count:
            return
        self._deleted[stream] = count
        log.error(
            "%s: %d records were deleted before %s: raise retention.ms of the topic",
            stream,
            count,
            moment,
        )

    def replicas(self) -> int:
        """Smallest number of brokers that have a partition.

        Raises:
            FieldError: The topic or the cluster is not there.
        """
        return min(len(each.replicas) for each in self._partitions().values())

    def read(self, names: Sequence[SegmentName]) -> Iterator[pa.Table]:
        """Rows of segments, sorted by stream and number.

        Raises:
            FieldError: A record has been deleted, or the cluster does not answer.
        """
        wanted: dict[str, set[int]] = {}
        for name in names:
            wanted.setdefault(name.stream, set()).add(name.seq)
        for stream, numbers in sorted(wanted.items()):
            for record in self._records(stream, numbers):
                yield _decode(SegmentName(stream, record.offset() or 0), record)

    def split(
        self, names: Sequence[SegmentName], max_tasks: int
    ) -> list[list[SegmentName]]:
        """Distribute segments over tasks; neighbours, read at once, to one."""
        count = min(max_tasks, -(-len(names) // RECORDS_PER_TASK))
        ordered = sorted(names)
        size = -(-len(names) // count) if count else 1
        return [ordered[at : at + size] for at in range(0, len(names), size)]

    def count(self, after: LogOffset) -> int:
        """Number of segments after an offset."""
        return sum(
            last - max(first - 1, min(last, after.get(stream, -1)))
            for stream, (first, last) in self.bounds().items()
        )

    def _records(self, stream: str, numbers: set[int]) -> Iterator[Message]:
        """Records of a stream; only those with the numbers.

        Where some are missing it asks again, by a new connection. Those that are still
        missing are logged and left out, as deleted ones are: a warning must not wait
        for what is lost.
        """
        at, last, doubted = min(numbers), max(numbers), -1
        while at <= last:
            for offset, record in self._fetch(stream, at, last):
                missing = numbers.intersection(range(at, offset))
                if missing and at != doubted:
                    doubted = at
                    self._close()
                    break
                if missing:
                    self._report_missing(stream, missing)
                at = offset + 1
                if record is not None and offset in numbers:
                    yield record

    def _fetch(
        self, stream: str, at: int, last: int
    ) -> Iterator[tuple[int, Message | None]]:
        """Records of a stream with their offsets.

        It ends after the record `last`, or the first one after it, or with the offset
        of the end of the stream.
        """
        partition = int(stream.rpartition(".")[2], 16)
        consumer, answered_s = self._open(), self.monotonic_s()
        consumer.assign([TopicPartition(self.section.topic, partition, at)])
        while at <= last:
            records = consumer.consume(min(last - at + 1, RECORDS_AT_ONCE), POLL_S)
            for record in records:
                error, offset = record.error(), record.offset() or 0
                if error is not None and error.code() != _END:
                    raise self._unreadable(stream, at, error.str())
                is_early = offset < at if error is None else offset <= last
                if record.partition() == partition and not is_early:
                    at = offset + 1
                    yield offset, record if error is None else None
            if records:
                answered_s = self.monotonic_s()
            elif self.monotonic_s() - answered_s > self.section.timeout_s:
                raise self._unreadable(stream, at, "no answer")
        consumer.unassign()

    def _report_missing(self, stream: str, numbers: set[int]) -> None:
        log.error(
            "%s: %d records from %d on are missing: cleanup.policy of the topic must "
            "be delete, and no program may write to it in transactions",
            stream,
            len(numbers),
            min(numbers),
        )

    def _unreadable(self, stream: str, at: int, cause: str) -> FieldError:
        return FieldError(
            "kafka.servers",
            f"brokers that give record {at} of {stream}",
            f"{self.section.servers}: {cause}",
            "check the cluster and its retention",
        )

    def _partitions(self) -> dict[int, Any]:
        found = self._ask("list_topics", self.section.topic).topics[self.section.topic]
        if found.error is not None:
            raise refusal(self.section.topic, found.error)
        partitions: dict[int, Any] = found.partitions
        return partitions

    def _ask(self, request: str, subject: object) -> Any:  # noqa: ANN401 - as answered
        timeout_s = self.section.timeout_s
        try:
            return getattr(self._open(), request)(subject, timeout=timeout_s)
        except KafkaException as error:
            raise FieldError(
                "kafka.servers",
                f"brokers that answer within {timeout_s:g} s",
                f"{self.section.servers}: {error.args[0].str()}",
                "check the cluster and kafka.options_file",
            ) from error

    def _stream(self, partition: int) -> str:
        return f"{self.section.topic}.{partition:x}"

    def _open(self) -> Consumer:
        if self._consumer is None:
            options = client_options(self.section) | {
                "group.id": "unused",  # the library asks for one
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "check.crcs": True,
                "enable.partition.eof": True,
                # At the end of a partition a broker would delay the next reading.
                "fetch.wait.max.ms": 10,
            }
            with _report_options(self.section):
                self._consumer = Consumer(options, logger=log)
        return self._consumer

    def _close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _decode(name: SegmentName, record: Message) -> pa.Table:
    _, written_ms = record.timestamp()

    def decode() -> pa.Table:
        return decode_segment(bytes(record.value() or b""), str(name))

    return make_intact(decode, str(name), written_ms * 1000)
