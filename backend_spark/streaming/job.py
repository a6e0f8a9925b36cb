"""Scoring job: composes Spark session, query, pipeline and scoring schedule.

A replay rebuilds silver and gold from bronze. Rows go through the code of the live job
in the order of their receipt, a slice of hours as one batch; then all their cells are
scored. If gold is empty, each slice is scored in turn, with the rows received by then.
A marker file prevents the job from starting on half rebuilt tables.
"""

import json
import logging
import os
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from backend_spark.config import (
    CHECKPOINTS_FOLDER,
    LOG_FOLDER,
    TABLES_FOLDER,
    BackendSection,
    BackendSettings,
)
from backend_spark.criteria.cell_rules import (
    LAST_CHANGES_FILE,
    AppliedChanges,
    make_cell_rules,
)
from backend_spark.errors import (
    UnfinishedReplayError,
)
from backend_spark.ingest.log import check_files_are_read, open_log
from backend_spark.ingest.retention import SCORING_QUERY, read_planned_offset
from backend_spark.ingest.segment_log import LogOffset
from backend_spark.scoring.reviews import AppliedReviews
from backend_spark.streaming.batches import UnscoredChanges
from backend_spark.streaming.checkpoint import (
    QueryStart,
    check_checkpoint,
    check_folder,
    claim_for_folder,
    read_app_id,
    repair_checkpoint,
    sync_plan,
)
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.session import (
    BATCH_S,
    BatchGate,
    RestartingQuery,
    open_session,
    use_scoring_pool,
)
from backend_spark.streaming.sources import (
    SegmentLogSource,
    TableSource,
    read_table_rows,
)
from backend_spark.tables.delta_writer import create_tables, delete_rows, time_literal
from backend_spark.tables.maintenance import (
    DELETE_EVERY_S,
    compact,
    renew_current,
    trim_tables,
)
from backend_spark.tables.reader import DeltaTables, read_transactions
from backend_spark.tables.schemas import RECEIVED, SPARK_TABLES, TABLES
from backend_spark.tables.store import (
    REPLAY_FILE,
    Folder,
    delete_file,
    has_file,
    open_table,
    read_text,
    tables_folder,
    write_text,
)
from service_runtime.errors import AlreadyRunningError
from service_runtime.files import acquire_lock
from service_runtime.lifecycle import SystemdSupervisor, call_on_stop_signals
from service_runtime.watchdog import LoopWatchdog

log = logging.getLogger(__name__)

DAY_S: Final = 86_400
POLL_S: Final = 1
PAUSE_SHARE: Final = 0.25
"""Shortest pause after a pass, as a fraction of its duration."""

PEEK_S: Final = 0.001
"""Shortest time-out; Spark does not accept 0."""

RunBatch = Callable[[DataFrame, int], None]
"""Function that runs a batch of Spark: its messages, and its number."""

SILENCE_S: Final = 120.0
"""Longest time until Spark's JVM answers."""

EXECUTORS_S: Final = 600.0
"""Longest wait at the start for executors, as long as systemd waits for the start.

A master that has lost its state gives none to a job that had registered before. A new
process registers again."""

SLICE_US: Final = 6 * 3600 * 1_000_000


@dataclass(frozen=True)
class ReceiptInterval:
    """Interval of times of receipt, in Unix microseconds.

    Attributes:
        from_us: Start; None: from the first row.
        to_us: End, exclusive; None: to the last row.
    """

    from_us: int | None = None
    to_us: int | None = None

    @property
    def is_unbounded(self) -> bool:
        """Whether the interval has no bounds."""
        return self.from_us is None and self.to_us is None

    def predicate(self) -> str | None:
        """SQL condition of the rows; None for all rows."""
        bounds = (("received_at >=", self.from_us), ("received_at <", self.to_us))
        conditions = [
            f"{left} {time_literal(us)}" for left, us in bounds if us is not None
        ]
        return " AND ".join(conditions) or None


