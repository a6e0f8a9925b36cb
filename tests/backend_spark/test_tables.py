"""The tables as analysts read them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from backend_spark.schemas import LEVELS, TABLES
from backend_spark.sinks.commits import make_tables, merge_rows
from backend_spark.tables import Tables

NOON = datetime(2026, 7, 1, 3, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Levels of two cells that were merged twice, as the job does."""
    make_tables(tmp_path, TABLES)
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
    return Tables(tmp_path)


def test_rows_of_one_cell_come_by_time_in_our_types(tables: Tables) -> None:
    """Also from files that a merge wrote, whose texts are of another type."""
    rows = tables.of("levels", "cell", "a", NOON)

    assert rows.schema == LEVELS
    assert rows["level"].to_pylist() == [3, 3, 3]
    assert rows["at"].to_pylist() == sorted(rows["at"].to_pylist())
    until = NOON + timedelta(minutes=10)
    assert tables.of("levels", "cell", "a", until, until).num_rows == 1


@pytest.mark.parametrize("name", ["a' OR '1'='1", "'; DROP TABLE t; --", "b"])
def test_name_that_is_no_cell_has_no_rows(tables: Tables, name: str) -> None:
    """A quotation mark in a name is only that."""
    assert tables.of("levels", "cell", name, NOON).num_rows == 0
    assert tables.of("levels", "cell", "it's", NOON).num_rows == 3


def test_table_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """Before the first batch."""
    assert Tables(tmp_path).of("silver", "node", "n1", NOON).schema == TABLES["silver"]
