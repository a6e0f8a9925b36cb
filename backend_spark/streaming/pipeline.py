"""One batch from the log to gold, in an order that a crash cannot harm.

Each table is written in one transaction that names the batch; a batch that is run
again after a crash skips the tables that have it. Levels are computed from silver,
not with every batch but in passes: a pass reads the history of a cell once for all
the batches that touched it. What a pass still owes after a crash is found in bronze.

Batches and passes are two threads that do not wait for each other. A pass takes what
came before it and leaves out files of silver that come while it runs, so that it ends
as if they had come after it.

What executors do with messages: decode them, write files, tell what they touch.

Rows of readings stay where they are made: only names of files and what was touched go
back, and the driver makes the files part of the tables.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession

from backend_spark.criteria.cell_rules import Judging
from backend_spark.scoring import decode, node_summary
from backend_spark.scoring.arrow import CELL_SCORES, Scorer, rows_of, to_bytes
from backend_spark.scoring.cell_state import READ_AGAIN_S
from backend_spark.scoring.decode import can_count, decode_messages, received_by
from backend_spark.scoring.revisions import News, add_news, joined, revised
from backend_spark.streaming.sources import table_rows
from backend_spark.tables.delta_writer import (
    Once,
    Part,
    Remembered,
    append_files,
    append_rows,
    commit_files,
    merge_rows,
    reflag,
    remembered,
    write_part,
)
from backend_spark.tables.maintenance import keep_up
from backend_spark.tables.reader import HISTORY, CellRows, Tables
from backend_spark.tables.schemas import (
    BRONZE,
    FLAGS,
    LEVEL_KEY,
    LOG,
    MEMORIES,
    NODE_KEY,
    SCORED,
    SENSOR_KEY,
    TABLES,
    ddl,
)

TOUCHES: Final = "touched"
WORDS: Final = "words"
RECEIVED: Final = ("bronze", "silver", "rejected", "messages")
"""Tables of what was received, in the order of their commits."""

LOT_ROWS: Final = 20_000
"""Messages that an executor holds together."""

TOLD: Final = pa.schema([pa.field("table", pa.string()), pa.field("told", pa.binary())])
"""What a lot gives: a file as JSON, or rows as an Arrow stream: schemas.TOUCHED, and
`last_seen.PLAIN`."""


@dataclass(frozen=True)
class Lots:
    """Works on messages in lots.

    Attributes:
        tables: Folder of the tables.
        names: Those that are to be written.
        batch_id: Of messages that come from the log; None: they come from bronze.
        max_ahead_s: See `cuts.can_count`.
        horizon_s: Likewise.
    """

    tables: Path
    names: frozenset[str]
    batch_id: int | None
    max_ahead_s: int
    horizon_s: int

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on the messages of one task; for `mapInArrow`.

        Shape:
            in: schemas.LOG, or BRONZE without a batch id of ours.
            out: TOLD.
        """
        for messages in _lots(batches):
            yield from self._lot(messages).to_batches()

    def _lot(self, messages: pa.Table) -> pa.Table:
        schema = BRONZE if self.batch_id is None else LOG
        messages = messages.select(schema.names)
        if self.batch_id is not None:
            number = pa.repeat(pa.scalar(self.batch_id, pa.int64()), len(messages))
            messages = messages.append_column(BRONZE.field("batch_id"), number)
        rows = decode_messages(messages)
        counts = decode.can_count(rows, self.max_ahead_s, self.horizon_s)
        told = [
            {"table": TOUCHES, "told": to_bytes(decode.touched(rows, counts))},
            {"table": WORDS, "told": to_bytes(node_summary.words(rows.filter(counts)))},
        ]
        made = {
            "bronze": lambda: messages,
            "silver": lambda: decode.silver(rows, counts),
            "rejected": lambda: decode.rejected(rows),
            "messages": lambda: decode.message_ids(rows),
        }
        for name in self.names:
            table = made[name]()
            if table.num_rows:
                part = write_part(self.tables / name, table, TABLES[name])
                told.append({"table": name, "told": json.dumps(asdict(part)).encode()})
        return pa.Table.from_pylist(told, schema=TOLD)


def parts_of(told: pa.Table, name: str) -> list[Part]:
    """Files of a table out of what all lots gave."""
    return [Part(**json.loads(each.as_py())) for each in _told(told, name)]


def rows_told(told: pa.Table, name: str) -> Iterator[dict[str, Any]]:
    """Rows that all lots told under a name, those of one lot in memory at a time."""
    for stream in _told(told, name):
        yield from pa.ipc.open_stream(stream.as_buffer()).read_all().to_pylist()


def _told(told: pa.Table, name: str) -> pa.ChunkedArray:
    return told.filter(pc.equal(told["table"], name))["told"]


