"""Pages of rows in the order of time: complete, without doubles, within limits."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backend_spark.errors import StandardsRequestError
from backend_spark.tables.bounded_answers import Row, RowQuery, TimeWalk, WalkPosition
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS

BEGIN = datetime(2023, 1, 1, tzinfo=UTC)
CELLS = ("a", "b", "c")
DAYS = 1200


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> DeltaTables:
    """Three years with a row a day for each of three cells, and a gap of a year."""
    folder = tmp_path_factory.mktemp("walk")
    for first in range(0, DAYS, 300):
        rows = [
            {"cell": cell, "at": BEGIN + timedelta(days=day), "level": day % 5 + 1}
            for day in range(first, first + 300)
            if not 400 <= day < 760
            for cell in CELLS
        ]
        table = pa.Table.from_pylist(rows, schema=LEVELS)
        write_deltalake(str(folder / "levels"), table, mode="append")
    return DeltaTables(folder)


def query(**more: object) -> RowQuery:
    """Query for all rows."""
    columns = ("cell", "at", "level")
    return RowQuery("levels", columns, ("cell",), **more)  # type: ignore[arg-type]


def pages(tables: DeltaTables, wanted: RowQuery, size: int) -> Iterator[list[Row]]:
    """All pages."""
    walk, start = TimeWalk(tables, lambda: False), None
    while True:
        page = walk.read_page(wanted, size, start=start)
        yield page.rows
        if page.end is None:
            return
        start = str(page.end)


@pytest.mark.parametrize("is_descending", [True, False])
@pytest.mark.parametrize("size", [700, 1])
def test_pages_hold_every_row_once(
    tables: DeltaTables, size: int, *, is_descending: bool
) -> None:
    """Also where a page ends between rows of one time; of five days for size 1."""
    end = BEGIN + timedelta(days=4) if size == 1 else None
    wanted = query(is_descending=is_descending, end=end)
    rows = [row for page in pages(tables, wanted, size) for row in page]
    keys = [(row["at"], row["cell"]) for row in rows]

    assert len(keys) == len(set(keys)) == (15 if size == 1 else 840 * 3)
    assert [k[0] for k in keys] == sorted((k[0] for k in keys), reverse=is_descending)


def test_rows_are_checked_one_by_one(tables: DeltaTables) -> None:
    """What SQL does not check."""
    wanted = query(accepts=lambda row: row["level"] == 5 and row["cell"] == "b")
    rows = [row for page in pages(tables, wanted, 100) for row in page]

    assert len(rows) == 168
    assert TimeWalk(tables, lambda: False).count(wanted) == 168


def test_count_uses_conditions_and_times(tables: DeltaTables) -> None:
    """Without reading rows into memory."""
    walk = TimeWalk(tables, lambda: False)
    times = {"begin": BEGIN, "end": BEGIN + timedelta(days=9)}

    assert walk.count(query()) == 840 * 3
    assert walk.count(query(conditions=("level = 1",), **times)) == 6


def test_page_ends_when_the_time_is_over(tables: DeltaTables) -> None:
    """With a position that leads on; a rare condition holds no processor."""
    walk = TimeWalk(tables, lambda: True)
    rare = query(conditions=("level > 9",))
    page = walk.read_page(rare, 10)

    assert not page.rows
    assert page.end is not None
    assert page.end.at > BEGIN + timedelta(days=DAYS - 3)
    with pytest.raises(StandardsRequestError, match="counted in time"):
        walk.count(query(accepts=lambda _row: False))


@pytest.mark.parametrize("is_accepted", [True, False])
def test_time_is_looked_at_after_each_row_that_is_checked(
    tables: DeltaTables, *, is_accepted: bool
) -> None:
    """The check of a row may take long; the next page begins with the row after it."""
    checked: list[Row] = []

    def check(row: Row) -> bool:
        checked.append(row)
        return is_accepted

    walk = TimeWalk(tables, lambda: len(checked) >= 7)
    page = walk.read_page(query(accepts=check), 100)

    assert len(checked) == 7
    assert page.rows == (checked if is_accepted else [])
    rest = TimeWalk(tables, lambda: False).read_page(query(), 1, start=f"{page.end}")
    plain = TimeWalk(tables, lambda: False).read_page(query(), 8)
    assert rest.rows == plain.rows[7:]
    with pytest.raises(StandardsRequestError, match="counted in time"):
        walk.count(query(accepts=check))


def test_rows_of_a_query_that_took_all_the_time_are_checked(
    tables: DeltaTables,
) -> None:
    """Else no page of a slow machine would lead on."""
    page = TimeWalk(tables, lambda: True).read_page(query(accepts=lambda _: True), 3)

    assert len(page.rows) == 3


def test_rows_to_leave_out(tables: DeltaTables) -> None:
    """As many as wanted, before the page."""
    page = TimeWalk(tables, lambda: False).read_page(query(), 2, skip=4)

    assert [row["cell"] for row in page.rows] == ["b", "c"]
    assert page.rows[0]["at"] == BEGIN + timedelta(days=DAYS - 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.1",
        "9" * 18 + ".1",
        "1",
        "1.-5",
        "1.1_0",
        "1.1 ",
        "1.\u0661",
        f"1.{2**63}",
        "9" * 5000 + ".1",
    ],
)
def test_invalid_position_is_refused(text: str) -> None:
    """It may come from anyone."""
    with pytest.raises(StandardsRequestError, match="position"):
        WalkPosition.parse(text)


@pytest.mark.parametrize("year", [1, 2023, 9999])
def test_position_outside_of_the_table(tables: DeltaTables, year: int) -> None:
    """Begins at its end, and reads no time that SQL cannot hold."""
    start = WalkPosition(BEGIN.replace(year=year), 10**9 - 1)
    page = TimeWalk(tables, lambda: False).read_page(query(), 5, start=str(start))

    assert len(page.rows) <= 5


@pytest.mark.parametrize("is_descending", [True, False])
def test_position_beyond_the_rows_of_its_time(
    tables: DeltaTables, *, is_descending: bool
) -> None:
    """Continues with the next time: to leave out more would sort a whole day."""
    start = WalkPosition(BEGIN + timedelta(days=5), 10**9 - 1)
    walk = TimeWalk(tables, lambda: False)
    page = walk.read_page(query(is_descending=is_descending), 4, start=str(start))

    days = [(row["at"] - BEGIN).days for row in page.rows]
    assert days == ([4, 4, 4, 3] if is_descending else [6, 6, 6, 7])


def test_table_that_does_not_exist(tmp_path: Path) -> None:
    """Has no rows."""
    walk = TimeWalk(DeltaTables(tmp_path), lambda: False)

    assert walk.read_page(query(), 5).rows == []
    assert walk.count(query()) == 0
