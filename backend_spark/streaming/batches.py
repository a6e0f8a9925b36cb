"""Batches of messages: their decoding by executors, and the changes to be scored.

A chunk is a part of a partition. Its messages are decoded, its files written; only file
names and the changed cells return to the driver. There the changes wait for a pass.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from backend_spark.ingest.messages import DEAD_LETTER
from backend_spark.scoring import decode
from backend_spark.scoring.arrow import table_to_ipc
from backend_spark.scoring.decode import decode_messages
from backend_spark.scoring.reviews import ReadingReview
from backend_spark.scoring.revisions import NewReadings, add_news, merge_news
from backend_spark.scoring.surrounding_rain import CellPlaces
from backend_spark.tables.delta_writer import DataFile, write_file
from backend_spark.tables.node_rows import (
    NodeRow,
    merge_node_rows,
    newest_node_rows,
)
from backend_spark.tables.schemas import BRONZE, LOG, TABLES
from backend_spark.tables.store import Folder
from service_runtime.crash_guard import CrashGuard, make_crash_guard

TOUCHED_ROWS: Final = "touched"
NODE_ROWS: Final = "words"
CHUNK_ROWS: Final = 20_000
"""Messages that an executor has in memory at a time."""

CHUNK_RESULT: Final = pa.schema([
    pa.field("table", pa.string()),
    pa.field("data", pa.binary()),
])
"""Results of a chunk: a file as JSON, or rows as an Arrow stream (schemas.TOUCHED, or
`node_rows.NODES_IN_MICROSECONDS`)."""


@dataclass(frozen=True)
class DecodingWorker:
    """Executor-side worker: decodes messages and writes files, a chunk at a time.

    Attributes:
        tables: Folder of the tables.
        data: Folder for the files of the crash guard.
        names: Tables to write.
        batch_id: Id of a batch from the log; None: the messages come from bronze.
        max_ahead_s: Limit of `decode.read_pack`.
        horizon_s: Limit of `decode.has_plausible_time`.
    """

    tables: Folder
    data: Path
    names: frozenset[str]
    batch_id: int | None
    max_ahead_s: int
    horizon_s: int

    def process(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the messages of one task; for `mapInArrow`.

        Shape:
            in: schemas.LOG; schemas.BRONZE if `batch_id` is None.
            out: CHUNK_RESULT.
        """
        task = TaskContext.get()
        name = f"score-{task.partitionId() if task else 0}"
        guard = make_crash_guard(self.data, name).open()
        for messages in _split_into_chunks(batches):
            refused = _find_refused(messages, guard)
            guard.begin_group()
            results = self._process(messages, refused)
            guard.end_group()
            yield from results.to_batches()
        guard.close()

    def _process(self, messages: pa.Table, refused: pa.Array) -> pa.Table:
        schema = BRONZE if self.batch_id is None else LOG
        messages = messages.select(schema.names)
        if self.batch_id is not None:
            number = pa.repeat(pa.scalar(self.batch_id, pa.int64()), len(messages))
            messages = messages.append_column(BRONZE.field("batch_id"), number)
        rows = _decode(messages, refused, self.max_ahead_s)
        counts = decode.has_plausible_time(rows, self.max_ahead_s, self.horizon_s)
        results = [
            {
                "table": TOUCHED_ROWS,
                "data": table_to_ipc(decode.summarize_changes(rows, counts)),
            },
            {
                "table": NODE_ROWS,
                "data": table_to_ipc(newest_node_rows(rows.filter(counts))),
            },
        ]
        projections = {
            "bronze": lambda: messages,
            "silver": lambda: decode.cut_silver(rows, counts),
            "rejected": lambda: decode.cut_rejected(rows),
            "messages": lambda: decode.cut_message_ids(rows),
        }
        for name in self.names:
            table = projections[name]()
            if table.num_rows:
                part = write_file(self.tables / name, table, TABLES[name])
                data = json.dumps(asdict(part)).encode()
                results.append({"table": name, "data": data})
        return pa.Table.from_pylist(results, schema=CHUNK_RESULT)


