"""A Kafka cluster for tests: librdkafka's mock brokers in a process of their own.

confluent-kafka ships librdkafka, whose mock brokers speak the protocol over TCP and
hold records in memory. In a process of their own they outlive programs that are killed.
The process runs the commands of its standard input; each is answered by one line.
"""

import ctypes
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

PRODUCE: Final = 0
"""API key of a request that appends records."""

_PRODUCER_TYPE = 0
_TEXT_BYTES = 512


@dataclass(frozen=True)
class KafkaCluster:
    """Handle of the process.

    Attributes:
        servers: Addresses of the brokers, for ``bootstrap.servers``.
    """

    servers: str
    _stdin: IO[str]
    _stdout: IO[str]

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic."""
        self._run(f"create {topic} {partitions}")

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records of a partition before an offset, as retention does."""
        self._run(f"trim {topic} {partition} {offset}")

    def set_up(self, *, is_up: bool) -> None:
        """Close the broker's connections and refuse new ones, or accept them again."""
        self._run("up" if is_up else "down")

    def fail(self, api_key: int, error: int, count: int = 1) -> None:
        """Answer the next requests of one kind with an error."""
        self._run(f"fail {api_key} {error} {count}")

    def forgive(self, api_key: int) -> None:
        """Answer the requests of one kind without those errors again."""
        self._run(f"forgive {api_key}")

    def delay(self, milliseconds: int) -> None:
        """Answer each request this long after it arrived."""
        self._run(f"delay {milliseconds}")

    def _run(self, command: str) -> None:
        self._stdin.write(f"{command}\n")
        self._stdin.flush()
        answer = self._stdout.readline().strip()
        assert answer == "0", f"{command}: {answer}"


@dataclass(frozen=True)
class RealCluster:
    """A cluster that runs already.

    Attributes:
        servers: Addresses of the brokers.
    """

    servers: str

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic with the replicas that the cluster gives by default."""
        client = AdminClient({"bootstrap.servers": self.servers})
        client.create_topics([NewTopic(topic, partitions)])[topic].result(30)


@contextmanager
def run_kafka() -> Iterator[KafkaCluster]:
    """Run a cluster of one broker."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        servers = process.stdout.readline().strip()
        try:
            yield KafkaCluster(servers, process.stdin, process.stdout)
        finally:
            process.kill()


@contextmanager
def open_kafka() -> Iterator[KafkaCluster | RealCluster]:
    """The cluster of ``KAFKA_SERVERS``, or else one of mock brokers."""
    if servers := os.environ.get("KAFKA_SERVERS"):
        yield RealCluster(servers)
        return
    with run_kafka() as cluster:
        yield cluster


def new_topic(cluster: KafkaCluster | RealCluster) -> str:
    """Create a topic with a name of its own."""
    topic = f"log-{uuid.uuid4().hex}"
    cluster.create_topic(topic)
    return topic


def _load() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent
    (path,) = folder.with_name("confluent_kafka.libs").glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


def _serve() -> None:
    library = _load()
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    size = ctypes.c_size_t(_TEXT_BYTES)
    client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER_TYPE, conf, text, size))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    servers = library.rd_kafka_mock_cluster_bootstraps(cluster)
    sys.stdout.write(f"{servers.decode()}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(f"{_run(library, cluster, line.split())}\n")
        sys.stdout.flush()


def _run(library: ctypes.CDLL, cluster: ctypes.c_void_p, words: list[str]) -> int:
    command, *parts = words
    numbers = [int(part) for part in parts if part.isdecimal()]
    topic = parts[0].encode() if parts else b""
    answer: int = -1
    match command, numbers:
        case "create", [partitions]:
            answer = library.rd_kafka_mock_topic_create(cluster, topic, partitions, 1)
        case "trim", [partition, offset]:
            answer = library.rd_kafka_mock_partition_delete_records(
                cluster, topic, partition, ctypes.c_int64(offset)
            )
        case "up", []:
            answer = library.rd_kafka_mock_broker_set_up(cluster, 1)
        case "down", []:
            answer = library.rd_kafka_mock_broker_set_down(cluster, 1)
        case "delay", [milliseconds]:
            answer = library.rd_kafka_mock_broker_set_rtt(cluster, 1, milliseconds)
        case "forgive", [api_key]:
            library.rd_kafka_mock_clear_request_errors(cluster, ctypes.c_int16(api_key))
            answer = 0
        case "fail", [api_key, error, count]:
            library.rd_kafka_mock_push_request_errors_array(
                cluster,
                ctypes.c_int16(api_key),
                ctypes.c_size_t(count),
                (ctypes.c_int * count)(*[error] * count),
            )
            answer = 0
    return answer


if __name__ == "__main__":
    _serve()
