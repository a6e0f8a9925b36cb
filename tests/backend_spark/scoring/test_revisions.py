"""Versions and revisions of rows, without Spark."""

import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_spark.console.routes.time_travel import first_versions
from backend_spark.scoring.revisions import (
    NewReadings,
    RevisedRows,
    merge_news,
    revise_rows,
)
from backend_spark.tables.schemas import LEVEL_KEY, LEVELS, REVISIONS

AT = datetime(2026, 6, 1, 3, 0, tzinfo=UTC)
LATE = NewReadings(
    "n1", 0, 12, 1_780_282_800_000_000, 1_780_286_400_000_000, 172_800_000_000
)


def us(when: datetime) -> int:
    """Microseconds since 1970."""
    return round(when.timestamp() * 1_000_000)


def row(**columns: object) -> dict[str, Any]:
    """A row of levels; other columns are null."""
    return {
        "cell": "c",
        "at": AT,
        "swi_mm": 50.0,
        "level": 1,
        "reasons": ["r"],
    } | columns


def compare(
    new: dict[str, Any], old: dict[str, Any] | None, after_h: float
) -> RevisedRows:
    """Compare rows, with late readings received `after_h` hours after the step."""
    received_us = us(AT + timedelta(hours=after_h))
    news = {"c": [replace(LATE, received_us=received_us)]}
    tables = [pa.Table.from_pylist([r] if r else [], schema=LEVELS) for r in (new, old)]
    return revise_rows(*tables, LEVEL_KEY, news, REVISIONS)


def test_first_row_is_version_one() -> None:
    """There was no row for the step."""
    found = compare(row(), None, 0.1)

    assert found.fresh["version"].to_pylist() == [1]
    assert found.superseded.num_rows == 0


def test_change_within_the_hour_keeps_the_version() -> None:
    """Rain is spread back over up to an hour, which is no revision."""
    found = compare(row(level=2), row(version=1), 0.9)

    assert found.changed.to_pylist()[0] == row_of(row(level=2, version=1))
    assert found.superseded.num_rows == 0


def row_of(columns: dict[str, Any]) -> dict[str, Any]:
    """With all columns of the table."""
    return pa.Table.from_pylist([columns], schema=LEVELS).to_pylist()[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("days", "before_days", "oldest_days", "is_kept"),
    [
        (5.0, 70.0, 80.0, True),
        (5.0, 6.5, 80.0, True),
        (5.0, 5.5, 80.0, False),
        (59.5, 70.0, 80.0, False),
        (5.0, 20.0, 30.0, False),
    ],
)
def test_row_from_less_rain_replaces_none_from_more(
    days: float, before_days: float, oldest_days: float, is_kept: bool
) -> None:
    """In a cell that is older than the rain that matters, as without its states."""
    new = pa.Table.from_pylist([row(level=1, history_days=days)], schema=LEVELS)
    old = [
        row(level=4, history_days=before_days, version=1),
        row(at=AT + timedelta(days=1), history_days=oldest_days, version=1),
    ]
    stored = pa.Table.from_pylist(old, schema=LEVELS)
    found = revise_rows(new, stored, LEVEL_KEY, {"c": [LATE]}, REVISIONS)

    assert found.changed.num_rows == (0 if is_kept else 1)


def test_later_change_is_a_new_version_with_a_reason() -> None:
    """The old row is kept with the same reason."""
    found = compare(row(level=2), row(version=3, revised_because="before"), 47.0)
    (now,), (then,) = found.changed.to_pylist(), found.superseded.to_pylist()

    assert (now["version"], now["level"]) == (4, 2)
    assert now["revised_because"] == (
        "12 late readings of n1 from 2026-06-01 03:00 UTC to 2026-06-01 04:00 UTC, up "
        "to 48.0 h old when they came"
    )
    assert now["revised_at"] == AT + timedelta(hours=47)
    assert (then["version"], then["level"], then["revised_because"]) == (3, 1, "before")
    assert then["superseded_because"] == now["revised_because"]
    assert then["superseded_at"] == now["revised_at"]


def test_newest_receipt_of_all_nodes_tells_whether_a_row_is_settled() -> None:
    """The reason names the late node alone."""
    late = replace(LATE, received_us=us(AT + timedelta(hours=2)))
    early = NewReadings("n2", us(AT + timedelta(hours=0.5)))
    new, old = (
        pa.Table.from_pylist([row(level=n, version=1)], schema=LEVELS) for n in (2, 1)
    )
    for news in ([late, early], [early, late]):
        found = revise_rows(new, old, LEVEL_KEY, {"c": news}, REVISIONS)
        (now,) = found.changed.to_pylist()
        assert now["revised_at"] == AT + timedelta(hours=2)
        assert "n1" in now["revised_because"]
        assert "n2" not in now["revised_because"]


