"""Contract of the log between ingest and its readers; it has two implementations.

`segment_log` stores segments as files of a folder, `kafka_log` as records of a topic.
Either way a log consists of streams, a stream of segments with growing numbers, and a
`LogOffset` is a position in it. The tests of the contract run on both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from backend_spark.ingest.kafka_settings import KafkaSection
from backend_spark.ingest.segment_log import LogOffset, LogRow, SegmentLog, SegmentName
from service_runtime.errors import FieldError
from service_runtime.settings import Problem, SettingsError


class LogWriter(Protocol):
    """Appends segments of one ingester.

    Attributes:
        place: Where the log is, for messages.
        max_payload_bytes: Largest payload that it can store; None: any.
    """

    @property
    def place(self) -> str: ...

    @property
    def max_payload_bytes(self) -> int | None: ...

    def write(self, rows: Sequence[LogRow]) -> int:
        """Append rows; when this returns they are as safe as the log makes them.

        In a file that is a disk after fsync, in Kafka the replicas that are in sync.

        Returns:
            Bytes written.

        Raises:
            LogUnavailableError: The rows are not confirmed yet; call again with them.
            FieldError: The log refuses them.
            OSError: Disk error; the rows are not in the log.
        """


class MessageLog(Protocol):
    """Reads a log. Objects can be pickled, and several processes can read."""

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Number of the first and last segment of each stream.

        The last is one less than the first where all segments have been deleted.
        """

    def between(
        self, start: LogOffset, end: LogOffset, max_count: int | None = None
    ) -> list[SegmentName]:
        """Segments after one offset up to another, round-robin over the streams."""

    def read(self, names: Sequence[SegmentName]) -> Iterator[pa.Table]:
        """Rows of segments, a table for each; what is damaged has a reason.

        Shape:
            out: schemas.LOG.
        """

    def split(
        self, names: Sequence[SegmentName], max_tasks: int
    ) -> list[list[SegmentName]]:
        """Distribute segments over tasks of about the same work."""

    def count(self, after: LogOffset) -> int:
        """Number of segments after an offset.

        Messages that arrive while a query runs make new segments, so one run of
        ``score --once`` leaves those that were written since it began.
        """


def end_of(log: MessageLog) -> LogOffset:
    """Offset after all segments that a log has now."""
    return {stream: last for stream, (_, last) in log.bounds().items()}


def open_log(folder: Path, kafka: KafkaSection) -> MessageLog:
    """Open the log of the settings for reading.

    Raises:
        SettingsError: It is in Kafka, and the library or its options are not usable.
    """
    if kafka.servers is None:
        return SegmentLog(folder)
    require_kafka_library()
    from backend_spark.ingest.kafka_log import KafkaLog  # noqa: PLC0415 - optional

    return KafkaLog(kafka)


def check_files_are_read(
    folder: Path, kafka: KafkaSection, offsets: Callable[[Iterable[str]], LogOffset]
) -> None:
    """Check that a log in Kafka does not hide segment files that were not read.

    Args:
        folder: Folder of the segment files, from before the change to Kafka.
        kafka: Where the log is.
        offsets: Gives the numbers of the segments last read, of streams.

    Raises:
        SettingsError: There are such files.
    """
    if kafka.servers is None:
        return
    files = SegmentLog(folder)
    if unread := files.count(offsets(files.bounds())):
        error = FieldError(
            "kafka.servers",
            f"absent until all segments in {folder} are read",
            f"{kafka.servers} and {unread} unread segments",
            "remove [kafka], run this program until none is left, then set it again",
        )
        raise SettingsError([Problem.of(error)])


REPLACED_FILE: Final = "replaced"
"""File in the folder of checkpoints: the machine that has taken over the tables."""


def check_not_replaced(checkpoints: Path) -> None:
    """Check that no other machine has taken over the tables of this data folder.

    Nothing would score what this one receives.

    Raises:
        SettingsError: Another one has.
    """
    path = checkpoints / REPLACED_FILE
    if path.exists():
        machine = path.read_text(encoding="utf-8")
        error = FieldError(
            "backend.tables",
            "tables that no other machine has taken over",
            f"those of {machine}",
            "disable the units here; or if this machine is to go on, stop the backend "
            f"there, delete {path} and start it here",
        )
        raise SettingsError([Problem.of(error)])


def require_kafka_library() -> None:
    """Check that confluent-kafka is installed.

    Raises:
        SettingsError: It is not.
    """
    try:
        import confluent_kafka  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        mistake = FieldError(
            "kafka.servers",
            "absent where confluent-kafka is not installed",
            str(error),
            "install yamamori[backend,kafka]",
        )
        raise SettingsError([Problem.of(mistake)]) from error
