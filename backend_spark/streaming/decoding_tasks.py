"""Decoding tasks: what an executor does with the messages of a batch.

A chunk is a part of a partition. Its messages are decoded, its files written; only file
names and the changed cells return to the driver.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from backend_spark.ingest.messages import DEAD_LETTER
from backend_spark.scoring import decode
from backend_spark.scoring.arrow import table_to_ipc
from backend_spark.scoring.decode import decode_messages
from backend_spark.streaming.changes import newest_node_rows
from backend_spark.tables.delta_writer import DataFile, write_file
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
`changes.NODES_IN_MICROSECONDS`)."""


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
