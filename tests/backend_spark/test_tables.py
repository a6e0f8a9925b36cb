"""Reading of the tables by analysts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from backend_spark.tables.delta_writer import (
    BatchTransaction,
    append_files,
    create_tables,
    merge_rows,
    write_file,
)
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVELS, SILVER, TABLES

NOON = datetime(2026, 7, 1, 3, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path: Path) -> DeltaTables:
    """Levels of two cells, merged twice as the job does."""
    create_tables(tmp_path, TABLES)
    empty = dict.fromkeys(LEVELS.names)
    for level in (1, 3):
        rows = [
            {**empty, "cell": cell, "at": NOON + timedelta(minutes=10 * step)}
            | {"level": level, "reasons": ["rain"]}
            for cell in ("a", "it's")
            for step in range(3)
        ]
        made = pa.Table.from_pylist(rows, LEVELS)
        merge_rows(tmp_path / "levels", made, ("cell", "at"))
    return DeltaTables(tmp_path)


def test_rows_of_one_cell_are_sorted_and_have_the_schema(tables: DeltaTables) -> None:
    """Also from files written by a merge, which have another string type."""
    rows = tables.of("levels", "cell", "a", NOON)

    assert rows.schema == LEVELS
    assert rows["level"].to_pylist() == [3, 3, 3]
    assert rows["at"].to_pylist() == sorted(rows["at"].to_pylist())
    until = NOON + timedelta(minutes=10)
    assert tables.of("levels", "cell", "a", until, until).num_rows == 1


@pytest.mark.parametrize("name", ["a' OR '1'='1", "'; DROP TABLE t; --", "b"])
def test_unknown_cell_has_no_rows(tables: DeltaTables, name: str) -> None:
    """Quotation marks in a name cause no SQL injection."""
    assert tables.of("levels", "cell", name, NOON).num_rows == 0
    assert tables.of("levels", "cell", "it's", NOON).num_rows == 3


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (pc.field("level") >= 3, 6),
        (pc.field("level") >= 4, 0),
        (pc.field("level").is_valid(), 6),
        (pc.field("r60_mm").is_null(), 6),
        (pc.field("at") > pa.scalar(NOON, pa.timestamp("us", tz="UTC")), 4),
        (pc.field("at") < pa.scalar(NOON, pa.timestamp("us", tz="UTC")), 0),
    ],
    ids=str,
)
def test_filter_works_on_any_column(
    tables: DeltaTables, wanted: pc.Expression, count: int
) -> None:
    """Also on columns without statistics in the Delta log."""
    assert tables.dataset("levels").to_table(filter=wanted).num_rows == count


def test_rows_of_write_file_are_found_by_node(tmp_path: Path) -> None:
    """It writes statistics of four columns; DuckDB pushes WHERE to the dataset."""
    create_tables(tmp_path, TABLES)
    rows = [
        dict.fromkeys(SILVER.names) | {"node": f"n{n % 2}", "cell": "a", "at": NOON}
        for n in range(10)
    ]
    made = pa.Table.from_pylist(rows, SILVER)
    part = write_file(tmp_path / "silver", made, SILVER)
    append_files(tmp_path / "silver", [part], BatchTransaction("app", 0))
    silver = DeltaTables(tmp_path).dataset("silver")
    (found,) = duckdb.sql("SELECT count(*) FROM silver WHERE node = 'n1'").fetchall()

    assert silver.to_table(filter=pc.field("node") == "n1").num_rows == 5
    assert silver.to_table(filter=pc.field("received_at").is_null()).num_rows == 10
    assert found == (5,)


def test_missing_table_is_empty(tmp_path: Path) -> None:
    """As before the first batch."""
    assert (
        DeltaTables(tmp_path).of("silver", "node", "n1", NOON).schema
        == TABLES["silver"]
    )
