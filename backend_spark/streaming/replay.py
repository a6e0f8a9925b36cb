"""Replay: rebuilds silver and gold from bronze (``backend-spark replay``).

Rows go through the code of the live job in the order of their receipt, a slice of hours
as one batch; then all their cells are scored. If gold is empty, each slice is scored in
turn, with the rows received by then. A marker file prevents the job from starting on
half rebuilt tables.
"""

import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from backend_spark.streaming.batches import UnscoredChanges
from backend_spark.streaming.pipeline import ScoringPipeline
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import delete_rows, time_literal
from backend_spark.tables.maintenance import compact, renew_current
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import SPARK_TABLES
from backend_spark.tables.store import (
    Folder,
    delete_file,
    has_file,
    read_text,
    write_text,
)

log = logging.getLogger(__name__)

MARKER_FILE: Final = ".replaying"
SLICE_US: Final = 6 * 3600 * 1_000_000
RECEIVED: Final = ("silver", "rejected", "messages")
"""Tables whose rows follow from one row of bronze each."""


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


def read_unfinished_replay(tables: Folder) -> ReceiptInterval | None:
    """Interval of a replay that was interrupted; None if there is none."""
    if not has_file(tables, MARKER_FILE):
        return None
    return ReceiptInterval(**json.loads(read_text(tables, MARKER_FILE)))


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
        for name in RECEIVED:
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
    delete_file(pipeline.tables, MARKER_FILE)
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
    write_text(tables, MARKER_FILE, text)
