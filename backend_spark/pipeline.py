"""One batch from the log to gold, in an order that a crash cannot harm.

Each table is written in one transaction that names the batch; a batch that is run
again after a crash skips the tables that have it. Levels are computed from silver,
not with every batch but in passes: a pass reads the history of a cell once for all
the batches that touched it. What a pass still owes after a crash is found in bronze.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession

from backend_spark.criteria.judging import Judging
from backend_spark.schemas import (
    FLAGS,
    LEVEL_KEY,
    NODE_KEY,
    SCORED,
    SENSOR_KEY,
    TABLES,
    ddl,
)
from backend_spark.sinks.commits import Once, commit_files, merge_rows
from backend_spark.sinks.flags import reflag
from backend_spark.sinks.upkeep import keep_up
from backend_spark.sources.table import table_rows
from backend_spark.tables import Tables
from backend_spark.transforms import frames, last_seen
from backend_spark.transforms.levels import CELL_SCORES, Scorer, rows_of
from backend_spark.transforms.revisions import News, revised

log = logging.getLogger(__name__)

PAST: Final = {"levels": "revisions", "sensors": "sensor_revisions"}
"""Where rows go that are replaced."""

CELLS_AT_ONCE: Final = 500
"""Cells whose history is in memory together, and whose rows are one commit."""

SCORED_UP_TO: Final = "scored "
"""With the app id: names the last batch whose cells are scored, in levels."""


@dataclass(frozen=True)
class Touched:
    """What a batch changes.

    Attributes:
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
        rejected: How many packs did not decode.
        news: For each cell what its nodes sent.
        words: The newest of each node; see `last_seen`.
    """

    earliest_us: dict[str, int]
    rejected: int
    news: dict[str, list[News]]
    words: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> "Touched":
        """Gather rows of `frames.touched`."""
        earliest_us: dict[str, int] = {}
        news: dict[str, list[News]] = {}
        rejected = 0
        words: dict[str, dict[str, Any]] = {}
        for row in rows:
            last_seen.gather(words, filter(None, [last_seen.word(row)]))
            cell, at_us = row.pop("cell"), row.pop("earliest_us")
            rejected += row.pop("rejected")
            if cell is not None and at_us is not None:
                earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
                news.setdefault(cell, []).append(News(**row))
        return cls(earliest_us, rejected, news, words)


@dataclass
class Pending:
    """What batches touched and no pass has scored.

    Attributes:
        touched: All of it together.
        batch_id: The last of the batches; None without any.
    """

    touched: Touched = field(default_factory=lambda: Touched({}, 0, {}))
    batch_id: int | None = None

    def add(self, touched: Touched, batch_id: int) -> None:
        """Take what a batch touched."""
        earliest_us, news = self.touched.earliest_us, self.touched.news
        for cell, at_us in touched.earliest_us.items():
            earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
            news.setdefault(cell, []).extend(touched.news[cell])
        last_seen.gather(self.touched.words, touched.words.values())
        self.batch_id = max(batch_id, -1 if self.batch_id is None else self.batch_id)

    def some(self, at_most: int) -> Iterator[Touched]:
        """Cells in the order of their names, so many at a time."""
        rest = iter(sorted(self.touched.earliest_us.items()))
        while earliest_us := dict(islice(rest, at_most)):
            yield Touched(
                earliest_us, 0, {c: self.touched.news[c] for c in earliest_us}
            )


@dataclass(frozen=True)
class Pipeline:
    """Runs batches, and scores what they touched.

    Attributes:
        tables: Folder of the tables, which exist.
        app_id: See `Once`.
        judging: How cells are judged.
        horizon_s: Older readings do not count.
        max_ahead_s: Nor do readings further ahead of their receipt.
        pending: What is to be scored.
    """

    tables: Path
    app_id: str
    judging: Judging
    horizon_s: int
    max_ahead_s: int
    pending: Pending = field(default_factory=Pending)

    def run(self, messages: DataFrame, batch_id: int) -> None:
        """Run one batch; running it again changes nothing."""
        bronze = frames.bronze(messages, batch_id).persist()
        try:
            self._append(bronze, "bronze", Once(self.app_id, batch_id))
            self.derive(bronze, batch_id)
            keep_up((self.tables / name for name in SCORED), batch_id)
        finally:
            bronze.unpersist()

    def derive(self, bronze: DataFrame, batch_id: int) -> None:
        """Write what follows from rows of bronze, all but the levels."""
        once = Once(self.app_id, batch_id)
        parsed = frames.parsed(bronze).persist()
        try:
            can_count = frames.counts(self.max_ahead_s, self.horizon_s)
            self._append(frames.silver(parsed, can_count), "silver", once)
            touched = self._touched(parsed)
            if touched.rejected:
                log.warning("%d packs do not decode", touched.rejected)
                self._append(frames.rejected(parsed), "rejected", once)
            self._append(frames.message_ids(parsed), "messages", once)
            self.pending.add(touched, batch_id)
        finally:
            parsed.unpersist()

    def touch(self, bronze: DataFrame, batch_id: int) -> None:
        """Let the cells of rows of bronze be scored again."""
        self.pending.add(self._touched(frames.parsed(bronze)), batch_id)

    def score(
        self,
        session: SparkSession,
        stop: Event | None = None,
        until_us: int | None = None,
    ) -> None:
        """Score every cell that is pending; again after a crash it ends the same.

        Args:
            session: Spark.
            stop: When it is set, what is left stays pending.
            until_us: Unix time, in microseconds; what was received later does not
                count. None: everything does.
        """
        if self.pending.batch_id is None:
            return
        self._renew_nodes()
        for touched in self.pending.some(CELLS_AT_ONCE):
            if stop is not None and stop.is_set():
                return
            self._score(session, touched, until_us)
        levels = self.tables / "levels"
        upto = Transaction(SCORED_UP_TO + self.app_id, self.pending.batch_id)
        properties = CommitProperties(app_transactions=[upto])
        commit_files(DeltaTable(str(levels)), levels, [], properties)
        self.pending.touched.earliest_us.clear()
        self.pending.touched.news.clear()
        self.pending.batch_id = None

    def recover(self, session: SparkSession) -> None:
        """Find in bronze what an earlier process received and did not score."""
        self._meet_nodes()
        levels = DeltaTable(str(self.tables / "levels"))
        upto = levels.transaction_version(SCORED_UP_TO + self.app_id)
        last = DeltaTable(str(self.tables / "silver")).transaction_version(self.app_id)
        if last is None or (upto is not None and upto >= last):
            return
        bounds = {"batch_id": (0 if upto is None else upto + 1, last)}
        bronze = table_rows(session, self.tables, "bronze", bounds)
        self.touch(bronze, last)

    def _meet_nodes(self) -> None:
        """Know the nodes that spoke before there was a table of them."""
        tables = Tables(self.tables)
        if not tables.dataset("nodes").count_rows():
            words = last_seen.met(tables.last_messages())
            rows = last_seen.renewed(tables.nodes(), words)
            merge_rows(self.tables / "nodes", rows, NODE_KEY)

    def _renew_nodes(self) -> None:
        words = self.pending.touched.words
        if words:
            before = Tables(self.tables).nodes()
            rows = last_seen.renewed(before, words)
            merge_rows(self.tables / "nodes", rows, NODE_KEY)
        words.clear()

    def _append(self, rows: DataFrame, table: str, once: Once) -> None:
        path = str(self.tables / table)
        if once.is_done(DeltaTable(path)):
            return
        options = {"path": path, "table": table, "app_id": once.app_id}
        writer = rows.write.format("yamamori_delta").mode("append").options(**options)
        writer.option("batch_id", str(once.batch_id)).save()

    def _touched(self, parsed: DataFrame) -> Touched:
        can_count = frames.counts(self.max_ahead_s, self.horizon_s)
        rows = frames.touched(parsed, can_count).collect()
        return Touched.of(row.asDict() for row in rows)

    def _score(
        self,
        session: SparkSession,
        touched: Touched,
        until_us: int | None = None,
    ) -> None:
        earliest_us = touched.earliest_us
        since_us = min(earliest_us.values()) - self.horizon_s * 1_000_000
        history = (
            session.read
            .format("yamamori_history")
            .option("path", str(self.tables / "silver"))
            .option("cells", ",".join(sorted(earliest_us)))
            .option("since_us", str(since_us))
            .option("until_us", "" if until_us is None else str(until_us))
            .load()
            .where(frames.counts(self.max_ahead_s, self.horizon_s))
        )
        scorer = Scorer(self.judging.of(earliest_us), self.horizon_s, earliest_us)

        # Spark counts parameters, and would count a method's self.
        def score_cell(history: pa.Table) -> pa.Table:
            return scorer.score(history)

        scored = (
            history.groupBy("cell").applyInArrow(score_cell, ddl(CELL_SCORES)).toArrow()
        )
        reflag(self.tables / "silver", rows_of(scored, "flags", FLAGS))
        for table, keys in (("levels", LEVEL_KEY), ("sensors", SENSOR_KEY)):
            rows = rows_of(scored, table, TABLES[table])
            self._revise(table, keys, rows, touched)

    def _revise(
        self,
        table: str,
        keys: Sequence[str],
        rows: pa.Table,
        touched: Touched,
    ) -> None:
        """Write rows, after those that they replace are kept."""
        past = PAST[table]
        if not rows.num_rows:
            return
        # Merged files hold string views, which no filter of ours can be pushed down to.
        recent = ds.field("at") >= pc.min(rows["at"])
        old = Tables(self.tables).dataset(table).to_table(filter=recent)
        cells = pa.array(sorted(touched.earliest_us), pa.string())
        old = old.cast(TABLES[table]).filter(ds.field("cell").isin(cells))
        found = revised(rows, old, keys, touched.news, TABLES[past])
        merge_rows(self.tables / past, found.superseded, (*keys, "version"))
        merge_rows(self.tables / table, found.current, keys)
