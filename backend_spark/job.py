"""Composition of the scoring job: its Spark, its checkpoint, its signals."""

import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    TABLES_FOLDER,
    Settings,
)
from backend_spark.durability import fsync_file, fsync_folder
from backend_spark.errors import BatchAbandonedError
from backend_spark.ingest.lock import hold
from backend_spark.pipeline import Pipeline
from backend_spark.session import open_session
from backend_spark.sinks.commits import make_tables
from backend_spark.sinks.delta import DeltaAppend
from backend_spark.sources.history import CellHistory
from backend_spark.sources.segment_log import SegmentLog
from slope_science.criteria import Criteria
from spatial_mqtt.daemon import on_stop_signals

log = logging.getLogger(__name__)

CHECKPOINT: Final = "score"
APP_ID: Final = "app_id"
DAY_S: Final = 86_400
POLL_S: Final = 1


@dataclass
class Gate:
    """Lets a running batch end before the query is stopped.

    Attributes:
        run_batch: What a batch does.
        stop: Set by a signal.
    """

    run_batch: Callable[[DataFrame, int], None]
    stop: threading.Event = field(default_factory=threading.Event)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __call__(self, messages: DataFrame, batch_id: int) -> None:
        """Run one batch, or refuse it while stopping.

        Raises:
            BatchAbandonedError: Returning would let Spark call the batch done.
        """
        with self._busy:
            if self._closed:
                raise BatchAbandonedError(batch_id)
            self.run_batch(messages, batch_id)

    def close(self, query: StreamingQuery) -> None:
        """Stop the query between two batches."""
        with self._busy:
            self._closed = True
        query.stop()


def run(settings: Settings, *, once: bool, master: str | None) -> None:
    """Score the log until SIGTERM or SIGINT, or once what is there.

    Args:
        settings: All settings.
        once: Whether to end when the log is read.
        master: Spark master; None leaves it to spark-submit or the settings.

    Raises:
        AlreadyRunningError: Another job scores this folder.
        StreamingQueryException: A batch failed; it is run again at the next start.
    """
    data = Path(settings.backend.data)
    lock = hold(data / CHECKPOINTS_FOLDER / f".lock-{CHECKPOINT}")
    make_tables(data / TABLES_FOLDER)
    (data / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    session = open_session(choose_master(master, settings.score.master))
    gate = Gate(pipeline(settings).run)
    on_stop_signals(gate.stop.set)
    query = start_query(session, settings, gate, once=once)
    log.info("scoring %s with %s", data, session.sparkContext.master)
    try:
        _watch(query, gate)
        session.stop()
    except (Py4JError, StreamingQueryException, ConnectionError) as error:
        # A service manager may signal the JVM as well, which then dies under us;
        # the batch in hand is run again at the next start.
        if not gate.stop.is_set():
            raise
        log.info("stopped by a signal, Spark too: %s", type(error).__name__)
    os.close(lock)


def choose_master(given: str | None, configured: str) -> str | None:
    """The command line first, then spark-submit, then the settings.

    Returns:
        None when spark-submit started us and has decided.
    """
    if given is not None:
        return given
    return None if "PYSPARK_GATEWAY_PORT" in os.environ else configured


def pipeline(settings: Settings) -> Pipeline:
    """The pipeline of a data folder, with the app id of its checkpoint."""
    data = Path(settings.backend.data)
    return Pipeline(
        tables=data / TABLES_FOLDER,
        app_id=app_id(data / CHECKPOINTS_FOLDER / CHECKPOINT),
        criteria=Criteria.assumed_from(settings.criteria.warning_mm),
        horizon_s=settings.score.horizon_days * DAY_S,
        max_ahead_s=settings.score.max_ahead_s,
    )


def app_id(checkpoint: Path) -> str:
    """The id under which this checkpoint's batches are known to the tables."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    path = checkpoint / APP_ID
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(str(uuid.uuid4()), encoding="ascii")
        fsync_file(unfinished)
        unfinished.rename(path)
        fsync_folder(checkpoint)
    return path.read_text(encoding="ascii")


def start_query(
    session: SparkSession,
    settings: Settings,
    run_batch: Callable[[DataFrame, int], None],
    *,
    once: bool,
) -> StreamingQuery:
    """Start the one streaming query over the log."""
    for source in (SegmentLog, CellHistory, DeltaAppend):
        session.dataSource.register(source)
    data = Path(settings.backend.data)
    messages = (
        session.readStream
        .format("yamamori_log")
        .option("path", str(data / LOG_FOLDER))
        .option("max_segments", str(settings.score.max_segments_per_batch))
        .load()
    )
    writer = (
        messages.writeStream
        .queryName(CHECKPOINT)
        .option("checkpointLocation", str(data / CHECKPOINTS_FOLDER / CHECKPOINT))
        .foreachBatch(run_batch)
    )
    if once:
        return writer.trigger(availableNow=True).start()
    milliseconds = round(settings.score.trigger_s * 1000)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds").start()


def _watch(query: StreamingQuery, gate: Gate) -> None:
    while not gate.stop.is_set():
        if query.awaitTermination(POLL_S):
            return
    gate.close(query)
    log.info("stopped by a signal")
