"""When each node last spoke and what it told of itself: the newest word wins."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.schemas import NODES, UTC_TIME
from spatial_mqtt import self_report

SEEN: Final = ("cell", "topic", "boot", "at", "received_at", "synchronised", "age_s")
"""Columns of the newest reading of a node."""

SAID: Final = {
    "reported_at": (self_report.QUEUED, "at"),
    "queued": (self_report.QUEUED, "value_text"),
    "oldest_s": (self_report.OLDEST, "value"),
    "gateway": (self_report.GATEWAY, "value_text"),
    "dropped": (self_report.DROPPED, "value"),
    "battery_v": (self_report.BATTERY, "value"),
}
"""Columns of a node's report: name of the reading, and its column in silver."""

Row = dict[str, Any]
"""Of `schemas.NODES`, its times in microseconds of Unix time."""

_PLAIN: Final = pa.schema([
    pa.field(field.name, pa.int64()) if field.type == UTC_TIME else field
    for field in NODES
])


def word(row: Row) -> Row | None:
    """A row of `nodes` out of one of `frames.touched`, whose columns it takes out.

    None when no reading of it has a believable time.
    """
    last, node = row.pop("last"), row["node"]
    said = {name: row.pop(name) for name in SAID}
    return None if last is None else {"node": node, **last.asDict(), **said}


def newer(before: Row | None, now: Row) -> Row:
    """Two words of one node as one; in which order they came does not matter."""
    if before is None:
        return now
    seen = max(before, now, key=lambda row: (row["at"], row["received_at"]))
    told = max(before, now, key=_reported)
    received_at = max(before["received_at"], now["received_at"])
    row = {name: seen[name] for name in ("node", *SEEN)}
    return row | {name: told[name] for name in SAID} | {"received_at": received_at}


def met(messages: pa.Table) -> dict[str, Row]:
    """Words of nodes of which only messages are known (`Tables.last_messages`)."""
    rows = messages.cast(pa.schema([_PLAIN.field(n) for n in messages.column_names]))
    unknown = dict.fromkeys(NODES.names) | {"synchronised": True}
    return {row["node"]: unknown | row for row in rows.to_pylist()}


def renewed(before: pa.Table, words: Mapping[str, Row]) -> pa.Table:
    """Rows of `nodes` to write.

    Args:
        before: Its rows, at least those of the nodes that spoke.
        words: What is new, by node.
    """
    old = before.cast(NODES).cast(_PLAIN)
    old = old.filter(pc.is_in(old["node"], pa.array(words, pa.string())))
    known = {row["node"]: row for row in old.to_pylist()}
    rows = [newer(known.get(node), now) for node, now in words.items()]
    changed = [row for row in rows if row != known.get(row["node"])]
    return pa.Table.from_pylist(changed, schema=NODES)


def gather(words: dict[str, Row], more: Iterable[Row]) -> None:
    """Put more words to those that are there."""
    for row in more:
        words[row["node"]] = newer(words.get(row["node"]), row)


def _reported(row: Row) -> tuple[bool, Any]:
    return row["reported_at"] is not None, row["reported_at"]
