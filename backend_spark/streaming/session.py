"""Spark session with measured settings, and the check of its executors' folders.

An executor on a machine without the shared folder would write files of tables to its
own disk, and the job would commit their names. A copy of the folder would pass a check
of what is in it, so each job writes a mark that no copy has.
"""

import os
import socket
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import SparkSession

from backend_spark.errors import UnsharedFolderError
from backend_spark.tables.store import Folder, has_file, open_files, write_text

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
def use_pool(session: SparkSession, name: str) -> Iterator[None]:
    """Run the jobs of this thread in a scheduler pool."""
    context = session.sparkContext
    context.setLocalProperty("spark.scheduler.pool", name)
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
        os.environ.setdefault(name, value)  # noqa: TID251 - pyspark reads it
    _add_worker_site()
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _add_worker_site() -> None:
    """Put `WORKER_SITE` on the path of the Python processes that the JVM starts."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # noqa: TID251 - Python reads it
    if WORKER_SITE not in path:
        joined = os.pathsep.join([*filter(None, path), WORKER_SITE])
        os.environ["PYTHONPATH"] = joined  # noqa: TID251 - Python reads it


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
