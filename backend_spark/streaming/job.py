"""Composition of the scoring job: its Spark, its checkpoint, its signals.

A streaming query that is started again when Spark's Python was late.
"""

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

from backend_spark.config import CHECKPOINTS_FOLDER, LOG_FOLDER, TABLES_FOLDER, Settings
from backend_spark.criteria.cell_rules import Judging
from backend_spark.errors import BatchAbandonedError, HalfReplayedError
from backend_spark.forecast.table import Feed
from backend_spark.streaming.pipeline import Pipeline
from backend_spark.streaming.replay import Span, replay, unfinished
from backend_spark.streaming.session import keep_plan, mend, open_session
from backend_spark.streaming.sources import SegmentLog, TableRows
from backend_spark.tables.delta_writer import make_tables
from backend_spark.tables.maintenance import EVERY_S, trim
from backend_spark.tables.schemas import SCORED, TABLES
from service_runtime.files import fsync_file, fsync_folder, make_folder
from service_runtime.lifecycle import Supervision, on_stop_signals
from service_runtime.locks import hold
from service_runtime.watchdog import Pulse

LATE: Final = "Python worker failed to connect back"
STARTS: Final = 6


class Query:
    """One streaming query and the way to start it.

    Spark gives the Python of a source ten seconds to start, a figure that no setting
    changes. On a crowded machine it needs more, and the query would end although
    nothing is wrong: the batch in hand has not begun.

    Args:
        start: Starts the query, from its checkpoint.
    """

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query = start()
        self._left = STARTS - 1

    def ended(self, within_s: float | None = None) -> bool:
        """Whether all there was is done; waits so long, or until it is.

        Raises:
            StreamingQueryException: A batch failed, or Python was late six times.
        """
        while True:
            try:
                if within_s is None:
                    self._query.awaitTermination()
                    return True
                # Typed as whole seconds; parts of one are taken, too.
                return bool(self._query.awaitTermination(within_s))  # type: ignore[arg-type]
            except StreamingQueryException as error:
                if LATE not in str(error) or not self._left:
                    raise
                self._left -= 1
                log.warning("Spark's Python took over 10 s to start; starting it again")
                self._query = self._start()

    def stop(self) -> None:
        """End it."""
        self._query.stop()


log = logging.getLogger(__name__)

CHECKPOINT: Final = "score"
APP_ID: Final = "app_id"
DAY_S: Final = 86_400
POLL_S: Final = 1
PEEK_S: Final = 0.001
"""Spark takes no time of zero."""

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
        passes: How many scorings did.
        began_s: When the batch in hand began, on the monotonic clock.
        ended_s: When the last one ended.
    """

    run_batch: Callable[[DataFrame, int], None]
    stop: threading.Event = field(default_factory=threading.Event)
    pulse: Pulse = field(default_factory=lambda: Pulse(time.monotonic))
    batches: int = 0
    passes: int = 0
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
        words = f"{self.batches} batches and {self.passes} scorings since the start"
        if began_s is not None:
            return f"{words}; one runs for {now_s - began_s:.0f} s"
        if ended_s is not None:
            return f"{words}; the last ended {now_s - ended_s:.0f} s ago"
        return words

    def close(self, query: Query) -> None:
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
        HalfReplayedError: A replay is to be finished first.
        StreamingQueryException: A batch failed; it is run again at the next start.
    """
    data = Path(settings.backend.data)
    lock = _hold_tables(data)
    if unfinished(data / TABLES_FOLDER) is not None:
        raise HalfReplayedError(data / TABLES_FOLDER)
    (data / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    session = open_session(choose_master(master, settings.score.master))
    gate, scoring = _parts(session, settings)
    supervision = Supervision.of(os.environ, os.getpid(), gate.pulse, gate.status)

    def stop() -> None:
        supervision.stopping()
        gate.stop.set()

    on_stop_signals(stop)
    query = Query(lambda: start_query(session, settings, gate, once=once))
    log.info("scoring %s with %s", data, session.sparkContext.master)
    supervision.ready()
    try:
        _watch(query, gate, scoring)
        session.stop()
    except (Py4JError, StreamingQueryException, ConnectionError) as error:
        # A service manager may signal the JVM as well, which then dies under us;
        # the batch in hand is run again at the next start.
        if not gate.stop.is_set():
            raise
        log.info("stopped by a signal, Spark too: %s", type(error).__name__)
    supervision.close()
    os.close(lock)


def run_replay(settings: Settings, span: Span, master: str | None) -> int:
    """Rebuild silver and gold from bronze while no job runs; gives the slices.

    A replay that was cut short is done in its own span first.

    Raises:
        AlreadyRunningError: A job scores this folder.
    """
    data = Path(settings.backend.data)
    lock = _hold_tables(data)
    session = open_session(choose_master(master, settings.score.master))
    register(session)
    left = unfinished(data / TABLES_FOLDER)
    spans = [span] if left is None or span.is_whole else dict.fromkeys((left, span))
    slices = sum(replay(session, pipeline(settings), each) for each in spans)
    session.stop()
    os.close(lock)
    return slices


def run_trim(settings: Settings) -> dict[str, int]:
    """Delete rows that are too old while no job runs; how many, by table.

    Raises:
        AlreadyRunningError: A job, or the alerts' process, runs and does it itself.
    """
    data = Path(settings.backend.data)
    tables = data / TABLES_FOLDER
    others = ("alerts", "forecasts")
    locks = [_hold_tables(data), *(hold(tables / f".lock-{name}") for name in others)]
    make_tables(tables, others)
    gone = trim(tables, TABLES, settings.keep, time.time())
    for lock in locks:
        os.close(lock)
    return gone


def _hold_tables(data: Path) -> int:
    lock = hold(data / CHECKPOINTS_FOLDER / f".lock-{CHECKPOINT}")
    mend(data / CHECKPOINTS_FOLDER / CHECKPOINT)
    make_tables(data / TABLES_FOLDER, SCORED)
    return lock


def _parts(session: SparkSession, settings: Settings) -> tuple[Gate, "Passes"]:
    register(session)
    whole = pipeline(settings)
    whole.recover(session)
    checkpoint = Path(settings.backend.data) / CHECKPOINTS_FOLDER / CHECKPOINT

    def run_batch(messages: DataFrame, batch_id: int) -> None:
        keep_plan(checkpoint, batch_id)
        whole.run(messages, batch_id)

    def score(must_stop: Callable[[], bool]) -> None:
        whole.score(session, must_stop)

    def trim_tables() -> None:
        trim(whole.tables, SCORED, settings.keep, time.time())

    passes = Passes(score, settings.score.every_s, whole.tidy, trim_tables)
    return Gate(run_batch), passes


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
        judging=Judging.by(
            settings.criteria, Feed(data / TABLES_FOLDER, settings.forecast.max_age_s)
        ),
        horizon_s=settings.score.horizon_days * DAY_S,
        max_ahead_s=settings.score.max_ahead_s,
    )


