"""One batch from the log to gold, in an order that a crash cannot harm.

Each table is written in one transaction that names the batch; a batch that is run
again after a crash skips the tables that have it. Levels are computed from silver,
so they come after it; message ids come last and say that all the rest is there.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from backend_spark.criteria.judging import Judging
from backend_spark.schemas import FLAGS, LEVEL_KEY, SENSOR_KEY, TABLES, ddl
from backend_spark.sinks.commits import Once, merge_rows
from backend_spark.sinks.flags import reflag
from backend_spark.sinks.upkeep import keep_up
from backend_spark.tables import Tables
from backend_spark.transforms import frames
from backend_spark.transforms.levels import CELL_SCORES, Scorer, rows_of
from backend_spark.transforms.revisions import News, revised

log = logging.getLogger(__name__)

PAST: Final = {"levels": "revisions", "sensors": "sensor_revisions"}
"""Where rows go that are replaced."""


@dataclass(frozen=True)
class Touched:
    """What a batch changes.

    Attributes:
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
        rejected: How many packs did not decode.
        news: For each cell what its nodes sent.
    """

    earliest_us: dict[str, int]
    rejected: int
    news: dict[str, list[News]]

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> "Touched":
        """Gather rows of `frames.touched`."""
        earliest_us: dict[str, int] = {}
        news: dict[str, list[News]] = {}
        rejected = 0
        for row in rows:
            cell, at_us = row.pop("cell"), row.pop("earliest_us")
            rejected += row.pop("rejected")
            if cell is not None and at_us is not None:
                earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
                news.setdefault(cell, []).append(News(**row))
        return cls(earliest_us, rejected, news)


@dataclass(frozen=True)
class Pipeline:
    """Runs batches.

    Attributes:
        tables: Folder of the tables, which exist.
        app_id: See `Once`.
        judging: How cells are judged.
        horizon_s: Older readings do not count.
        max_ahead_s: Nor do readings further ahead of their receipt.
    """

    tables: Path
    app_id: str
    judging: Judging
    horizon_s: int
    max_ahead_s: int

    def run(self, messages: DataFrame, batch_id: int) -> None:
        """Run one batch; running it again changes nothing."""
        once = Once(self.app_id, batch_id)
        messages = messages.persist()
        parsed = frames.parsed(messages).persist()
        try:
            self._append(frames.bronze(messages, batch_id), "bronze", once)
            can_count = frames.counts(self.max_ahead_s, self.horizon_s)
            self._append(frames.silver(parsed, can_count), "silver", once)
            touched = self._touched(parsed)
            if touched.rejected:
                log.warning("%d packs do not decode", touched.rejected)
                self._append(frames.rejected(parsed, batch_id), "rejected", once)
            if touched.earliest_us:
                self._score(messages.sparkSession, touched, once)
            self._append(frames.message_ids(parsed, batch_id), "messages", once)
            keep_up((self.tables / name for name in TABLES), batch_id)
        finally:
            parsed.unpersist()
            messages.unpersist()

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

    def _score(self, session: SparkSession, touched: Touched, once: Once) -> None:
        earliest_us = touched.earliest_us
        since_us = min(earliest_us.values()) - self.horizon_s * 1_000_000
        history = (
            session.read
            .format("yamamori_history")
            .option("path", str(self.tables / "silver"))
            .option("cells", ",".join(sorted(earliest_us)))
            .option("since_us", str(since_us))
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
        reflag(self.tables / "silver", rows_of(scored, "flags", FLAGS), once)
        for table, keys in (("levels", LEVEL_KEY), ("sensors", SENSOR_KEY)):
            rows = rows_of(scored, table, TABLES[table])
            self._revise(table, keys, rows, touched, once)

    def _revise(
        self,
        table: str,
        keys: Sequence[str],
        rows: pa.Table,
        touched: Touched,
        once: Once,
    ) -> None:
        """Write rows, after those that they replace are kept."""
        past = PAST[table]
        if not rows.num_rows or once.is_done(DeltaTable(str(self.tables / table))):
            return
        # Merged files hold string views, which no filter of ours can be pushed down to.
        recent = ds.field("at") >= pc.min(rows["at"])
        old = Tables(self.tables).dataset(table).to_table(filter=recent)
        cells = pa.array(sorted(touched.earliest_us), pa.string())
        old = old.cast(TABLES[table]).filter(ds.field("cell").isin(cells))
        found = revised(rows, old, keys, touched.news, TABLES[past])
        merge_rows(self.tables / past, found.superseded, (*keys, "version"), once)
        merge_rows(self.tables / table, found.current, keys, once)