def test_unchanged_row_is_not_written_again() -> None:
    """It gives no new version and no new file."""
    found = compare(row(swi_mm=50.0000001), row(version=2), 47.0)

    assert found.changed.num_rows == found.superseded.num_rows == 0


@pytest.mark.parametrize(
    ("before_h", "after_h", "kept_h"),
    [(0.1, 3.0, 0.1), (1.0, 3.0, 1.0), (0.1, 0.9, 0.9), (2.0, 3.0, 3.0)],
)
@pytest.mark.parametrize("codes", [None, ['["text","r"]']])
def test_late_readings_that_change_nothing_leave_the_row_known_in_time(
    before_h: float, after_h: float, kept_h: float, codes: list[str] | None
) -> None:
    """The replay as known then has the row if data of its step arrived in an hour."""
    before_at, after_at, kept_at = (
        AT + timedelta(hours=h) for h in (before_h, after_h, kept_h)
    )
    before = row(version=1, latest_received=before_at)
    new = row(latest_received=after_at, reason_codes=codes)
    found = compare(new, before, after_h)
    (stored,) = found.changed.to_pylist() or [row_of(before)]

    assert stored["latest_received"] == kept_at
    assert stored["reason_codes"] == codes
    assert found.changed.num_rows == (codes is not None or kept_at != before_at)
    assert found.superseded.num_rows == 0
    shown = first_versions(pa.Table.from_pylist([stored], schema=LEVELS))
    assert shown.num_rows == (before_h <= 1)


def test_reason_codes_of_the_same_reasons_are_no_revision() -> None:
    """A row of an earlier program version gets its codes without a new version."""
    codes = row(reason_codes=['["text","r"]'])
    found = compare(codes, row(version=2), 47.0)

    assert found.changed.to_pylist() == [row_of(codes | {"version": 2})]
    assert found.superseded.num_rows == 0
    assert compare(codes, found.changed.to_pylist()[0], 48.0).changed.num_rows == 0


def test_row_without_version_counts_as_version_one() -> None:
    """Earlier program versions wrote no version."""
    found = compare(row(level=5), row(), 2.0)

    assert found.changed["version"].to_pylist() == [2]
    assert found.superseded["version"].to_pylist() == [1]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0, 72)), min_size=1, max_size=12)
)
def test_each_version_is_kept_once(changes: list[tuple[int, float]]) -> None:
    """All versions before the current one are kept."""
    current, kept = None, []
    for level, after_h in changes:
        found = compare(row(level=level), current, after_h)
        kept += found.superseded.to_pylist()
        written = [*found.fresh.to_pylist(), *found.changed.to_pylist()]
        current = (written or [current])[0]
    assert current is not None

    assert [then["version"] for then in kept] == list(range(1, current["version"]))
    assert current["level"] == changes[-1][0]


def test_new_readings_of_a_node_are_merged_across_batches() -> None:
    """Late readings add up; those in time only advance the time of receipt."""
    more = NewReadings("n1", 9, 3, LATE.first_us, 1_780_290_000_000_000, 90_000_000_000)
    merged = merge_news([LATE, NewReadings("n1", 7), NewReadings("n2", 5), more])

    assert merged == [
        NewReadings("n1", 9, 15, LATE.first_us, more.last_us, LATE.wait_us),
        NewReadings("n2", 5),
    ]
    assert merge_news([more, LATE]) == merged[:1]
    assert merge_news([NewReadings("n1", 7), LATE]) == [replace(LATE, received_us=7)]


def test_only_rows_with_an_earlier_version_are_objects() -> None:
    """A cell that was scored anew is compared with a day, its neighbours are not."""
    count, new = 20_000, row(cell="c00007", level=2)
    stored = pa.Table.from_pylist(
        [row(cell=f"c{n:05d}") for n in range(count)], schema=LEVELS
    )
    tracemalloc.start()
    try:
        table = pa.Table.from_pylist([new], schema=LEVELS)
        found = revise_rows(table, stored, LEVEL_KEY, {"c00007": [LATE]}, REVISIONS)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found.changed.num_rows == 1
    assert peak_bytes / count < 500
