"""What executors do with messages: decode them, write files, tell what they touch.

Rows of readings stay where they are made: only names of files and what was touched go
back, and the driver makes the files part of the tables.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.schemas import BRONZE, LOG, TABLES
from backend_spark.sinks.parts import Part, write_part
from backend_spark.transforms import cuts, last_seen
from backend_spark.transforms.decode import decode_messages
from backend_spark.transforms.levels import to_bytes

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
        counts = cuts.can_count(rows, self.max_ahead_s, self.horizon_s)
        told = [
            {"table": TOUCHES, "told": to_bytes(cuts.touched(rows, counts))},
            {"table": WORDS, "told": to_bytes(last_seen.words(rows.filter(counts)))},
        ]
        made = {
            "bronze": lambda: messages,
            "silver": lambda: cuts.silver(rows, counts),
            "rejected": lambda: cuts.rejected(rows),
            "messages": lambda: cuts.message_ids(rows),
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
