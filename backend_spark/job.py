"""Composition of the scoring job: its Spark, its checkpoint, its signals."""

import logging
import os
import threading
import time
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
from backend_spark.criteria.judging import Judging
from backend_spark.durability import fsync_file, fsync_folder
from backend_spark.errors import BatchAbandonedError
from backend_spark.ingest.lock import hold
from backend_spark.pipeline import Pipeline
from backend_spark.session import open_session
from backend_spark.sinks.commits import make_tables
from backend_spark.sinks.delta import DeltaAppend
from backend_spark.sources.history import CellHistory
from backend_spark.sources.segment_log import SegmentLog
from spatial_mqtt.daemon import on_stop_signals
from spatial_mqtt.pulse import Beat, Pulse
from spatial_mqtt.supervision import Supervision

log = logging.getLogger(__name__)

CHECKPOINT: Final = "score"
APP_ID: Final = "app_id"
DAY_S: Final = 86_400
POLL_S: Final = 1
SILENCE_S: Final = 120.0
"""How long Spark's JVM may leave us without an answer."""

BATCH_S: Final = 3600.0
"""What a batch may take; beyond that it hangs."""


@dataclass
class Gate:
    """Lets a running batch end before the query is stopped.

    Attributes:
        run_batch: What a batch does.
        stop: Set by a signal.
        pulse: Listens to us.
        batches: How many ended well.
        began_s: When the batch in hand began, on the monotonic clock.
        ended_s: When the last one ended.
    """

    run_batch: Callable[[DataFrame, int], None]
    stop: threading.Event = field(default_factory=threading.Event)
    pulse: Pulse = field(default_factory=lambda: Pulse(time.monotonic))
    batches: int = 0
    began_s: float | None = None
    ended_s: float | None = None
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
            self.began_s = time.monotonic()
            with self.pulse.expects(f"batch {batch_id}", BATCH_S):
                self.run_batch(messages, batch_id)
            self.began_s, self.ended_s = None, time.monotonic()
            self.batches += 1

    def status(self) -> str:
        """One line for a person."""
        now_s, began_s, ended_s = time.monotonic(), self.began_s, self.ended_s
        words = f"{self.batches} batches scored since the start"
        if began_s is not None:
            return f"{words}; one runs for {now_s - began_s:.0f} s"
        if ended_s is not None:
            return f"{words}; the last ended {now_s - ended_s:.0f} s ago"
        return words

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
    supervision = Supervision.of(os.environ, os.getpid(), gate.pulse, gate.status)

    def stop() -> None:
        supervision.stopping()
        gate.stop.set()

    on_stop_signals(stop)
    query = start_query(session, settings, gate, once=once)
    log.info("scoring %s with %s", data, session.sparkContext.master)
    supervision.ready()
    try:
        with gate.pulse.expects("the watch over Spark", SILENCE_S) as beat:
            _watch(query, gate, beat)
        session.stop()
    except (Py4JError, StreamingQueryException, ConnectionError) as error:
        # A service manager may signal the JVM as well, which then dies under us;
        # the batch in hand is run again at the next start.
        if not gate.stop.is_set():
            raise
        log.info("stopped by a signal, Spark too: %s", type(error).__name__)
    supervision.close()
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
        judging=Judging.by(settings.criteria),
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


def _watch(query: StreamingQuery, gate: Gate, beat: Beat) -> None:
    while not gate.stop.is_set():
        beat()
        if query.awaitTermination(POLL_S):
            return
    gate.close(query)
    log.info("stopped by a signal")
