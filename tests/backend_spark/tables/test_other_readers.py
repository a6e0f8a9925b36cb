"""Other programs read the tables by their log, and find the rows that our reader finds.

They skip files by the statistics in the log; a file without those of a column, or with
wrong ones, would hide rows.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from backend_spark.streaming import job
from backend_spark.streaming.sources import read_table_rows
from backend_spark.tables.delta_writer import append_rows, create_tables, merge_rows
from backend_spark.tables.maintenance import compact, renew_current
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY, TABLES, TEXTS, UTC_TIME

T0 = datetime(2026, 7, 1, 0, 0, 0, 123_456, tzinfo=UTC)
LONG = "soil water index, of which more than 32 letters are in no statistics: "

Condition = tuple[str, str, Any]
"""Column, comparison and value."""


def _value(kind: pa.DataType, row: int) -> Any:  # noqa: ANN401 - of any column
    """A value of a column that differs from row to row, and is null in some."""
    if row % 7 == 3:
        return None
    values = {
        pa.string(): f"{LONG * (row % 2)}{row % 5}",
        pa.binary(): bytes([row]),
        pa.int32(): row % 6,
        pa.int64(): row,
        pa.float64(): row / 4,
        pa.bool_(): row % 2 == 0,
        UTC_TIME: T0 + timedelta(minutes=10 * row, microseconds=row),
        TEXTS: [f"{row}", "rain"],
    }
    return values.get(kind, [row / 4])


def rows_of(name: str, numbers: range) -> pa.Table:
    """Rows of a table in which each column has values."""
    schema = TABLES[name]
    rows = []
    for number in numbers:
        row = {field.name: _value(field.type, number) for field in schema}
        keys = {"cell": f"354e18{number % 3}c", "at": T0 + timedelta(minutes=number)}
        rows.append(row | {key: keys[key] for key in keys if key in schema.names})
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> DeltaTables:
    """All tables: files that were appended, merged and compacted."""
    folder = tmp_path_factory.mktemp("data") / "tables"
    create_tables(folder, TABLES)
    for name in TABLES.keys() - {"current"}:
        for begin in (0, 10):
            append_rows(folder / name, rows_of(name, range(begin, begin + 10)))
        compact(folder / name)
        append_rows(folder / name, rows_of(name, range(20, 30)))
    again = rows_of("levels", range(25, 28)).to_pylist()
    changed = pa.Table.from_pylist(
        [row | {"level": 5, "margin_mm": -1.5} for row in again], TABLES["levels"]
    )
    merge_rows(folder / "levels", changed, LEVEL_KEY)
    renew_current(folder)
    return DeltaTables(folder)


CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "bronze": (("received_at", ">=", T0 + timedelta(hours=2)), ("batch_id", "<", 18)),
    "silver": (("node", "=", "1"), ("flag", ">=", 2), ("value", ">", 2.5)),
    "rejected": (("reason", "=", f"{LONG}1"), ("pri", "<=", 4)),
    "messages": (("at", "<", T0 + timedelta(minutes=22)), ("cell", "=", "354e181c")),
    "nodes": (("battery_v", ">", 1.0), ("synchronised", "=", True)),
    "levels": (("level", ">=", 4), ("at", ">", T0 + timedelta(minutes=21))),
    "current": (("level_since", "<=", T0 + timedelta(hours=1)), ("level", "<", 5)),
    "sensors": (("failure_at", ">", T0 + timedelta(hours=3)), ("n_readings", "<", 4)),
    "revisions": (("superseded_at", "<", T0 + timedelta(hours=3)), ("level", ">", 1)),
    "sensor_revisions": (("kind", "=", "2"), ("worst_flag", ">", 0)),
    "memories": (("cell", "=", "354e180c"), ("format", ">", 1)),
    "alerts": (("why", "=", f"{LONG}3"), ("seq", ">", 4)),
    "forecasts": (("mm", ">=", 1.5), ("issued_at", "<", T0 + timedelta(hours=4))),
    "analyses": (("mesh", "=", 4), ("at", ">=", T0 + timedelta(minutes=5))),
}
"""Conditions by table, on columns that the files are not sorted by too."""

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: bool(one == other),
    "!=": lambda one, other: bool(one != other),
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
}


def _texts(rows: list[dict[str, Any]]) -> list[str]:
    """Rows in a form that can be compared, in an order."""
    return sorted(repr(sorted(_plain(row).items())) for row in rows)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.astimezone(UTC).isoformat()
        if isinstance(value, datetime)
        else bytes(value)
        if isinstance(value, bytearray)
        else value
        for name, value in row.items()
    }


def _expected(tables: DeltaTables, name: str) -> list[str]:
    """Rows that meet the conditions, chosen in Python from all that our reader has."""
    found = [
        row
        for row in tables.read(name).to_pylist()
        if all(
            row[column] is not None and _COMPARED[sign](row[column], value)
            for column, sign, value in CONDITIONS[name]
        )
    ]
    assert 0 < len(found) < tables.read(name).num_rows, "conditions that select"
    return _texts(found)


def _sql(name: str, quote: str = '"') -> str:
    """The conditions in SQL, with the quotation mark of a name."""
    texts = []
    for column, sign, value in CONDITIONS[name]:
        literal = repr(value)
        if isinstance(value, datetime):
            literal = f"TIMESTAMP '{value.isoformat()}'"
        texts.append(f"{quote}{column}{quote} {sign} {literal}")
    return " AND ".join(texts)


def _filters(name: str) -> list[Condition]:
    return [
        (each, "==" if sign == "=" else sign, v) for each, sign, v in CONDITIONS[name]
    ]


@pytest.mark.parametrize("name", TABLES)
def test_delta_rs_and_pandas_find_the_rows(tables: DeltaTables, name: str) -> None:
    """By filters of the table, and by SQL of delta-rs."""
    table = DeltaTable(str(tables.path(name)))
    frame = table.to_pandas(filters=_filters(name))
    arrow = table.to_pyarrow_table(filters=_filters(name))
    query = f"SELECT * FROM t WHERE {_sql(name)}"  # noqa: S608 - literals
    by_sql = pa.table(QueryBuilder().register("t", table).execute(query).read_all())

    expected = _expected(tables, name)
    assert _texts(arrow.to_pylist()) == expected
    assert len(frame) == len(expected)
    assert _texts(by_sql.to_pylist()) == expected


@pytest.mark.parametrize("name", TABLES)
def test_duckdb_finds_the_rows(tables: DeltaTables, name: str) -> None:
    """On the dataset of delta-rs and on ours; it passes the conditions to them."""
    sql = _sql(name).replace("TIMESTAMP '", "TIMESTAMPTZ '")
    query = f"SELECT * FROM opened WHERE {sql}"  # noqa: S608 - literals
    for opened in (
        DeltaTable(str(tables.path(name))).to_pyarrow_dataset(),
        tables.dataset(name),
    ):
        assert isinstance(opened, ds.Dataset)
        found = duckdb.sql(query).to_arrow_table()
        assert _texts(found.to_pylist()) == _expected(tables, name)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["silver", "levels", "current", "forecasts"])
def test_spark_finds_the_rows(
    tables: DeltaTables, name: str, spark: SparkSession
) -> None:
    """By the data source of the job."""
    job.register(spark)
    opened = read_table_rows(spark, tables.folder, name, {})
    rows = opened.where(_sql(name, "`")).toArrow()

    assert _texts(rows.to_pylist()) == _expected(tables, name)
