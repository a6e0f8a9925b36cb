"""Batch pipeline from the log to gold: batches receive messages, passes score cells.

A batch writes each table in one transaction with its id, so a batch that is run again
after a crash skips the tables that have it. Executors decode messages and write the
files; only file names and the changed cells return to the driver, which commits them.

A pass computes the levels of all cells that batches have changed since the last pass,
and reads the history of a cell once for all of them. After a crash, the cells to score
are found in bronze. Batches and passes run in two threads that do not wait for each
other: a pass ignores files of silver that are committed while it runs.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession

from backend_spark.analysed_cells import AnalysedLevels, Row, SilentCells
from backend_spark.config import TABLES_FOLDER
from backend_spark.criteria.cell_rules import AppliedChanges, CellRuleProvider
from backend_spark.ingest.segment_log import LogOffset
from backend_spark.scoring.reviews import (
    NO_REVIEW_CHANGES,
    AppliedReviews,
    ReviewChanges,
)
from backend_spark.scoring.revisions import NewReadings, revise_rows
from backend_spark.scoring.surrounding_rain import CellPlaces
from backend_spark.streaming.batches import (
    CHUNK_RESULT,
    NODE_ROWS,
    TOUCHED_ROWS,
    DecodingWorker,
    PassCells,
    ReceivedChanges,
    UnscoredChanges,
    result_files,
    result_rows,
)
from backend_spark.streaming.hot_files import HotFiles, HotStamp
from backend_spark.streaming.scoring_tasks import (
    HOT_FOLDER,
    REVISION_TABLES,
    ROW_KEYS,
    SHARE_RESULT,
    CellShare,
    ShareWorker,
    collect_shares,
    results_of,
)
from backend_spark.streaming.session import SharedFolders
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import (
    STATE_KEYS,
    BatchTransaction,
    DataFile,
    JobClaim,
    append_files,
    append_rows,
    commit_files,
    merge_rows,
    replace_cell_states,
    update_flags,
)
from backend_spark.tables.maintenance import maintain_tables
from backend_spark.tables.node_rows import (
    NodeRow,
    node_rows_from_messages,
    update_nodes,
)
from backend_spark.tables.reader import CellRowReader, DeltaTables, list_ranges
from backend_spark.tables.schemas import (
    CELL_STATES,
    FLAGS,
    LEVEL_KEY,
    LEVELS,
    NODE_KEY,
    RECEIVED,
    SPARK_TABLES,
    TABLES,
    format_ddl,
)
from backend_spark.tables.store import Folder, open_table

log = logging.getLogger(__name__)

CLAIMED: Final = (RECEIVED[0], *REVISION_TABLES)
"""Tables to which only the job that claimed them last may append."""

CELLS_AT_ONCE: Final = 600
"""Number of cells that the first Spark job of a pass scores from saved states, in one
commit."""

MOST_AT_ONCE: Final = 4 * CELLS_AT_ONCE
"""Largest number of them in a later job. If these have a day of history, and those of
the jobs before had none, it takes nearly the two minutes that a stop may take."""

JOB_S: Final = 15.0
"""Intended time of a Spark job, for which a stop waits. A job of cells with little
history takes a second, of which the driver has a quarter whatever their number."""

HOT_COST: Final = 1 / 16
"""Cost of scoring a cell from its hot state, relative to scoring from a saved state."""

CELLS_IN_TASK: Final = 480
"""Cells of a Spark task if they have hot states, and a quarter of that if not.

A task is in memory as a whole, and a batch may have to wait for its end for a core."""

FLAGS_AT_ONCE: Final = 500_000
"""Changed flags in memory above which they are written before the end of a pass."""

SCORED_TRANSACTION_PREFIX: Final = "scored "
"""Prefix of the app id under which `levels` stores the last scored batch."""

ANALYSED_TRANSACTION_PREFIX: Final = "analysed "
"""Prefix of the app id under which it stores the last import of JMA's analyses."""

IMPORTS_AT_ONCE: Final = 50
"""Number of imports of analyses in memory at a time."""

ANALYST: Final = "JMA"
"""Cause of the revisions that a later analysis makes necessary."""


