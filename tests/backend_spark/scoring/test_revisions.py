"""Versions of rows, without Spark."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

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
    """A row of levels; what is not given is null."""
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
    """Revise with news that came so long after the step."""
    came = us(AT + timedelta(hours=after_h))
    news = {"c": [replace(LATE, received_us=came)]}
    tables = [pa.Table.from_pylist([r] if r else [], schema=LEVELS) for r in (new, old)]
    return revise_rows(*tables, LEVEL_KEY, news, REVISIONS)


def test_first_row_is_version_one() -> None:
    """Nothing stood before."""
    found = compare(row(), None, 0.1)

    assert found.fresh["version"].to_pylist() == [1]
    assert found.superseded.num_rows == 0


def test_change_within_the_hour_keeps_the_version() -> None:
    """Rain is spread back, and nobody calls that a revision."""
    found = compare(row(level=2), row(version=1), 0.9)

    assert found.changed.to_pylist()[0] == row_of(row(level=2, version=1))
    assert found.superseded.num_rows == 0


def row_of(columns: dict[str, Any]) -> dict[str, Any]:
    """With all columns of the table."""
    return pa.Table.from_pylist([columns], schema=LEVELS).to_pylist()[0]  # type: ignore[no-any-return]


def test_later_change_is_a_version_that_says_why() -> None:
    """The row as it stood is kept with the same words."""
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


def test_row_that_tells_the_same_is_not_written_again() -> None:
    """Neither a new version nor a new file."""
    found = compare(row(swi_mm=50.0000001), row(version=2), 47.0)

    assert found.changed.num_rows == found.superseded.num_rows == 0


def test_codes_of_the_same_reasons_are_no_change() -> None:
    """A row of an earlier program gets its codes without a new version."""
    codes = row(reason_codes=['["text","r"]'])
    found = compare(codes, row(version=2), 47.0)

    assert found.changed.to_pylist() == [row_of(codes | {"version": 2})]
    assert found.superseded.num_rows == 0
    assert compare(codes, found.changed.to_pylist()[0], 48.0).changed.num_rows == 0


def test_row_of_an_earlier_program_was_the_first_version() -> None:
    """It has no version yet."""
    found = compare(row(level=5), row(), 2.0)

    assert found.changed["version"].to_pylist() == [2]
    assert found.superseded["version"].to_pylist() == [1]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0, 72)), min_size=1, max_size=12)
)
def test_no_version_is_lost_or_told_twice(changes: list[tuple[int, float]]) -> None:
    """Whatever comes, the versions before the last are all kept, once each."""
    stands, kept = None, []
    for level, after_h in changes:
        found = compare(row(level=level), stands, after_h)
        kept += found.superseded.to_pylist()
        written = [*found.fresh.to_pylist(), *found.changed.to_pylist()]
        stands = (written or [stands])[0]
    assert stands is not None

    assert [then["version"] for then in kept] == list(range(1, stands["version"]))
    assert stands["level"] == changes[-1][0]


def test_news_of_a_node_is_one_however_its_batches_were_cut() -> None:
    """What is late adds up; what came in time only moves the receipt on."""
    more = NewReadings("n1", 9, 3, LATE.first_us, 1_780_290_000_000_000, 90_000_000_000)
    told = merge_news([LATE, NewReadings("n1", 7), NewReadings("n2", 5), more])

    assert told == [
        NewReadings("n1", 9, 15, LATE.first_us, more.last_us, LATE.wait_us),
        NewReadings("n2", 5),
    ]
    assert merge_news([NewReadings("n1", 7), LATE]) == [replace(LATE, received_us=7)]
