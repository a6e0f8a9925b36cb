"""Spark session with measured settings, its query, and the check of shared folders.

An executor on a machine without the shared folder would write files of tables to its
own disk, and the job would commit their names. A copy of the folder would pass a check
of what is in it, so each job writes a mark that no copy has.
"""

import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from backend_spark.errors import (
    BatchAbandonedError,
    SupersededError,
    UnsharedFolderError,
)
from backend_spark.tables.store import (
    Folder,
    has_file,
    open_files,
    write_text,
)
from service_runtime.watchdog import LoopWatchdog

log = logging.getLogger(__name__)

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # A batch gets the next free core, though the tasks of a pass wait for one, too.
    "spark.scheduler.mode": "FAIR",
    # Stored in the checkpoint with the first batch, so it cannot be changed later.
    "spark.sql.shuffle.partitions": "2",
    # Python workers start slowly on a busy machine; the default of 15 s ends the job.
    "spark.python.authenticate.socketTimeout": "120s",
    # Only avro state allows new fields; must be set before there is any state.
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
}
LOCAL_SETTINGS: Final = {
    # Rows are in the Python workers; the JVM holds plans and the results of tasks.
    "spark.driver.memory": "600m",
    # G1 fills the whole heap before it collects; a third of it is live.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MaxMetaspaceSize=256m",
    # Workers share their imports, and start at once.
    "spark.python.daemon.module": "backend_spark.streaming.workers",
    # A decoding task has two workers, one to read the log; scoring has one per core.
    "spark.python.factory.idleWorkerMaxPoolSize": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # rename(2) is atomic on a local disk; the default starts about 20 processes
    # per batch without libhadoop, a quarter of its time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
ENVIRONMENT: Final = {
    # Allocators that return memory: 70 MB less per worker at the same decoding speed.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}
"""Environment of the JVM and of its Python workers, unless set already."""
LOCAL_ENVIRONMENT: Final = {
    # Otherwise Spark resolves the name of the machine, and ends if it does not resolve.
    "SPARK_LOCAL_IP": "127.0.0.1",
}
"""Additional environment of a job on one machine."""

WORKER_SITE: Final = str(Path(__file__).parent / "worker_site")
"""Folder of the ``sitecustomize`` of Spark's Python processes."""

SCORING_POOL: Final = "scoring"
"""Scheduler pool of passes; batches are in the default one."""

MARK: Final = ".job-"
"""Beginning of the name of a mark, an empty file."""


@contextmanager
def use_scoring_pool(session: SparkSession) -> Iterator[None]:
    """Run the jobs of this thread in the scheduler pool of passes."""
    context = session.sparkContext
    context.setLocalProperty("spark.scheduler.pool", SCORING_POOL)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def open_session(master: str | None) -> SparkSession:
    """Start Spark, or use the session that spark-submit started.

    Args:
        master: Spark master; None leaves it to spark-submit.
    """
    # Spark's default is the first python3 on the path; the workers need this
    # interpreter's packages, installed at the same path on every machine.
    environment = {"PYSPARK_PYTHON": sys.executable, **ENVIRONMENT}
    builder = SparkSession.builder.appName("yamamori")
    settings = dict(SETTINGS)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            environment |= LOCAL_ENVIRONMENT
            settings |= LOCAL_SETTINGS
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    _add_worker_site()
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _add_worker_site() -> None:
    """Put `WORKER_SITE` on the path of the Python processes that the JVM starts."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if WORKER_SITE not in path:
        joined = os.pathsep.join([*filter(None, path), WORKER_SITE])
        os.environ["PYTHONPATH"] = joined


@dataclass(frozen=True)
class SharedFolders:
    """Folders that all executors must see as the job does.

    Attributes:
        places: The folders.
        mark: Name of a file in each of them.
    """

    places: tuple[Folder, ...]
    mark: str

    @classmethod
    def create(cls, places: Iterable[Folder]) -> "SharedFolders":
        """Mark folders."""
        shared = cls(tuple(places), f"{MARK}{uuid.uuid4()}")
        for place in shared.places:
            write_text(place, shared.mark, "")
        return shared

    def delete_other_marks(self) -> None:
        """Delete the marks of earlier jobs."""
        for place in self.places:
            files = open_files(place)
            for info in files.get_file_info(fs.FileSelector("")):
                if info.base_name.startswith(MARK) and info.base_name != self.mark:
                    files.delete_file(info.path)

    def require(self) -> None:
        """Check that this process sees them; once in each process.

        Raises:
            UnsharedFolderError: It does not see the mark.
        """
        _require(self)

    def require_on_executors(self, session: SparkSession) -> None:
        """Check the executors that Spark has now; later ones check in their tasks.

        Raises:
            UnsharedFolderError: An executor does not see the mark.
        """

        def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                try:
                    self.require()
                except UnsharedFolderError as error:
                    found = pa.array([[error.place, error.machine, error.cause]])
                    yield pa.RecordBatch.from_arrays([found], ["problem"])

        tasks = session.sparkContext.defaultParallelism
        ids = session.range(0, tasks, 1, tasks)
        problems = ids.mapInArrow(check, "problem array<string>").toArrow()["problem"]
        for problem in problems.to_pylist():
            raise UnsharedFolderError(*problem)


@cache
def _require(shared: SharedFolders) -> None:
    for place in shared.places:
        try:
            cause = "" if has_file(place, shared.mark) else f"{shared.mark} is missing"
        except OSError as error:
            cause = f"{type(error).__name__}: {error}"
        if cause:
            raise UnsharedFolderError(str(place), socket.gethostname(), cause)


LATE_WORKER_ERROR: Final = "Python worker failed to connect back"
LATE_S: Final = 900.0
"""Time for which a query is started again although its Python workers are late."""

START_S: Final = 120.0
"""A query that fails later than this after its start had its Python worker."""

BATCH_S: Final = 3600.0
"""Longest batch; after that it counts as hung."""


class RestartingQuery:
    """A streaming query that is restarted when Spark's Python worker starts too late.

    Spark allows a source's Python worker ten seconds to start; no setting changes that.
    On a busy machine it can take longer, and the query then ends before the batch has
    begun. A job that ended for it would make the machine busier by its next start.

    Args:
        start: Starts the query from its checkpoint.
        monotonic: Clock.
    """

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._monotonic = monotonic
        self._query = start()
        self._started_s = self._late_since_s = monotonic()

    def wait_until_ended(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the query; returns whether it has ended.

        Args:
            timeout_s: Longest wait; None waits until the end.

        Raises:
            StreamingQueryException: A batch failed, or workers were late for `LATE_S`.
        """
        while True:
            try:
                if timeout_s is None:
                    self._query.awaitTermination()
                    return True
                # Typed as int, but Spark accepts fractions of a second.
                return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type]
            except StreamingQueryException as error:
                if LATE_WORKER_ERROR not in str(error) or not self._may_restart():
                    raise
                log.warning("Spark's Python took over 10 s to start; restarting it")
                self._query = self._start()

    def _may_restart(self) -> bool:
        """Whether workers have been late for less than `LATE_S`, start after start."""
        now_s = self._monotonic()
        if now_s - self._started_s > START_S:
            self._late_since_s = now_s
        self._started_s = now_s
        return now_s - self._late_since_s < LATE_S

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()


@dataclass
class BatchGate:
    """Runs batches, and lets a running batch end before the query is stopped.

    Attributes:
        run_batch: Runs one batch.
        stop: Set by a signal.
        pulse: Watchdog.
        batches: Number of completed batches.
        passes: Number of completed scorings.
        began_s: Monotonic time at which the running batch began.
        ended_s: Monotonic time at which the last batch ended.
        superseded: Error of a batch, which Spark reports as one of its own.
    """

    run_batch: Callable[[DataFrame, int], None]
    stop: threading.Event = field(default_factory=threading.Event)
    pulse: LoopWatchdog = field(default_factory=lambda: LoopWatchdog(time.monotonic))
    batches: int = 0
    passes: int = 0
    began_s: float | None = None
    ended_s: float | None = None
    superseded: SupersededError | None = None
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __call__(self, messages: DataFrame, batch_id: int) -> None:
        """Run one batch, or refuse it while stopping.

        Raises:
            BatchAbandonedError: The job stops; a return would commit the batch.
            SupersededError: Another job has claimed the tables since.
        """
        with self._busy:
            if self._closed:
                raise BatchAbandonedError(batch_id)
            self.began_s = time.monotonic()
            try:
                with self.pulse.watch_loop(f"batch {batch_id}", BATCH_S):
                    self.run_batch(messages, batch_id)
            except SupersededError as error:
                self.superseded = error
                raise
            self.began_s, self.ended_s = None, time.monotonic()
            self.batches += 1

    def status(self) -> str:
        """Status line."""
        now_s, began_s, ended_s = time.monotonic(), self.began_s, self.ended_s
        counts = f"{self.batches} batches and {self.passes} scorings since the start"
        if began_s is not None:
            return f"{counts}; one has run for {now_s - began_s:.0f} s"
        if ended_s is not None:
            return f"{counts}; the last ended {now_s - ended_s:.0f} s ago"
        return counts

    def close(self, query: RestartingQuery) -> None:
        """Stop the query between two batches."""
        with self._busy:
            self._closed = True
        query.stop()