def _find_refused(messages: pa.Table, guard: CrashGuard) -> pa.ChunkedArray:
    """Which messages the guard puts aside, as booleans.

    A chunk is marked as a whole. After a crash each message is tried alone first. A
    message that was damaged in the log has a reason already.
    """
    if not guard.is_cautious and not guard.has_refused():
        return pc.is_valid(messages["reason"])
    refused = []
    for row in messages.to_pylist():
        is_decoded = row["reason"] is None and guard.begin(row["topic"], row["payload"])
        refused.append(not is_decoded)
        if is_decoded:
            if guard.is_cautious:
                decode.parse_message(row)
            guard.end()
    return pa.chunked_array([refused], pa.bool_())


def _decode(messages: pa.Table, refused: pa.ChunkedArray, max_ahead_s: int) -> pa.Table:
    """Rows of messages; of the refused ones only the reason.

    Shape:
        out: schemas.PARSED.
    """
    rows = decode_messages(messages.filter(pc.invert(refused)), max_ahead_s)
    if not pc.any(refused).as_py():
        return rows
    unread = messages.filter(refused)
    at = unread.schema.get_field_index("payload")
    empty = pa.repeat(pa.scalar(b"", unread.schema.field(at).type), unread.num_rows)
    reason = pc.fill_null(unread["reason"], DEAD_LETTER)
    unread = decode_messages(unread.set_column(at, unread.schema.field(at), empty))
    at = unread.schema.get_field_index("reason")
    unread = unread.set_column(at, unread.schema.field(at), reason)
    return pa.concat_tables([rows, unread])


def result_files(results: pa.Table, name: str) -> list[DataFile]:
    """Files of a table, from the results of all chunks."""
    return [DataFile(**json.loads(each.as_py())) for each in _results_of(results, name)]


def result_rows(results: pa.Table, name: str) -> Iterator[dict[str, Any]]:
    """Rows with a name, from the results of all chunks; one in memory at a time."""
    for stream in _results_of(results, name):
        yield from pa.ipc.open_stream(stream.as_buffer()).read_all().to_pylist()


def _results_of(results: pa.Table, name: str) -> pa.ChunkedArray:
    return results.filter(pc.equal(results["table"], name))["data"]


def _split_into_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    chunk: list[pa.RecordBatch] = []
    for batch in batches:
        chunk.append(batch)
        if sum(each.num_rows for each in chunk) >= CHUNK_ROWS:
            yield pa.Table.from_batches(chunk)
            chunk = []
    if any(batch.num_rows for batch in chunk):
        yield pa.Table.from_batches(chunk)


log = logging.getLogger(__name__)

_MICRO = 1_000_000


