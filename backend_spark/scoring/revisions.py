"""Revisions: versions of rows that late readings change, or reviews of readings.

A row may change within an hour of its step without a revision, because rain is spread
back over an hour. A later change gives the row a new version with a reason, and the
earlier version goes to the table of revisions. So does every change by a review: what
was known before it stays readable.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.scoring.rain import SPREAD_S
from slope_science.reason_codes import ReasonCode
from slope_science.reasons import Reason, render_english_list

SETTLED_DAYS: Final = 59
"""Days after which the assumption of dry soil at the start has no effect. A day less
than the horizon, so that rows can be that old."""


SETTLED_S: Final = SPREAD_S
TOLERANCE: Final = 1e-6
"""Tolerance for equal numbers: sums in another order differ by less."""

VERSION_COLUMNS: Final = ("version", "revised_because", "revised_at")
IGNORED_COLUMNS: Final = frozenset({
    *VERSION_COLUMNS,
    "history_days",
    "latest_received",
    "assumed",
    "reason_codes",
    "state",
    "known_until",
})
"""Columns that may change without a revision: the level does not rest on them.

The codes, the state and its time repeat `reasons`; rows of an earlier program have
none of them.
"""

ROWS_AS_OBJECTS: Final = 2_048
"""Rows that are Python objects at a time; as those a row takes ten times its memory."""

_MICRO: Final = 1_000_000
_HOUR_US: Final = 3600 * _MICRO

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NewReadings:
    """New readings of a node for a cell since the last pass, or a review of readings.

    Attributes:
        node: Id of the node; of a review the person.
        received_us: Newest receipt, Unix microseconds.
        late: Number of readings older than `SETTLED_S` on receipt.
        first_us: Time of the earliest of those.
        last_us: Time of the latest.
        wait_us: Longest delay of any reading.
        is_review: Whether it is a review, and `received_us` its time.
    """

    node: str
    received_us: int
    late: int = 0
    first_us: int | None = None
    last_us: int | None = None
    wait_us: int | None = None
    is_review: bool = False

    def reason(self) -> Reason:
        """Why rows change."""
        if self.is_review:
            return Reason(ReasonCode.READINGS_REVIEWED, person=self.node)
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

    def merged_with(self, other: "NewReadings") -> "NewReadings":
        """Merge with the readings of the same node in another batch."""
        received_us = max(self.received_us, other.received_us)
        if not (self.late and other.late):
            return replace(self if self.late else other, received_us=received_us)
        return NewReadings(
            self.node,
            received_us,
            self.late + other.late,
            min(self.first_us or 0, other.first_us or 0),
            max(self.last_us or 0, other.last_us or 0),
            max(self.wait_us or 0, other.wait_us or 0),
        )


def merge_news(news: Iterable[NewReadings]) -> list[NewReadings]:
    """Merge batches by node."""
    known: dict[str, NewReadings] = {}
    for each in news:
        add_news(known, each)
    return list(known.values())


def add_news(known: dict[str, NewReadings], more: NewReadings) -> None:
    """Merge a batch into those by node."""
    # No id of a node has a space.
    key = f"review by {more.node}" if more.is_review else more.node
    before = known.get(key)
    known[key] = before.merged_with(more) if before else more


@dataclass(frozen=True)
class RevisedRows:
    """Rows of a table to write, and those that they replace.

    Attributes:
        fresh: New rows of version 1.
        changed: Rows that replace others, with their version.
        superseded: Replaced rows with the reason.
    """

    fresh: pa.Table
    changed: pa.Table
    superseded: pa.Table


def revise_rows(
    new: pa.Table,
    old: pa.Table,
    keys: Sequence[str],
    news: Mapping[str, Iterable[NewReadings]],
    past: pa.Schema,
) -> RevisedRows:
    """Compare newly scored rows with the stored ones.

    Args:
        new: Newly scored rows of one table, without versions.
        old: Stored rows of the same cells and times.
        keys: Key columns, including ``cell`` and ``at``.
        news: New readings by cell.
        past: Schema of superseded rows.
    """
    places = {key: place for place, key in enumerate(_keys_of(old, keys))}
    known = [places.get(key) for key in _keys_of(new, keys)]
    is_known = pa.array([place is not None for place in known], pa.bool_())
    fresh = new.filter(pc.invert(is_known))
    first = pa.array([1] * fresh.num_rows, pa.int32())
    at = fresh.schema.get_field_index("version")
    fresh = fresh.set_column(at, fresh.schema.field(at), first)
    again = new.filter(is_known)
    before = old.take(pa.array([p for p in known if p is not None], pa.int64()))
    longest_days = _longest_history_days(old)
    changed, superseded = [new.schema.empty_table()], [past.empty_table()]
    for begin in range(0, again.num_rows, ROWS_AS_OBJECTS):
        after, gone = _revisions(
            again.slice(begin, ROWS_AS_OBJECTS),
            before.slice(begin, ROWS_AS_OBJECTS),
            news,
            longest_days,
        )
        changed.append(pa.Table.from_pylist(after, schema=new.schema))
        superseded.append(pa.Table.from_pylist(gone, schema=past))
    return RevisedRows(fresh, pa.concat_tables(changed), pa.concat_tables(superseded))


def _keys_of(rows: pa.Table, keys: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    columns = (rows[key] for key in keys)
    numbers = (
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in columns
    )
    return zip(*(column.to_pylist() for column in numbers), strict=True)


def _revisions(
    new: pa.Table,
    old: pa.Table,
    news: Mapping[str, Iterable[NewReadings]],
    longest_days: Mapping[str, float],
) -> tuple[list[Row], list[Row]]:
    """Rows to write and rows that they supersede, of rows with the same keys."""
    changed: list[Row] = []
    superseded: list[Row] = []
    for row, before in zip(new.to_pylist(), old.to_pylist(), strict=True):
        if _lacks_history(row, before, longest_days.get(row["cell"], 0.0)):
            continue
        after, gone = _revision(row, before, list(news.get(row["cell"], ())))
        changed += [after] if after else []
        superseded += [gone] if gone else []
    return changed, superseded


def _longest_history_days(rows: pa.Table) -> dict[str, float]:
    """Longest rain history of each cell, in days."""
    if "history_days" not in rows.column_names:
        return {}
    longest = rows.group_by("cell").aggregate([("history_days", "max")])
    days = pc.fill_null(longest["history_days_max"], 0.0).to_pylist()
    return dict(zip(longest["cell"].to_pylist(), days, strict=True))


def _lacks_history(row: Row, before: Row, longest_days: float) -> bool:
    """Whether a row is computed from less rain than the stored one, which stays.

    Where the states of an old cell are lost, scoring starts from dry soil within its
    history: its first rows would be too low. A young cell is scored from its begin.
    """
    days = row.get("history_days")
    if days is None or longest_days < SETTLED_DAYS:
        return False
    return bool(days < SETTLED_DAYS and days < (before["history_days"] or 0.0) - 1)


def _revision(
    row: Row, before: Row, readings: Sequence[NewReadings]
) -> tuple[Row | None, Row | None]:
    """The row to write, if any, and the version that it supersedes, if any."""
    kept = {name: before[name] for name in VERSION_COLUMNS}
    if is_unchanged(row, before):
        row = _with_receipt_in_time(row, before)
        is_equal = all(
            row[n] == before[n]
            for n in IGNORED_COLUMNS - set(VERSION_COLUMNS)
            if n in row
        )
        return (None if is_equal else row | kept), None
    now_us = max((each.received_us for each in readings), default=0)
    is_settled = now_us >= round(row["at"].timestamp() * _MICRO) + SETTLED_S * _MICRO
    if not is_settled and not any(each.is_review for each in readings):
        return row | kept, None
    late = [each for each in readings if each.late or each.is_review] or readings
    why = render_english_list(each.reason() for each in late)
    when = datetime.fromtimestamp(now_us // _MICRO, UTC)
    # Rows of early programs have no version: it is the first.
    version = before["version"] or 1
    after = row | {
        "version": version + 1,
        "revised_because": why,
        "revised_at": when,
    }
    gone = {"version": version, "superseded_at": when, "superseded_because": why}
    return after, before | gone


def _with_receipt_in_time(row: Row, before: Row) -> Row:
    """An unchanged row, with a receipt within the hour instead of a later one.

    By that column the replay as known then selects the rows that were known in time.
    """
    settled = row["at"] + timedelta(seconds=SETTLED_S)
    received = before.get("latest_received")
    if received is None or received > settled:
        return row
    is_late = (row["latest_received"] or settled) > settled
    return row | {"latest_received": received} if is_late else row


def is_unchanged(row: Row, before: Row) -> bool:
    """Whether a row is equal to its earlier version."""
    return all(
        _equal(value, before.get(name))
        for name, value in row.items()
        if name not in IGNORED_COLUMNS
    )


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=TOLERANCE)
    return one == other