def app_id(checkpoint: Path) -> str:
    """The id under which this checkpoint's batches are known to the tables."""
    make_folder(checkpoint)
    path = checkpoint / APP_ID
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(str(uuid.uuid4()), encoding="ascii")
        fsync_file(unfinished)
        unfinished.rename(path)
        fsync_folder(checkpoint)
    return path.read_text(encoding="ascii")


def register(session: SparkSession) -> None:
    """Tell Spark our formats."""
    for source in (SegmentLog, TableRows):
        session.dataSource.register(source)


def start_query(
    session: SparkSession,
    settings: Settings,
    run_batch: Callable[[DataFrame, int], None],
    *,
    once: bool,
) -> StreamingQuery:
    """Start the one streaming query over the log."""
    register(session)
    data = Path(settings.backend.data)
    messages = (
        session.readStream
        .format("yamamori_log")
        .option("path", str(data / LOG_FOLDER))
        .option("max_segments", str(settings.score.max_segments_per_batch))
        .option("tasks", str(session.sparkContext.defaultParallelism))
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


@dataclass
class Passes:
    """When cells are scored: not with every batch, and not half of the time.

    Batches go on meanwhile, in a thread of Spark's.

    Attributes:
        score: Scores what is pending; ends early when what it asks says so.
        every_s: Time between two passes.
        tidy: Does what is due after batches.
        trim: Deletes rows that are too old.
    """

    score: Callable[[Callable[[], bool]], None]
    every_s: float
    tidy: Callable[[], object]
    trim: Callable[[], object]
    _due_s: float = 0.0
    _trim_s: float = 0.0

    def run_if_due(self, gate: Gate, query: Query) -> None:
        """Score when it is time, until the query ends: its error waits for no pass."""
        if time.monotonic() >= self._due_s:
            self.run(gate, lambda: gate.stop.is_set() or query.ended(PEEK_S))
        with gate.pulse.expects("tidying", BATCH_S):
            self.tidy()
            if time.monotonic() >= self._trim_s:
                self.trim()
                self._trim_s = time.monotonic() + EVERY_S

    def run(self, gate: Gate, must_stop: Callable[[], bool]) -> None:
        """Score now."""
        began_s = time.monotonic()
        with gate.pulse.expects("scoring", BATCH_S):
            self.score(must_stop)
        gate.passes += 1
        ended_s = time.monotonic()
        self._due_s = ended_s + max(self.every_s, ended_s - began_s)


def _watch(query: Query, gate: Gate, scoring: Passes) -> None:
    while not gate.stop.is_set():
        scoring.run_if_due(gate, query)
        with gate.pulse.expects("the watch over Spark", SILENCE_S):
            has_ended = query.ended(POLL_S)
        if has_ended:
            scoring.run(gate, gate.stop.is_set)
            return
    gate.close(query)
    log.info("stopped by a signal")