@dataclass(frozen=True)
class ReceivedChanges:
    """Cells and nodes that new messages change.

    Attributes:
        earliest_us: For each cell the Unix time, in microseconds, of its earliest
            new reading.
        rejected: Number of packs that cannot be decoded.
        news: For each cell the messages of its nodes, as causes of revisions.
        node_rows: Newest row of `nodes` of each node.
    """

    earliest_us: dict[str, int]
    rejected: int
    news: dict[str, list[NewReadings]]
    node_rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls, rows: Iterable[dict[str, Any]], words: Iterable[NodeRow] = ()
    ) -> "ReceivedChanges":
        """Merge rows of schemas.TOUCHED and of `nodes`."""
        earliest_us: dict[str, int] = {}
        news: dict[str, dict[str, NewReadings]] = {}
        rejected = 0
        newest: dict[str, NodeRow] = {}
        merge_node_rows(newest, words)
        for row in rows:
            cell, at_us = row.pop("cell"), row.pop("earliest_us")
            rejected += row.pop("rejected")
            if cell is not None and at_us is not None:
                earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
                add_news(news.setdefault(cell, {}), NewReadings(**row))
        news_of = {cell: list(by_node.values()) for cell, by_node in news.items()}
        return cls(earliest_us, rejected, news_of, newest)

    def within_horizon(
        self, newest_us: Mapping[str, int], horizon_us: int
    ) -> "ReceivedChanges":
        """Without what is older than the horizon, as after a clock that was set wrong.

        Such a reading stays in silver. No level follows from it: the rain before it is
        not known any more, and what was published then would be replaced by less.

        Args:
            newest_us: Unix time of the newest reading of each cell.
            horizon_us: Its greatest age beside a reading that counts.
        """
        earliest_us = {}
        for cell, at_us in self.earliest_us.items():
            earliest_us[cell] = max(at_us, newest_us.get(cell, at_us) - horizon_us)
            if earliest_us[cell] > at_us:
                log.warning(
                    "cell %s: a reading %.1f days before its newest one is not scored",
                    cell,
                    (newest_us[cell] - at_us) / 86_400e6,
                )
        return replace(self, earliest_us=earliest_us)

    def with_reviews(
        self, causes: Iterable[tuple[ReadingReview, NewReadings]]
    ) -> "ReceivedChanges":
        """With the cells of reviews that begin or cease to count, and the causes."""
        earliest_us, news = dict(self.earliest_us), dict(self.news)
        for review, cause in causes:
            cell, at_us = review.cell, round(review.from_s * _MICRO)
            earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
            news[cell] = merge_news([*news.get(cell, ()), cause])
        return replace(self, earliest_us=earliest_us, news=news)

    def groups(
        self, max_cost: Callable[[], float], cost_of: Callable[[str], float]
    ) -> Iterator["ReceivedChanges"]:
        """Cells sorted by token, in groups with a limit of their cost.

        Args:
            max_cost: Gives the cost of the next group, if it has several cells.
            cost_of: Gives the cost of a cell.
        """
        group: list[str] = []
        cost, most = 0.0, max_cost()
        for cell in sorted(self.earliest_us):
            cost += cost_of(cell)
            if group and cost > most:
                yield self._only(group)
                group, cost, most = [], cost_of(cell), max_cost()
            group.append(cell)
        if group:
            yield self._only(group)

    def _only(self, cells: Sequence[str]) -> "ReceivedChanges":
        earliest_us = {cell: self.earliest_us[cell] for cell in cells}
        return ReceivedChanges(earliest_us, 0, {c: self.news[c] for c in cells})


@dataclass(frozen=True)
class PassCells:
    """Cells of a pass.

    Attributes:
        places: Cells with a node.
        changes: Changes that the pass scores.
        reviews: Reviews of readings that count.
    """

    places: CellPlaces
    changes: ReceivedChanges
    reviews: Sequence[ReadingReview] = ()


@dataclass
class UnscoredChanges:
    """Changes by batches that no pass has scored yet.

    Attributes:
        changes: Changed cells and nodes.
        batch_id: Last of the batches; None without any.
        files: Files of silver from these batches.
        lock: Held while a batch is committed and added, and while a pass takes all.
    """

    changes: ReceivedChanges = field(default_factory=lambda: ReceivedChanges({}, 0, {}))
    batch_id: int | None = None
    files: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def take_all(self) -> "UnscoredChanges":
        """Remove and return all changes; later ones are for the next pass."""
        with self.lock:
            pending = UnscoredChanges(self.changes, self.batch_id, self.files)
            self.changes, self.batch_id, self.files = (
                ReceivedChanges({}, 0, {}),
                None,
                set(),
            )
        return pending

    def add(self, touched: ReceivedChanges, batch_id: int) -> None:
        """Add the changes by a batch."""
        earliest_us, news = self.changes.earliest_us, self.changes.news
        for cell, at_us in touched.earliest_us.items():
            earliest_us[cell] = min(at_us, earliest_us.get(cell, at_us))
            news[cell] = merge_news([*news.get(cell, ()), *touched.news[cell]])
        merge_node_rows(self.changes.node_rows, touched.node_rows.values())
        self.batch_id = max(batch_id, -1 if self.batch_id is None else self.batch_id)
