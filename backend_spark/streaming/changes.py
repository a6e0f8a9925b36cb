"""Changes by messages and reviews: which cells to score and why, and rows of `nodes`.

The table `nodes` has the newest message, status report and health texts of each node.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.scoring.reviews import ReadingReview
from backend_spark.scoring.revisions import NewReadings, add_news, merge_news
from backend_spark.scoring.surrounding_rain import CellPlaces
from backend_spark.tables.health_texts import (
    NAME_PATTERN,
    HealthText,
    HealthTexts,
    add_health_text,
    decode_health_texts,
    encode_health_texts,
)
from backend_spark.tables.schemas import NODES, UTC_TIME
from spatial_mqtt import senml

log = logging.getLogger(__name__)

_MICRO = 1_000_000

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
