"""Cuts of what decoding made: Arrow in, Arrow out."""

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.schemas import MESSAGES, REJECTED, SILVER, TOUCHED
from backend_spark.transforms.revisions import SETTLED_S
from slope_science.quality import Flag

WHY = "clock: the time is not believable beside its receipt"
_MICRO = 1_000_000


def can_count(rows: pa.Table, max_ahead_s: int, horizon_s: int) -> pa.ChunkedArray:
    """Whether a reading may be scored: its time is believable.

    No reading can be from the future; one clock that runs ahead must not push the
    real readings out of the horizon. A clock that was never set reads the past.

    Args:
        rows: With the columns at, received_at and synchronised.
        max_ahead_s: How far ahead of its receipt a reading may be.
        horizon_s: How far behind, without a set clock.
    """
    ahead_us = pc.subtract(_micros(rows, "at"), _micros(rows, "received_at"))
    recent = pc.greater_equal(ahead_us, -horizon_s * _MICRO)
    not_ahead = pc.less_equal(ahead_us, max_ahead_s * _MICRO)
    return pc.and_(not_ahead, pc.or_(rows["synchronised"], recent))


def received_by(rows: pa.Table, until_us: int) -> pa.Table:
    """Readings that were received by a time, Unix microseconds."""
    return rows.filter(pc.less_equal(_micros(rows, "received_at"), until_us))


def silver(rows: pa.Table, counts: pa.ChunkedArray) -> pa.Table:
    """One row a reading, out of schemas.PARSED; one that cannot count has failed."""
    flag = pc.if_else(counts, rows["flag"], pa.scalar(int(Flag.FAIL), pa.int32()))
    why = pc.if_else(counts, rows["flag_why"], pa.scalar(WHY))
    for name, column in (("flag", flag), ("flag_why", why)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), column)
    return rows.filter(pc.is_null(rows["reason"])).select(SILVER.names)


def rejected(rows: pa.Table) -> pa.Table:
    """Packs that did not decode, out of schemas.PARSED."""
    return rows.filter(pc.is_valid(rows["reason"])).select(REJECTED.names)


def message_ids(rows: pa.Table) -> pa.Table:
    """One row per message id, rejected ones included, out of schemas.PARSED."""
    first = rows.filter(pc.equal(rows["position"], 0))
    at = first.schema.get_field_index("at")
    return first.set_column(at, "at", first["pack_at"]).select(MESSAGES.names)


def touched(rows: pa.Table, counts: pa.ChunkedArray) -> pa.Table:
    """What a lot of messages changes, cell by cell and node by node.

    Args:
        rows: Of schemas.PARSED.
        counts: What `can_count` tells of them.

    Shape:
        out: schemas.TOUCHED.
    """
    at, received = _micros(rows, "at"), _micros(rows, "received_at")
    none = pa.scalar(None, pa.int64())
    at = pc.if_else(counts, at, none)
    wait = pc.subtract(received, at)
    late = pc.if_else(pc.greater(wait, int(SETTLED_S) * _MICRO), at, none)
    columns = {
        "cell": rows["cell"],
        "node": rows["node"],
        "at": at,
        "reason": rows["reason"],
        "received": received,
        "late": late,
        "wait": wait,
    }
    told = (
        pa
        .table(columns)
        .group_by(["cell", "node"])
        .aggregate([
            ("at", "min"),
            ("reason", "count"),
            ("received", "max"),
            ("late", "count"),
            ("late", "min"),
            ("late", "max"),
            ("wait", "max"),
        ])
    )
    return told.rename_columns(TOUCHED.names).cast(TOUCHED)


def _micros(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return rows[name].cast(pa.int64())