def _lots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= LOT_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if any(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


log = logging.getLogger(__name__)

PAST: Final = {"levels": "revisions", "sensors": "sensor_revisions"}
"""Where rows go that are replaced."""

CELLS_AT_ONCE: Final = 120
"""Cells whose history is in memory together, and whose rows are one commit."""

FLAGS_AT_ONCE: Final = 500_000
"""Flags that are in memory together: those of a pass at most."""

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
    def of(
        cls, rows: Iterable[dict[str, Any]], words: Iterable[node_summary.Row] = ()
    ) -> "Touched":
        """Gather rows of schemas.TOUCHED, and words of nodes."""
        earliest_us: dict[str, int] = {}
        news: dict[str, dict[str, News]] = {}
        rejected = 0
        newest: dict[str, node_summary.Row] = {}
        node_summary.gather(newest, words)
        for row in rows:
            cell, at_us = row.pop("cell"), row.pop("earliest_us")
            rejected += row.pop("rejected")
            if cell is not None and at_us is not None:
                earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
                add_news(news.setdefault(cell, {}), News(**row))
        told = {cell: list(by_node.values()) for cell, by_node in news.items()}
        return cls(earliest_us, rejected, told, newest)


@dataclass
class Pending:
    """What batches touched and no pass has scored.

    Attributes:
        touched: All of it together.
        batch_id: The last of the batches; None without any.
        files: Of silver, that came with them.
        lock: Held while a batch is committed and added, and while a pass takes all.
    """

    touched: Touched = field(default_factory=lambda: Touched({}, 0, {}))
    batch_id: int | None = None
    files: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def take(self) -> "Pending":
        """All of it; what comes from now on is for the next pass."""
        with self.lock:
            taken = Pending(self.touched, self.batch_id, self.files)
            self.touched, self.batch_id, self.files = Touched({}, 0, {}), None, set()
        return taken

    def add(self, touched: Touched, batch_id: int) -> None:
        """Take what a batch touched."""
        earliest_us, news = self.touched.earliest_us, self.touched.news
        for cell, at_us in touched.earliest_us.items():
            earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
            news[cell] = joined([*news.get(cell, ()), *touched.news[cell]])
        node_summary.gather(self.touched.words, touched.words.values())
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
        untidied: Batches after which nobody has looked what is due.
    """

    tables: Path
    app_id: str
    judging: Judging
    horizon_s: int
    max_ahead_s: int
    pending: Pending = field(default_factory=Pending)
    untidied: deque[int] = field(default_factory=deque)

    def run(self, messages: DataFrame, batch_id: int) -> None:
        """Run one batch; running it again changes nothing."""
        self._take(messages, RECEIVED, batch_id, batch_id)
        self.untidied.append(batch_id)

    def tidy(self) -> None:
        """Do what is due after batches, while no pass runs."""
        while self.untidied:
            paths = (self.tables / name for name in SCORED)
            keep_up(paths, self.untidied.popleft())

    def derive(self, bronze: DataFrame, batch_id: int) -> None:
        """Write what follows from rows of bronze, all but the levels."""
        self._take(bronze, RECEIVED[1:], batch_id, None)

    def touch(self, bronze: DataFrame, batch_id: int) -> None:
        """Let the cells of rows of bronze be scored again."""
        self._take(bronze, (), batch_id, None)

    def score(
        self,
        session: SparkSession,
        must_stop: Callable[[], bool] | None = None,
        until_us: int | None = None,
    ) -> None:
        """Score every cell that is pending; again after a crash it ends the same.

        Args:
            session: Spark.
            must_stop: Asked before each lot; if so, all of it stays pending.
            until_us: Unix time, in microseconds; what was received later does not
                count. None: everything does.
        """
        pending = self.pending.take()
        if pending.batch_id is None:
            return
        self._renew_nodes(pending.touched.words)
        flags = FLAGS.empty_table()
        for touched in pending.some(CELLS_AT_ONCE):
            if must_stop is not None and must_stop():
                self.pending.add(pending.touched, pending.batch_id)
                return
            found = self._score(session, touched, until_us)
            flags = pa.concat_tables([flags, found])
            if flags.num_rows > FLAGS_AT_ONCE:
                reflag(self.tables / "silver", flags)
                flags = FLAGS.empty_table()
        reflag(self.tables / "silver", flags)
        levels = self.tables / "levels"
        upto = Transaction(SCORED_UP_TO + self.app_id, pending.batch_id)
        properties = CommitProperties(app_transactions=[upto])
        commit_files(DeltaTable(str(levels)), levels, [], properties)

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
            words = node_summary.met(tables.last_messages())
            rows = node_summary.renewed(tables.nodes(), words)
            merge_rows(self.tables / "nodes", rows, NODE_KEY)

    def _renew_nodes(self, words: Mapping[str, node_summary.Row]) -> None:
        if words:
            before = Tables(self.tables).nodes()
            rows = node_summary.renewed(before, words)
            merge_rows(self.tables / "nodes", rows, NODE_KEY)

    def _take(
        self,
        messages: DataFrame,
        names: Sequence[str],
        batch_id: int,
        number: int | None,
    ) -> None:
        """Write tables out of messages, one commit each, and note what they touch."""
        once = Once(self.app_id, batch_id)
        left = [n for n in names if not once.is_done(DeltaTable(self._path(n)))]
        lots = Lots(
            self.tables, frozenset(left), number, self.max_ahead_s, self.horizon_s
        )

        # Spark counts parameters, and would count a method's self.
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return lots.work(batches)

        told = messages.mapInArrow(work, ddl(TOLD)).toArrow()
        parts = {name: parts_of(told, name) for name in left}
        touched = Touched.of(rows_told(told, TOUCHES), rows_told(told, WORDS))
        if touched.rejected:
            log.warning("%d packs do not decode", touched.rejected)
        with self.pending.lock:
            # A pass that runs must know them before it can see them.
            self.pending.files |= {part.file for part in parts.get("silver", ())}
            for name in left:
                append_files(self.tables / name, parts[name], once)
            self.pending.add(touched, batch_id)

    def _path(self, table: str) -> str:
        return str(self.tables / table)

    def _score(
        self,
        session: SparkSession,
        touched: Touched,
        until_us: int | None = None,
    ) -> pa.Table:
        """Score cells; gives the flags that change."""
        known = remembered(self.tables / "memories", touched.earliest_us)
        scored = self._scored(session, touched, known, until_us)
        for table, keys in (("levels", LEVEL_KEY), ("sensors", SENSOR_KEY)):
            rows = rows_of(scored, table, TABLES[table])
            self._revise(table, keys, rows, touched)
        known.replace(rows_of(scored, "memories", MEMORIES))
        return rows_of(scored, "flags", FLAGS)

    def _scored(
        self,
        session: SparkSession,
        touched: Touched,
        known: Remembered,
        until_us: int | None,
    ) -> pa.Table:
        """CELL_SCORES of cells, shared out to the executors."""
        cells = sorted(touched.earliest_us)
        tasks = min(session.sparkContext.defaultParallelism, len(cells))
        lots = [
            cells[len(cells) * n // tasks : len(cells) * (n + 1) // tasks]
            for n in range(tasks)
        ]
        jobs = [self._job(lot, touched, known) for lot in lots]
        horizon_s, max_ahead_s = self.horizon_s, self.max_ahead_s

        # Spark counts parameters, and would count a method's self.
        def score_lots(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    reader, files, scorer = jobs[number]
                    rows = reader.read(files)
                    rows = rows.filter(can_count(rows, max_ahead_s, horizon_s))
                    if until_us is not None:
                        rows = received_by(rows, until_us)
                    yield from scorer.score(rows).to_batches()

        numbers = session.range(0, tasks, 1, tasks)
        return numbers.mapInArrow(score_lots, ddl(CELL_SCORES)).toArrow()

    def _job(
        self, cells: Sequence[str], touched: Touched, known: Remembered
    ) -> tuple[CellRows, list[str], Scorer]:
        """What an executor needs to score some cells."""
        earliest_us = {cell: touched.earliest_us[cell] for cell in cells}
        last = {cell: known.last[cell] for cell in cells if cell in known.last}
        since_s = min(
            last[cell][0] - READ_AGAIN_S
            if cell in last
            else at_us / 1_000_000 - self.horizon_s
            for cell, at_us in earliest_us.items()
        )
        path = str(self.tables / "silver")
        reader = CellRows(path, HISTORY, cells, round(since_s * 1_000_000))
        files = [file for file in reader.files() if file not in self.pending.files]
        memories = {cell: body for cell, (_, body) in last.items()}
        rules = self.judging.of(cells)
        scorer = Scorer(rules, self.horizon_s, earliest_us, memories)
        return reader, files, scorer

    def _revise(
        self,
        table: str,
        keys: Sequence[str],
        rows: pa.Table,
        touched: Touched,
    ) -> None:
        """Write rows, after those that they replace are kept."""
        past, path = PAST[table], self.tables / table
        if not rows.num_rows:
            return
        since_us = pc.min(rows["at"].cast(pa.int64())).as_py()
        cells = sorted(touched.earliest_us)
        old = CellRows(str(path), TABLES[table], cells, since_us)
        stood = old.read(old.files()).select(TABLES[table].names)
        found = revised(rows, stood, keys, touched.news, TABLES[past])
        merge_rows(self.tables / past, found.superseded, (*keys, "version"))
        append_rows(path, found.fresh)
        merge_rows(path, found.changed, keys)
