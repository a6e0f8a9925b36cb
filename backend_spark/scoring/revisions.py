"""What late data change in rows that were told already: versions, never in silence.

A row may change for an hour after its step without much ado: rain is spread back
over an hour. Whatever changes it later is a revision: the row gets a new version
and says why, and the row as it stood goes to a table of revisions.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from backend_spark.scoring.rain import SPREAD_S
from slope_science.reason_text import english_list
from slope_science.reasons import Reason, ReasonCode

SETTLED_S: Final = SPREAD_S
SAME: Final = 1e-6
"""Numbers nearer than this are the same: sums in another order differ by less."""

VERSION: Final = ("version", "revised_because", "revised_at")
NO_CHANGE: Final = frozenset({
    *VERSION,
    "history_days",
    "latest_received",
    "assumed",
    "reason_codes",
})
"""Columns that may change without a revision: the level does not rest on them.

The codes repeat `reasons`; rows of an earlier program have none.
"""

_MICRO: Final = 1_000_000
_HOUR_US: Final = 3600 * _MICRO

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class News:
    """What a node brought for a cell since the last pass.

    Attributes:
        node: Who sent it.
        received_us: Unix time of the newest receipt, in microseconds.
        late: How many readings were older than `SETTLED_S` when they came.
        first_us: Unix time of the earliest of those.
        last_us: Of the latest.
        wait_us: How long the one that waited longest was on its way.
    """

    node: str
    received_us: int
    late: int = 0
    first_us: int | None = None
    last_us: int | None = None
    wait_us: int | None = None

    def reason(self) -> Reason:
        """Why rows change."""
        if not self.late:
            return Reason(ReasonCode.READINGS, node=self.node)
        return Reason(
            ReasonCode.LATE_READINGS,
            node=self.node,
            count=self.late,
            first_s=(self.first_us or 0) // _MICRO,
            last_s=(self.last_us or 0) // _MICRO,
            age_h=(self.wait_us or 0) / _HOUR_US,
        )

    def and_later(self, other: "News") -> "News":
        """This and what the same node brought in another batch."""
        received_us = max(self.received_us, other.received_us)
        if not (self.late and other.late):
            return replace(self if self.late else other, received_us=received_us)
        return News(
            self.node,
            received_us,
            self.late + other.late,
            min(self.first_us or 0, other.first_us or 0),
            max(self.last_us or 0, other.last_us or 0),
            max(self.wait_us or 0, other.wait_us or 0),
        )


def joined(news: Iterable[News]) -> list[News]:
    """One for each node, however many batches it came in."""
    known: dict[str, News] = {}
    for each in news:
        add_news(known, each)
    return list(known.values())


def add_news(known: dict[str, News], more: News) -> None:
    """Put more of a node to what is known of it."""
    before = known.get(more.node)
    known[more.node] = before.and_later(more) if before else more


@dataclass(frozen=True)
class Revised:
    """A table's rows to write, and those that they replace.

    Attributes:
        fresh: New rows, of version 1.
        changed: Rows that take the place of others, with their version.
        superseded: Rows as they stood, and why they do no longer.
    """

    fresh: pa.Table
    changed: pa.Table
    superseded: pa.Table


def revised(
    new: pa.Table,
    old: pa.Table,
    keys: Sequence[str],
    news: Mapping[str, Iterable[News]],
    past: pa.Schema,
) -> Revised:
    """Compare rows with those that are there.

    Args:
        new: Rows of one table as scored now; the versions are not filled in.
        old: Rows of the table with the same cells and times.
        keys: Columns that name a row; ``node_cell`` and ``at`` among them.
        news: What the batch brought, by cell.
        past: Schema of superseded rows: the table's, and why and when.
    """
    if not old.num_rows:
        first = pa.array([1] * new.num_rows, pa.int32())
        at = new.schema.get_field_index("version")
        unknown = new.set_column(at, new.schema.field(at), first)
        return Revised(unknown, new.schema.empty_table(), past.empty_table())
    stood = {tuple(row[key] for key in keys): row for row in old.to_pylist()}
    fresh: list[Row] = []
    changed: list[Row] = []
    superseded: list[Row] = []
    for row in new.to_pylist():
        before = stood.get(tuple(row[key] for key in keys))
        told = list(news.get(row["cell"], ()))
        after, gone = _revision(row, before, told)
        into = fresh if before is None else changed
        into += [after] if after else []
        superseded += [gone] if gone else []
    return Revised(
        pa.Table.from_pylist(fresh, schema=new.schema),
        pa.Table.from_pylist(changed, schema=new.schema),
        pa.Table.from_pylist(superseded, schema=past),
    )


def _revision(
    row: Row, before: Row | None, told: Sequence[News]
) -> tuple[Row | None, Row | None]:
    """The row to write, if any, and the one that it replaces, if that was told."""
    if before is None:
        return row | {"version": 1}, None
    kept = {name: before[name] for name in VERSION}
    if is_same(row, before):
        is_equal = all(
            row[n] == before[n] for n in NO_CHANGE - set(VERSION) if n in row
        )
        return (None if is_equal else row | kept), None
    now_us = max((each.received_us for each in told), default=0)
    if now_us < round(row["at"].timestamp() * _MICRO) + SETTLED_S * _MICRO:
        return row | kept, None
    late = [each for each in told if each.late] or told
    why = english_list(each.reason() for each in late)
    when = datetime.fromtimestamp(now_us // _MICRO, UTC)
    # A row of an earlier program has no version; it was the first.
    version = before["version"] or 1
    after = row | {
        "version": version + 1,
        "revised_because": why,
        "revised_at": when,
    }
    gone = {"version": version, "superseded_at": when, "superseded_because": why}
    return after, before | gone


def is_same(row: Row, before: Row) -> bool:
    """Whether a row tells what it told before."""
    return all(
        _equal(value, before.get(name))
        for name, value in row.items()
        if name not in NO_CHANGE
    )


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=SAME)
    return one == other
