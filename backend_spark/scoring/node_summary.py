"""Table `nodes`: newest message and newest status report of each node."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.tables.schemas import NODES, UTC_TIME
from spatial_mqtt import senml

NEWEST_COLUMNS: Final = (
    "cell",
    "topic",
    "boot",
    "at",
    "received_at",
    "synchronised",
    "age_s",
)
"""Columns of the newest reading of a node."""

REPORT_COLUMNS: Final = {
    "reported_at": (senml.STATUS_QUEUED, "at"),
    "queued": (senml.STATUS_QUEUED, "value_text"),
    "oldest_s": (senml.STATUS_OLDEST, "value"),
    "gateway": (senml.STATUS_GATEWAY, "value_text"),
    "dropped": (senml.STATUS_DROPPED, "value"),
    "battery_v": (senml.STATUS_BATTERY, "value"),
}
"""Columns of a status report: name of the reading, and its column in silver."""

Row = dict[str, Any]
"""Row of `schemas.NODES` with times as Unix microseconds."""

NODES_IN_MICROSECONDS: Final = pa.schema([
    pa.field(field.name, pa.int64()) if field.type == UTC_TIME else field
    for field in NODES
])
"""`schemas.NODES` with times as Unix microseconds."""

_TIMES: Final = ("at", "received_at")


def newest_rows(readings: pa.Table) -> pa.Table:
    """Newest reading and status report of each node and cell.

    Args:
        readings: Rows of schemas.PARSED with a plausible time.

    Shape:
        out: PLAIN.
    """
    rows: dict[tuple[str, str], Row] = {}
    for row in _newest(readings, NEWEST_COLUMNS):
        unknown = dict.fromkeys(REPORT_COLUMNS)
        rows[row["node"], row["cell"]] = {"node": row["node"], **row, **unknown}
    for column, (name, source) in REPORT_COLUMNS.items():
        reports = readings.filter(pc.equal(readings["name"], name))
        for row in _newest(reports, ("cell", source)):
            rows[row["node"], row["cell"]][column] = row[source]
    return pa.Table.from_pylist(list(rows.values()), schema=NODES_IN_MICROSECONDS)


def _newest(readings: pa.Table, columns: Iterable[str]) -> list[Row]:
    """Some columns of the newest reading of each node and cell; times as numbers."""
    names = dict.fromkeys(("node", *columns, "at"))
    rows = readings.select(list(names)).sort_by("at")
    rows = pa.table({
        name: rows[name].cast(pa.int64()) if name in _TIMES else rows[name]
        for name in names
    })
    place = pa.array(range(rows.num_rows), pa.int64())
    last = (
        rows
        .append_column("place", place)
        .group_by(["node", "cell"])
        .aggregate([("place", "max")])
    )
    return rows.take(last["place_max"]).to_pylist()  # type: ignore[no-any-return]


def merge_rows(before: Row | None, now: Row) -> Row:
    """Merge two rows of one node, in any order."""
    if before is None:
        return now
    seen = max(before, now, key=lambda row: (row["at"], row["received_at"]))
    reported = max(before, now, key=_reported)
    received_at = max(before["received_at"], now["received_at"])
    row = {name: seen[name] for name in ("node", *NEWEST_COLUMNS)}
    return (
        row
        | {name: reported[name] for name in REPORT_COLUMNS}
        | {"received_at": received_at}
    )


def rows_from_messages(messages: pa.Table) -> dict[str, Row]:
    """Rows of nodes known only from `Tables.last_messages`."""
    rows = messages.cast(
        pa.schema([NODES_IN_MICROSECONDS.field(n) for n in messages.column_names])
    )
    unknown = dict.fromkeys(NODES.names) | {"synchronised": True}
    return {row["node"]: unknown | row for row in rows.to_pylist()}


def update_nodes(before: pa.Table, new_rows: Mapping[str, Row]) -> pa.Table:
    """Rows of `nodes` to write.

    Args:
        before: Its rows, at least those of the nodes in `new_rows`.
        new_rows: New rows by node.
    """
    old = before.cast(NODES).cast(NODES_IN_MICROSECONDS)
    old = old.filter(pc.is_in(old["node"], pa.array(new_rows, pa.string())))
    known = {row["node"]: row for row in old.to_pylist()}
    rows = [merge_rows(known.get(node), now) for node, now in new_rows.items()]
    changed = [row for row in rows if row != known.get(row["node"])]
    return pa.Table.from_pylist(changed, schema=NODES)


def merge_into(rows: dict[str, Row], more: Iterable[Row]) -> None:
    """Merge more rows into those by node."""
    for row in more:
        rows[row["node"]] = merge_rows(rows.get(row["node"]), row)


def _reported(row: Row) -> tuple[bool, Any]:
    return row["reported_at"] is not None, row["reported_at"]