def run_job(
    settings: BackendSettings, *, once: bool, master: str | None, standby: bool = False
) -> None:
    """Score the log until SIGTERM or SIGINT, or once.

    Args:
        settings: All settings.
        once: Whether to end at the end of the log.
        master: Spark master; None leaves it to spark-submit or the settings.
        standby: Whether to wait while another job scores this data folder.

    Raises:
        AlreadyRunningError: Another job scores this data folder.
        UnfinishedReplayError: An interrupted replay must be finished first.
        UnsharedFolderError: An executor does not see the data folder or the tables.
        SettingsError: Another machine has taken over the tables.
        SupersededError: Another job has claimed the tables since.
        StreamingQueryException: A batch failed; it is run again at the next start.
    """
    pulse = LoopWatchdog(time.monotonic)
    gates: list[BatchGate] = []
    supervision = SystemdSupervisor.from_environment(
        os.environ,
        os.getpid(),
        pulse,
        lambda: gates[-1].status() if gates else "standby: another job scores",
    )
    if standby:
        supervision.report_ready()
    lock = _hold_tables(settings.backend, waits=standby)
    _check_replay(tables_folder(settings.backend))
    (Path(settings.backend.data) / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    log.info("starting Spark, which can take half a minute")
    # A standby has reported ready, so nothing else limits its start.
    with pulse.watch_loop("the start of the job", BATCH_S):
        session = open_session(choose_master(master, settings.score.master))
        gate, scoring, start = _prepare(session, settings, pulse, once=once)
    gates.append(gate)

    def stop() -> None:
        supervision.report_stopping()
        gate.stop.set()

    call_on_stop_signals(stop)
    query = RestartingQuery(
        lambda: start_query(session, settings, gate, start.offset, once=once)
    )
    log.info("scoring %s with %s", settings.backend.data, session.sparkContext.master)
    if not standby:
        supervision.report_ready()
    score_until_stopped(session, query, gate, scoring)
    supervision.close()
    os.close(lock)


def _check_replay(tables: Folder) -> None:
    if read_unfinished_replay(tables) is not None:
        raise UnfinishedReplayError(tables)


def run_replay(
    settings: BackendSettings, span: ReceiptInterval, master: str | None
) -> int:
    """Rebuild silver and gold from bronze while no job runs.

    An interrupted replay is finished first, with its own interval.

    Returns:
        Number of slices.

    Raises:
        AlreadyRunningError: A job scores this data folder.
    """
    lock = _hold_tables(settings.backend)
    session = open_session(choose_master(master, settings.score.master))
    register(session)
    first = read_unfinished_replay(tables_folder(settings.backend))
    spans = (
        [span] if first is None or span.is_unbounded else dict.fromkeys((first, span))
    )
    slices = sum(rebuild(session, make_pipeline(settings), each) for each in spans)
    session.stop()
    os.close(lock)
    return slices


def read_unfinished_replay(tables: Folder) -> ReceiptInterval | None:
    """Interval of a replay that was interrupted; None if there is none."""
    if not has_file(tables, REPLAY_FILE):
        return None
    return ReceiptInterval(**json.loads(read_text(tables, REPLAY_FILE)))


def rebuild(
    session: SparkSession, pipeline: ScoringPipeline, span: ReceiptInterval
) -> int:
    """Rebuild silver and gold from the rows of bronze received in an interval.

    Levels are recomputed from the earliest of these readings to the end of the data,
    because soil water depends on the past; a changed level is a revision. If there are
    no levels, each slice is scored in turn. What is older than bronze stays.

    Returns:
        Number of slices.
    """
    _write_marker(pipeline.tables, span)
    is_anew = not DeltaTables(pipeline.tables).dataset("levels").count_rows()
    received = _received(pipeline.tables)
    if len(received):
        if span.is_unbounded or is_anew:
            delete_rows(pipeline.tables / "memories", None)
        oldest_us = pc.min(received).as_py()
        rebuilt = replace(span, from_us=max(oldest_us, span.from_us or oldest_us))
        for name in RECEIVED[1:]:
            delete_rows(pipeline.tables / name, rebuilt.predicate())
    # With a new app id, the tables skip none of the batches.
    again = replace(
        pipeline, app_id=f"replay {uuid.uuid4()}", pending=UnscoredChanges()
    )
    count = 0
    for count, received in enumerate(_slices(pipeline.tables, span), 1):
        bounds = {"received_at": received}
        bronze = read_table_rows(session, pipeline.tables, "bronze", bounds)
        again.derive_tables(bronze, count - 1)
        if is_anew:
            again.score(session, until_us=received[1])
        last = datetime.fromtimestamp(received[1] / 1e6, tz=UTC)
        log.info("replayed rows received up to %s", last)
    again.score(session)
    renew_current(pipeline.tables)
    for name in SPARK_TABLES:
        compact(pipeline.tables / name)
    delete_file(pipeline.tables, REPLAY_FILE)
    return count


def _received(tables: Folder) -> pa.ChunkedArray:
    """Times of receipt of the rows of bronze, in Unix microseconds."""
    return DeltaTables(tables).bronze(["received_at"])["received_at"].cast(pa.int64())


def _slices(tables: Folder, span: ReceiptInterval) -> Iterator[tuple[int, int]]:
    """First and last time of receipt of each slice that has rows, clipped to `span`."""
    received = _received(tables)
    if span.from_us is not None:
        received = received.filter(pc.greater_equal(received, span.from_us))
    if span.to_us is not None:
        received = received.filter(pc.less(received, span.to_us))
    for at_us in pc.unique(pc.divide(received, SLICE_US)).sort().to_pylist():
        first_us, next_us = at_us * SLICE_US, (at_us + 1) * SLICE_US
        yield max(first_us, span.from_us or 0), min(next_us, span.to_us or next_us) - 1


def _write_marker(tables: Folder, span: ReceiptInterval) -> None:
    text = json.dumps({"from_us": span.from_us, "to_us": span.to_us})
    write_text(tables, REPLAY_FILE, text)


def run_trim(settings: BackendSettings) -> dict[str, int]:
    """Delete rows that are too old while no job runs.

    A table that another process writes is left out: that one deletes its old rows.

    Returns:
        Number of deleted rows by table.

    Raises:
        AlreadyRunningError: A job runs, and deletes them itself.
    """
    folder = Path(settings.backend.data) / TABLES_FOLDER
    try:
        locks = [_hold_tables(settings.backend)]
    except AlreadyRunningError as error:
        remedy = "it deletes old rows itself: restart it after a change of [keep]"
        raise AlreadyRunningError(error.path, remedy) from error
    free = list(SPARK_TABLES)
    for name in (each for each in TABLES if each not in SPARK_TABLES):
        try:
            locks.append(acquire_lock(folder / f".lock-{name}"))
            free.append(name)
        except AlreadyRunningError as error:
            log.warning(
                "table %s is left out: the process that holds %s deletes its old rows "
                "itself", name, error.path,
            )  # fmt: skip
    tables = tables_folder(settings.backend)
    create_tables(tables, free)
    deleted = trim_tables(tables, free, settings.keep, time.time())
    for lock in locks:
        os.close(lock)
    return deleted


def _hold_tables(section: BackendSection, *, waits: bool = False) -> int:
    data = Path(section.data)
    path = data / CHECKPOINTS_FOLDER / f".lock-{SCORING_QUERY}"
    lock = wait_for_lock(path) if waits else acquire_lock(path)
    repair_checkpoint(_checkpoint(data))
    create_tables(tables_folder(section), SPARK_TABLES)
    return lock


def wait_for_lock(path: Path) -> int:
    """Lock a file as soon as no other process holds it; see `acquire_lock`."""
    is_reported = False
    while True:
        try:
            return acquire_lock(path)
        except AlreadyRunningError as error:
            if not is_reported:
                log.info("standby: %s", error)
            is_reported = True
            time.sleep(POLL_S)


def _checkpoint(data: Path) -> Path:
    return data / CHECKPOINTS_FOLDER / SCORING_QUERY


def _prepare(
    session: SparkSession,
    settings: BackendSettings,
    pulse: LoopWatchdog,
    *,
    once: bool,
) -> tuple[BatchGate, "ScoringSchedule", QueryStart]:
    register(session)
    scored = make_pipeline(settings)
    if not str(session.sparkContext.master).startswith("local"):
        with pulse.watch_loop("the check of the executors", EXECUTORS_S):
            scored.shared.require_on_executors(session)
    is_shared = settings.backend.tables is not None and not once
    checkpoints = scored.data / CHECKPOINTS_FOLDER
    if is_shared:
        check_folder(scored.tables, checkpoints)
    start = find_start(session, settings, scored)
    scored.shared.delete_other_marks()
    scored.recover(session)
    if is_shared:
        claim_for_folder(scored.tables, checkpoints)

    def score(must_stop: Callable[[], bool]) -> None:
        run_pass(session, scored, must_stop)

    def trim() -> None:
        trim_tables(scored.tables, SPARK_TABLES, settings.keep, time.time())

    passes = ScoringSchedule(score, settings.score.every_s, scored.maintain, trim)
    gate = BatchGate(number_batches(settings, scored, start), pulse=pulse)
    return gate, passes, start


def run_pass(
    session: SparkSession,
    pipeline: ScoringPipeline,
    must_stop: Callable[[], bool] | None = None,
) -> None:
    """Score all pending cells, and store the newest level of each cell; idempotent."""
    with use_scoring_pool(session):
        pipeline.score(session, must_stop)
    renew_current(pipeline.tables)


def find_start(
    session: SparkSession, settings: BackendSettings, pipeline: ScoringPipeline
) -> QueryStart:
    """Check the checkpoint against the tables, and complete their last batch."""
    data = Path(settings.backend.data)
    # An earlier job must not commit a batch after the offset is read.
    pipeline.claim.take()
    bronze = pipeline.tables / "bronze"
    read = partial(read_transactions, open_table(bronze))
    check_files_are_read(data / LOG_FOLDER, settings.kafka, read)
    messages = open_log(data / LOG_FOLDER, settings.kafka)
    start = check_checkpoint(_checkpoint(data), bronze, messages, pipeline.app_id)
    if start.is_new:
        pipeline.complete_batch(session)
    return start


def number_batches(
    settings: BackendSettings, pipeline: ScoringPipeline, start: QueryStart
) -> RunBatch:
    """Function that runs Spark's batches with their numbers in the tables."""
    checkpoint = _checkpoint(Path(settings.backend.data))

    def run_batch(messages: DataFrame, batch_id: int) -> None:
        sync_plan(checkpoint, batch_id)
        offset = read_planned_offset(checkpoint / "offsets" / str(batch_id))
        pipeline.run_batch(messages, start.first_batch + batch_id, offset)

    return run_batch


def choose_master(option: str | None, configured: str) -> str | None:
    """Spark master of the command line, else of spark-submit, else of the settings.

    Returns:
        None if spark-submit started this process and chose the master.
    """
    if option is not None:
        return option
    return None if "PYSPARK_GATEWAY_PORT" in os.environ else configured


def make_pipeline(settings: BackendSettings) -> ScoringPipeline:
    """Make the pipeline of a data folder."""
    data, tables = Path(settings.backend.data), tables_folder(settings.backend)
    rules = replace(make_cell_rules(settings), last_changes=data / LAST_CHANGES_FILE)
    reviews = Path(settings.score.reviews) if settings.score.reviews else None
    return ScoringPipeline(
        data=data,
        tables=tables,
        app_id=read_app_id(tables, _checkpoint(data)),
        cell_rules=rules,
        applied=AppliedChanges(data, rules, time.time),
        reviews=AppliedReviews(data, reviews, time.time),
        horizon_s=settings.score.horizon_days * DAY_S,
        max_ahead_s=settings.score.max_ahead_s,
        monotonic=time.monotonic,
        nearby_km=settings.score.nearby_km,
        settings_digest=zlib.crc32(repr(settings).encode()),
    )


def register(session: SparkSession) -> None:
    """Register the data sources of `streaming.sources`."""
    for source in (SegmentLogSource, TableSource):
        session.dataSource.register(source)


def start_query(
    session: SparkSession,
    settings: BackendSettings,
    run_batch: RunBatch,
    offset: LogOffset,
    *,
    once: bool,
) -> StreamingQuery:
    """Start the streaming query over the log; a new checkpoint at an offset."""
    register(session)
    data = Path(settings.backend.data)
    messages = (
        session.readStream
        .format("yamamori_log")
        .option("path", str(data / LOG_FOLDER))
        .option("kafka", json.dumps(asdict(settings.kafka)))
        .option("max_segments", str(settings.score.max_segments_per_batch))
        .option("tasks", str(session.sparkContext.defaultParallelism))
        .option("start", json.dumps(offset))
        .load()
    )
    writer = (
        messages.writeStream
        .queryName(SCORING_QUERY)
        .option("checkpointLocation", str(_checkpoint(data)))
        .foreachBatch(run_batch)
    )
    if once:
        return writer.trigger(availableNow=True).start()
    milliseconds = round(settings.score.trigger_s * 1000)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds").start()


@dataclass
class ScoringSchedule:
    """Schedule of scoring passes, which take at most four fifths of the time.

    After a pass the job pauses for a quarter of its duration, so that other programs
    of the machine can work. Batches continue during a pass.

    Batches run in a thread of Spark.

    Attributes:
        score: Scores pending cells; ends early when its argument returns True.
        every_s: Time between two passes.
        maintain: Maintains the tables after batches.
        trim: Deletes rows that are too old.
    """

    score: Callable[[Callable[[], bool]], None]
    every_s: float
    maintain: Callable[[], object]
    trim: Callable[[], object]
    _due_s: float = 0.0
    _trim_due_s: float = 0.0

    def run_if_due(self, gate: BatchGate, query: RestartingQuery) -> None:
        """Score if due; ends early when the query ends, to report its error at once."""
        if time.monotonic() >= self._due_s:
            self.run(gate, lambda: gate.stop.is_set() or query.wait_until_ended(PEEK_S))
        with gate.pulse.watch_loop("tidying", BATCH_S):
            self.maintain()
            if time.monotonic() >= self._trim_due_s:
                self.trim()
                self._trim_due_s = time.monotonic() + DELETE_EVERY_S

    def run(self, gate: BatchGate, must_stop: Callable[[], bool]) -> None:
        """Score now."""
        began_s = time.monotonic()
        with gate.pulse.watch_loop("scoring", BATCH_S):
            self.score(must_stop)
        gate.passes += 1
        ended_s = time.monotonic()
        self._due_s = ended_s + max(self.every_s, PAUSE_SHARE * (ended_s - began_s))


def score_until_stopped(
    session: SparkSession,
    query: RestartingQuery,
    gate: BatchGate,
    scoring: ScoringSchedule,
) -> None:
    """Score until the query ends, or until a signal; then the session is stopped.

    Raises:
        SupersededError: Another job has claimed the tables since.
        StreamingQueryException: A batch failed; it is run again at the next start.
    """
    try:
        _score(query, gate, scoring)
        session.stop()
    except (Py4JError, StreamingQueryException, ConnectionError) as error:
        # The service manager may signal the JVM too, which then dies first; the
        # running batch is run again at the next start.
        if gate.superseded is not None:
            raise gate.superseded from error
        if not gate.stop.is_set():
            raise
        log.info("stopped by a signal, as was Spark: %s", type(error).__name__)


def _score(query: RestartingQuery, gate: BatchGate, scoring: ScoringSchedule) -> None:
    while not gate.stop.is_set():
        scoring.run_if_due(gate, query)
        with gate.pulse.watch_loop("the watch over Spark", SILENCE_S):
            has_ended = query.wait_until_ended(POLL_S)
        if has_ended:
            scoring.run(gate, gate.stop.is_set)
            return
    gate.close(query)
    log.info("stopped by a signal")