@dataclass
class GroupSize:
    """Size of the groups of a pass, by the time that the last one took.

    Attributes:
        monotonic: The clock.
        cells: Number of cells that are scored from saved states.
    """

    monotonic: Callable[[], float]
    cells: float = field(default_factory=lambda: CELLS_AT_ONCE)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the time of a group, and set the size of the next one."""
        began_s = self.monotonic()
        yield
        growth = min(2.0, JOB_S / max(0.1, self.monotonic() - began_s))
        self.cells = min(MOST_AT_ONCE, max(CELLS_AT_ONCE, self.cells * growth))


@dataclass(frozen=True)
class ScoringPipeline:
    """Runs batches, and scores the cells that they change.

    Attributes:
        data: Folder of hot states and crash guards; all executors see it.
        tables: Folder of the tables, which exist.
        app_id: Id of the batches in transactions of the tables.
        cell_rules: Rules of cells.
        horizon_s: Age from which readings are not scored.
        max_ahead_s: Readings dated further after their receipt are not scored.
        monotonic: Clock for the time of a Spark job.
        nearby_km: Radius in which the gauges of other cells are compared.
        settings_digest: Of all settings; hot states of others are not used.
        pending: Changes to score.
        applied: Changes of criteria that passes have applied; None: not reported.
        reviews: Reviews of readings; None: not read.
        batches_to_maintain: Batches after which maintenance has not run yet.
    """

    data: Path
    tables: Folder
    app_id: str
    cell_rules: CellRuleProvider
    horizon_s: int
    max_ahead_s: int
    monotonic: Callable[[], float]
    nearby_km: float = 5.0
    settings_digest: int = 0
    applied: AppliedChanges | None = None
    reviews: AppliedReviews | None = None
    pending: UnscoredChanges = field(default_factory=UnscoredChanges)
    batches_to_maintain: deque[int] = field(default_factory=deque)

    @cached_property
    def hot(self) -> HotFiles:
        """Hot states of cells; at first those of an earlier job that still hold."""
        files = HotFiles(self.data / TABLES_FOLDER / HOT_FOLDER)
        files.load(self._hot_stamp(), self.tables)
        return files

    def _hot_stamp(self) -> HotStamp:
        transaction = SCORED_TRANSACTION_PREFIX + self.app_id
        return HotStamp.of(self.tables, transaction, self.settings_digest)

    @cached_property
    def silent(self) -> SilentCells:
        """Levels that analyses give to cells with nodes that do not report."""
        return SilentCells(self.tables, self.cell_rules.limits)

    @cached_property
    def shared(self) -> SharedFolders:
        """Folders that executors must see, with the mark of this job."""
        return SharedFolders.create((self.data, self.tables))

    @cached_property
    def claim(self) -> JobClaim:
        """Claim on the tables that batches and passes append to."""
        return JobClaim([self.tables / name for name in CLAIMED])

    def run_batch(
        self, messages: DataFrame, batch_id: int, offset: LogOffset | None = None
    ) -> None:
        """Run one batch; idempotent.

        Args:
            messages: Messages of the batch.
            batch_id: Number of the batch.
            offset: Offset of the log after the batch.
        """
        self._receive(messages, RECEIVED, batch_id, batch_id, offset)
        self.batches_to_maintain.append(batch_id)

    def maintain(self) -> None:
        """Run the maintenance that is due after batches; not during a pass."""
        while self.batches_to_maintain:
            paths = (self.tables / name for name in SPARK_TABLES)
            maintain_tables(paths, self.batches_to_maintain.popleft())

    def derive_tables(self, bronze: DataFrame, batch_id: int) -> None:
        """Write silver, rejected and messages from rows of bronze; idempotent."""
        self._receive(bronze, RECEIVED[1:], batch_id, None)

    def mark_for_scoring(self, bronze: DataFrame, batch_id: int) -> None:
        """Mark the cells of rows of bronze to be scored again."""
        self._receive(bronze, (), batch_id, None)

    def score(
        self,
        session: SparkSession,
        must_stop: Callable[[], bool] | None = None,
        until_us: int | None = None,
    ) -> None:
        """Score all pending cells, and those of changed reviews; idempotent.

        Args:
            session: Spark session.
            must_stop: Called before each chunk of cells; if True, all stay pending.
            until_us: Unix time, in microseconds; rows received and reviews made later
                are ignored. None uses all.
        """
        if until_us is None:
            self.score_analyses()
        pending = self.pending.take_all()
        reviews = NO_REVIEW_CHANGES
        if self.reviews:
            reviews = self.reviews.changes(until_us)
        if pending.batch_id is None and not reviews.has_changes:
            return
        self._score_changes(session, pending, reviews, must_stop, until_us)

    def _score_changes(
        self,
        session: SparkSession,
        pending: UnscoredChanges,
        reviews: ReviewChanges,
        must_stop: Callable[[], bool] | None,
        until_us: int | None,
    ) -> None:
        """Score cells; if it must stop, all changes stay pending."""
        self._renew_nodes(pending.changes.node_rows)
        self.hot.begin()
        cells = self._find_cells(pending.changes, reviews)
        flags = FLAGS.empty_table()
        size = GroupSize(self.monotonic)
        for touched in cells.changes.groups(lambda: size.cells, self._cost_of):
            if must_stop is not None and must_stop():
                if pending.batch_id is not None:
                    self.pending.add(pending.changes, pending.batch_id)
                return
            with size.measure():
                new_flags = self._score(session, touched, cells, until_us)
            flags = pa.concat_tables([flags, new_flags])
            if flags.num_rows > FLAGS_AT_ONCE:
                update_flags(self.tables / "silver", flags)
                flags = FLAGS.empty_table()
        update_flags(self.tables / "silver", flags)
        self._revise_analysed(cells.changes)
        if pending.batch_id is not None:
            self._mark_scored(pending.batch_id)
        self.hot.end(self._hot_stamp())
        if self.applied:
            self.applied.save()
        if self.reviews:
            self.reviews.finish(reviews)

    def _mark_scored(self, batch_id: int) -> None:
        """Store the number of the last batch that is scored."""
        levels = self.tables / "levels"
        upto = Transaction(SCORED_TRANSACTION_PREFIX + self.app_id, batch_id)
        properties = CommitProperties(app_transactions=[upto])
        commit_files(levels, [], properties, read=self.claim.open(levels))

    def _find_cells(
        self, received: ReceivedChanges, reviews: ReviewChanges
    ) -> PassCells:
        """Cells with a node, and the changes that a pass scores."""
        changes = received.with_reviews(reviews.causes())
        nodes = DeltaTables(self.tables).nodes(["cell", "at"])
        nodes = nodes.filter(pc.is_valid(nodes["cell"]))
        newest = nodes.group_by("cell").aggregate([("at", "max")])
        times = newest["at_max"].cast(pa.int64()).to_pylist()
        newest_us = dict(zip(newest["cell"].to_pylist(), times, strict=True))
        scored = changes.within_horizon(newest_us, self.horizon_s * 1_000_000)
        return PassCells(CellPlaces(newest_us), scored, reviews.in_force)

    def _cost_of(self, cell: str) -> float:
        """Cost of scoring a cell, as a part of that from a saved state."""
        return HOT_COST if cell in self.hot else 1.0

    def score_analyses(self) -> None:
        """Write levels of cells without readings from new analyses; idempotent."""
        newest, after = self._newest_import(), self._scored_import()
        while newest is not None and after < newest:
            upto = min(newest, after + IMPORTS_AT_ONCE)
            self._score_analyses(after, upto)
            app = ANALYSED_TRANSACTION_PREFIX + self.app_id
            done = CommitProperties(app_transactions=[Transaction(app, upto)])
            commit_files(self.tables / "levels", [], done)
            after = upto

    def _newest_import(self) -> int | None:
        reader = self.cell_rules.analyses
        return reader.newest_version() if reader else None

    def _scored_import(self) -> int:
        levels = open_table(self.tables / "levels")
        app = ANALYSED_TRANSACTION_PREFIX + self.app_id
        scored = levels.transaction_version(app)
        return -1 if scored is None else scored

    def _score_analyses(self, after: int, upto: int) -> None:
        """Write levels from the imports after one number, up to another."""
        criteria = self.cell_rules.current_table()
        analysed = AnalysedLevels(self.tables, criteria, upto)
        times_us = analysed.times_to_score(after)
        if not times_us:
            return
        reporting = self.silent.reporting_cells(max(times_us))
        nodes = DeltaTables(self.tables).nodes(["cell"])["cell"]
        rows = analysed.rows(times_us, without=reporting)
        rows = self.silent.rows(rows, set(nodes.to_pylist()))
        news = {
            row["cell"]: [NewReadings(ANALYST, row["latest_received"])] for row in rows
        }
        self._write_analysed(rows, news)

    def _revise_analysed(self, changes: ReceivedChanges) -> None:
        """Write the levels by analyses after readings that were scored again."""
        scored = self._scored_import()
        if scored < 0:  # no analyses, or a replay
            return
        touched = self.silent.with_analyses(changes.earliest_us)
        if not touched:
            return
        criteria = self.cell_rules.current_table()
        analysed = AnalysedLevels(self.tables, criteria, scored)
        rows = self.silent.rows_after(touched, analysed)
        self._write_analysed(rows, changes.news)

    def _write_analysed(
        self, rows: Sequence[Row], news: Mapping[str, list[NewReadings]]
    ) -> None:
        earliest_us = {row["cell"]: row["at"] for row in reversed(rows)}
        levels = pa.Table.from_pylist(list(rows), schema=LEVELS)
        changes = ReceivedChanges(earliest_us, 0, dict(news))
        self._revise("levels", LEVEL_KEY, levels, changes)

    def recover(self, session: SparkSession) -> None:
        """Mark cells whose messages an earlier process received but did not score."""
        if self.applied:
            self.applied.save()
        if self.reviews:
            self.reviews.save()
        self._initialise_nodes()
        levels = open_table(self.tables / "levels")
        scored = levels.transaction_version(SCORED_TRANSACTION_PREFIX + self.app_id)
        last = open_table(self.tables / "silver").transaction_version(self.app_id)
        if last is None or (scored is not None and scored >= last):
            return
        bounds = {"batch_id": (0 if scored is None else scored + 1, last)}
        bronze = read_table_rows(session, self.tables, "bronze", bounds)
        self.mark_for_scoring(bronze, last)

    def complete_batch(self, session: SparkSession) -> None:
        """Write the tables that lack the last batch of bronze, from its rows.

        For a new checkpoint, in which Spark does not repeat that batch.
        """
        last = open_table(self.tables / "bronze").transaction_version(self.app_id)
        if last is None:
            return
        bounds = {"batch_id": (last, last)}
        bronze = read_table_rows(session, self.tables, "bronze", bounds)
        self.derive_tables(bronze, last)

    def _initialise_nodes(self) -> None:
        """Fill the table of nodes from messages of versions without that table."""
        tables = DeltaTables(self.tables)
        if not tables.dataset("nodes").count_rows():
            self._renew_nodes(node_rows_from_messages(tables.last_messages()))

    def _renew_nodes(self, words: Mapping[str, NodeRow]) -> None:
        if words:
            before = DeltaTables(self.tables).nodes()
            rows = update_nodes(before, words)
            merge_rows(self.tables / "nodes", rows, NODE_KEY)

    def _receive(
        self,
        messages: DataFrame,
        names: Sequence[str],
        batch_id: int,
        task_batch_id: int | None,
        offset: LogOffset | None = None,
    ) -> None:
        """Write tables from messages, one commit each, and add the changed cells."""
        once = BatchTransaction(self.app_id, batch_id)
        missing = [
            name
            for name in names
            if not once.is_committed(open_table(self.tables / name))
        ]
        worker = DecodingWorker(
            self.tables,
            self.data,
            frozenset(missing),
            task_batch_id,
            self.max_ahead_s,
            self.horizon_s,
        )

        shared = self.shared

        # Spark counts parameters, and would count the self of a method.
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            shared.require()
            return worker.process(batches)

        results = messages.mapInArrow(work, format_ddl(CHUNK_RESULT)).toArrow()
        parts = {name: result_files(results, name) for name in missing}
        touched = ReceivedChanges.from_rows(
            result_rows(results, TOUCHED_ROWS), result_rows(results, NODE_ROWS)
        )
        if touched.rejected:
            log.warning("%d packs cannot be decoded", touched.rejected)
        with self.pending.lock:
            # A running pass must know the files before it can see them in the table.
            self.pending.files |= {part.file for part in parts.get("silver", ())}
            for name in missing:
                is_first = name == RECEIVED[0]
                batch = replace(once, offset=offset or {}) if is_first else once
                claim = self.claim if name in CLAIMED else None
                append_files(self.tables / name, parts[name], batch, claim)
            self.pending.add(touched, batch_id)

    def _score(
        self,
        session: SparkSession,
        touched: ReceivedChanges,
        cells: PassCells,
        until_us: int | None = None,
    ) -> pa.Table:
        """Score a group of cells; returns the flags that change (schemas.FLAGS)."""
        changes = self.applied.numbers(touched.earliest_us) if self.applied else {}
        read = {name: self.claim.open(self.tables / name) for name in REVISION_TABLES}
        tasks = session.sparkContext.defaultParallelism
        shares = [each.encode() for each in self._make_shares(touched, cells, tasks)]
        worker, shared = self._make_worker(read, until_us), self.shared

        # Spark counts parameters, and would count the self of a method.
        def score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            shared.require()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    share = CellShare.decode(shares[number])
                    for part in worker.process(share):
                        yield from part.to_batches()

        numbers = session.range(0, len(shares), 1, len(shares))
        results = numbers.mapInArrow(score, format_ddl(SHARE_RESULT)).toArrow()
        for table in REVISION_TABLES:
            self._write(table, results, read[table])
        stale = collect_shares(results, "stale", STATE_KEYS)
        new = collect_shares(results, "memories", CELL_STATES)
        replace_cell_states(self.tables / "memories", stale, new)
        for change in results_of(results, "hot"):
            file, tokens = json.loads(change.as_py())
            self.hot.change(tokens, file)
        if self.applied:
            self.applied.add(changes)
        return collect_shares(results, "flags", FLAGS)

    def _write(self, table: str, results: pa.Table, read: DeltaTable) -> None:
        """Write rows of gold, after storing the rows that they replace as revisions.

        Args:
            table: `levels` or `sensors`.
            results: SHARE_RESULT.
            read: The version that the rows were compared with.
        """
        past, path = REVISION_TABLES[table], self.tables / table
        keys, schema = ROW_KEYS[table], TABLES[table]
        superseded = collect_shares(results, f"superseded {table}", TABLES[past])
        merge_rows(self.tables / past, superseded, (*keys, "version"))
        files = [
            DataFile(**json.loads(each.as_py()))
            for each in results_of(results, f"file {table}")
        ]
        if files:
            commit_files(path, files, self.claim.commit_properties(), read=read)
        merge_rows(path, collect_shares(results, f"changed {table}", schema), keys)

    def _make_worker(
        self, read: Mapping[str, DeltaTable], until_us: int | None
    ) -> ShareWorker:
        """The worker of a group of cells."""
        others = {
            name: open_table(self.tables / name) for name in ("memories", "silver")
        }
        files = {name: list_ranges(table) for name, table in {**read, **others}.items()}
        # Files are recorded before they are committed, so after the version. A later
        # pass includes these.
        with self.pending.lock:
            hidden = frozenset(self.pending.files)
        files["silver"] = [each for each in files["silver"] if each[0] not in hidden]
        return ShareWorker(
            self.tables,
            self.hot.folder,
            self.cell_rules,
            self.horizon_s,
            self.max_ahead_s,
            self.nearby_km,
            files,
            until_us,
        )

    def _make_shares(
        self, touched: ReceivedChanges, cells: PassCells, tasks: int
    ) -> Iterator[CellShare]:
        """Cells of each task, those with hot states apart from the others."""
        tokens = sorted(touched.earliest_us)
        hot = [cell for cell in tokens if cell in self.hot]
        cold = [cell for cell in tokens if cell not in self.hot]
        for some, largest in ((hot, CELLS_IN_TASK), (cold, CELLS_IN_TASK // 4)):
            size = min(largest, max(1, -(-len(some) // tasks)))
            for first in range(0, len(some), size):
                share = some[first : first + size]
                near = cells.places.around(share, self.nearby_km)
                others_us = cells.changes.earliest_us
                known = {*share, *near}
                yield CellShare(
                    {cell: touched.earliest_us[cell] for cell in share},
                    {cell: touched.news[cell] for cell in share},
                    near,
                    {cell: others_us[cell] for cell in near if cell in others_us},
                    self.hot.of_cells(known),
                    [review for review in cells.reviews if review.cell in known],
                )

    def _revise(
        self,
        table: str,
        keys: Sequence[str],
        rows: pa.Table,
        touched: ReceivedChanges,
    ) -> None:
        """Write rows, after storing the rows that they replace as revisions."""
        past, path = REVISION_TABLES[table], self.tables / table
        if not rows.num_rows:
            return
        read = self.claim.open(path)
        since_us = pc.min(rows["at"].cast(pa.int64())).as_py()
        cells = sorted(touched.earliest_us)
        reader = CellRowReader(path, TABLES[table], cells, since_us)
        old = reader.read(reader.list_files()).select(TABLES[table].names)
        revision = revise_rows(rows, old, keys, touched.news, TABLES[past])
        merge_rows(self.tables / past, revision.superseded, (*keys, "version"))
        append_rows(path, revision.fresh, self.claim, read)
        merge_rows(path, revision.changed, keys)
