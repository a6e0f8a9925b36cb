"""The scoring query over a log in Kafka: each message is in the tables once."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_cluster import KafkaCluster, run_kafka
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from storm_log import message

from backend_spark.config import BackendSettings
from backend_spark.ingest.kafka_log import KafkaLog, KafkaWriter
from backend_spark.ingest.retention import read_committed_offsets
from backend_spark.streaming import job
from backend_spark.tables.delta_writer import create_tables
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import SPARK_TABLES

pytestmark = pytest.mark.spark

TOPIC = "yamamori-log"


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """A cluster with the topic, in two partitions."""
    with run_kafka() as cluster:
        cluster.create_topic(TOPIC, 2)
        yield cluster


class KafkaJob:
    """The receiving part of the job, run until the end of the log."""

    def __init__(self, spark: SparkSession, settings: BackendSettings) -> None:
        self._spark, self.settings = spark, settings
        self.data = Path(settings.backend.data)
        self.log = KafkaLog(settings.kafka)
        create_tables(self.data / "tables", SPARK_TABLES)
        job.register(spark)

    def write(self, *steps: int, ingester: str = "ingest-0") -> None:
        writer = KafkaWriter(self.settings.kafka, ingester, wait_s=30.0)
        writer.write([])  # as ingest does at its start
        for step in steps:
            writer.write([message(step)])

    def run(self, before_query: Callable[[], object] = list) -> None:
        received = job.make_pipeline(self.settings)
        start = job.find_start(self._spark, self.settings, received)
        batches = job.number_batches(self.settings, received, start)
        before_query()
        job.start_query(
            self._spark, self.settings, batches, start.offset, once=True
        ).awaitTermination()

    def counts(self) -> Counter[int]:
        return Counter(open_tables(self.data).read("bronze")["seq"].to_pylist())

    def unscored(self) -> int:
        return self.log.count(read_committed_offsets(self.data / "checkpoints"))


@pytest.fixture
def kafka_job(
    spark: SparkSession, kafka: KafkaCluster, make_data: Callable[[str], Any]
) -> KafkaJob:
    """A job whose batches have three segments at most."""
    text = f'[kafka]\nservers = "{kafka.servers}"\ntimeout_s = 3\n'
    data = make_data(text)
    return KafkaJob(spark, data.settings)


def test_messages_are_read_once_and_continued_from_the_tables(
    kafka_job: KafkaJob,
) -> None:
    """Without its checkpoint, by the offset in the commits of bronze."""
    kafka_job.write(*range(4))
    kafka_job.write(4, ingester="ingest-1")
    kafka_job.run()
    first, left = kafka_job.counts(), kafka_job.unscored()
    shutil.rmtree(kafka_job.data / "checkpoints")
    kafka_job.write(5)
    kafka_job.run()
    kafka_job.write()
    kafka_job.run()

    assert (first, left) == (dict.fromkeys(range(5), 1), 0)
    assert kafka_job.counts() == dict.fromkeys(range(6), 1)
    assert kafka_job.unscored() == 0


@pytest.mark.long
def test_outage_ends_the_query_and_the_next_one_continues(
    kafka_job: KafkaJob, kafka: KafkaCluster
) -> None:
    """The error names the brokers; the next query continues by its checkpoint."""
    kafka_job.write(0)
    kafka_job.run()
    kafka_job.write(1)
    with pytest.raises(StreamingQueryException, match=r"kafka\.servers must be"):
        kafka_job.run(lambda: kafka.set_up(is_up=False))
    kafka.set_up(is_up=True)
    kafka_job.run()

    assert kafka_job.counts() == {0: 1, 1: 1}
