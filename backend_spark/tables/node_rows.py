"""Rows of the table `nodes`: newest message, status report and health texts of nodes.

A health text is what a node reports of a sensor, a rule, its settings or its disk. It
sends one when it changes, and again after each start. The newest one may be months old,
so that the table keeps it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.tables.schemas import NODES, UTC_TIME
from spatial_mqtt import senml

NAME_PATTERN: Final = r"^(.+/(health|rule)|config/mistake/[0-9]+)$"
"""Names of the readings with such a text."""

OK: Final = "ok"
MAX_TEXTS: Final = 100
"""Names of one node at most; the newest are kept."""

MAX_LENGTH: Final = 300
"""Characters of a text; the rest is cut off."""

_is_name = re.compile(NAME_PATTERN).match


class HealthText(NamedTuple):
    """A text of a node; the newest of a name is the greatest.

    Attributes:
        at_us: Unix time in microseconds.
        boot: Boot id of its message.
        text: ``ok``, or what is wrong.
    """

    at_us: int
    boot: str
    text: str


HealthTexts = dict[str, HealthText]
"""Newest text of each name of one node."""


def is_health_name(name: str) -> bool:
    """Whether the text of a reading of this name is a health text."""
    return _is_name(name) is not None


def add_health_text(texts: HealthTexts, name: str, new: HealthText) -> None:
    """Add a text, unless a newer one of the name is known."""
    new = new._replace(text=new.text[:MAX_LENGTH])
    texts[name] = max(new, texts.get(name, new))
    if len(texts) > MAX_TEXTS:
        del texts[min(texts, key=lambda each: (texts[each].at_us, each))]


def encode_health_texts(texts: HealthTexts) -> list[str] | None:
    """Encode texts as a column of the table `nodes`; None without any."""
    return [json.dumps([name, *texts[name]]) for name in sorted(texts)] or None


def decode_health_texts(encoded: Iterable[str] | None) -> HealthTexts:
    """Decode that column."""
    rows = map(json.loads, encoded or ())
    return {name: HealthText(*row) for name, *row in rows}


def list_faults(texts: HealthTexts, boot: str) -> dict[str, str]:
    """Texts that are not ``ok``; each mistake of the settings last.

    Args:
        texts: Of one node.
        boot: Its newest boot id. After a start a node reports all that is wrong, so
            that a text of an earlier one is over.
    """
    names = sorted(texts, key=lambda name: (name.startswith("config/mistake"), name))
    return {
        name: text
        for name in names
        for _, text_boot, text in [texts[name]]
        if text != OK and text_boot == boot
    }


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

HEALTH: Final = "health"

NodeRow = dict[str, Any]
"""Row of `schemas.NODES` with times as Unix microseconds."""

NODES_IN_MICROSECONDS: Final = pa.schema([
    pa.field(field.name, pa.int64()) if field.type == UTC_TIME else field
    for field in NODES
])
"""`schemas.NODES` with times as Unix microseconds."""

_TIMES: Final = ("at", "received_at")


def newest_node_rows(readings: pa.Table) -> pa.Table:
    """Newest reading, status report and health texts of each node and cell.

    Args:
        readings: Rows of schemas.PARSED with a plausible time.

    Shape:
        out: NODES_IN_MICROSECONDS.
    """
    rows: dict[tuple[str, str], NodeRow] = {}
    for row in _newest(readings, NEWEST_COLUMNS):
        unknown = dict.fromkeys((*REPORT_COLUMNS, HEALTH))
        rows[row["node"], row["cell"]] = {"node": row["node"], **row, **unknown}
    for column, (name, source) in REPORT_COLUMNS.items():
        reports = readings.filter(pc.equal(readings["name"], name))
        for row in _newest(reports, ("cell", source)):
            rows[row["node"], row["cell"]][column] = row[source]
    for place, texts in _health_texts(readings).items():
        rows[place][HEALTH] = encode_health_texts(texts)
    return pa.Table.from_pylist(list(rows.values()), schema=NODES_IN_MICROSECONDS)


def _health_texts(readings: pa.Table) -> dict[tuple[str, str], HealthTexts]:
    """Newest health texts of each node and cell."""
    is_text = pc.match_substring_regex(readings["name"], NAME_PATTERN)
    rows = readings.filter(pc.and_(is_text, pc.is_valid(readings["value_text"])))
    rows = rows.select(["node", "cell", "name", "at", "boot", "value_text"])
    at = rows.column_names.index("at")
    found: dict[tuple[str, str], HealthTexts] = {}
    for row in rows.set_column(at, "at", rows["at"].cast(pa.int64())).to_pylist():
        text = HealthText(row["at"], row["boot"] or "", row["value_text"])
        texts = found.setdefault((row["node"], row["cell"]), {})
        add_health_text(texts, row["name"], text)
    return found


def _newest(readings: pa.Table, columns: Iterable[str]) -> list[NodeRow]:
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


def merge_node_row(before: NodeRow | None, now: NodeRow) -> NodeRow:
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
        | {"received_at": received_at, HEALTH: _merge_health(before, now)}
    )


def _merge_health(before: NodeRow, now: NodeRow) -> list[str] | None:
    """Newest health texts of two rows of one node."""
    if not now[HEALTH]:
        return before[HEALTH]  # type: ignore[no-any-return]
    texts = decode_health_texts(before[HEALTH])
    for name, text in decode_health_texts(now[HEALTH]).items():
        add_health_text(texts, name, text)
    return encode_health_texts(texts)


def node_rows_from_messages(messages: pa.Table) -> dict[str, NodeRow]:
    """Rows of nodes known only from `Tables.last_messages`."""
    rows = messages.cast(
        pa.schema([NODES_IN_MICROSECONDS.field(n) for n in messages.column_names])
    )
    unknown = dict.fromkeys(NODES.names) | {"synchronised": True}
    return {row["node"]: unknown | row for row in rows.to_pylist()}


def update_nodes(before: pa.Table, new_rows: Mapping[str, NodeRow]) -> pa.Table:
    """Rows of `nodes` to write.

    Args:
        before: Its rows, at least those of the nodes in `new_rows`.
        new_rows: New rows by node.
    """
    old = before.cast(NODES).cast(NODES_IN_MICROSECONDS)
    old = old.filter(pc.is_in(old["node"], pa.array(new_rows, pa.string())))
    known = {row["node"]: row for row in old.to_pylist()}
    rows = [merge_node_row(known.get(node), now) for node, now in new_rows.items()]
    changed = [row for row in rows if row != known.get(row["node"])]
    return pa.Table.from_pylist(changed, schema=NODES)


def merge_node_rows(rows: dict[str, NodeRow], more: Iterable[NodeRow]) -> None:
    """Merge more rows into those by node."""
    for row in more:
        rows[row["node"]] = merge_node_row(rows.get(row["node"]), row)


def _reported(row: NodeRow) -> tuple[bool, Any]:
    return row["reported_at"] is not None, row["reported_at"]
