"""``backend-spark sql`` and `open_sql`: queries on the tables."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from backend_spark import open_sql
from backend_spark.cli import cli
from backend_spark.errors import SqlError
from backend_spark.tables.delta_writer import append_rows, create_tables, merge_rows
from backend_spark.tables.schemas import LEVEL_KEY, LEVELS, TABLES

T0 = datetime(2026, 7, 1, tzinfo=UTC)


def levels(cell: str, steps: range, level: int) -> pa.Table:
    """Rows of a cell at one level."""
    rows = [
        {"cell": cell, "at": T0 + timedelta(minutes=10 * step), "level": level}
        | {"reasons": ["=rain", "tilt"]}
        for step in steps
    ]
    return pa.Table.from_pylist(rows, schema=LEVELS)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Levels of two cells, appended and merged as the job does."""
    tables = tmp_path / "tables"
    create_tables(tables, TABLES)
    append_rows(tables / "levels", levels("354e18bc", range(3), 1))
    append_rows(tables / "levels", levels("354e18c4", range(3), 3))
    merge_rows(tables / "levels", levels("354e18bc", range(1, 2), 2), LEVEL_KEY)
    return tmp_path


@pytest.fixture
def ask(data: Path, tmp_path: Path) -> Callable[..., Result]:
    """Function that runs the command."""
    config = tmp_path / "backend.toml"
    config.write_text(f'[backend]\ndata = "{data}"\n')

    def run(*arguments: str, text: str | None = None) -> Result:
        command = ["sql", "--config", str(config), *arguments]
        return CliRunner().invoke(cli, command, input=text)

    return run


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_a_view_is_selected_without_quotes(
    data: Path, name: str
) -> None:
    """None is a keyword that DuckDB refuses; the time is called time."""
    columns = ["time" if each == "at" else each for each in TABLES[name].names]
    result = open_sql(data).query(f"SELECT {', '.join(columns)} FROM {name}")  # noqa: S608

    assert result is not None
    assert result.columns == columns


def test_query_prints_a_table(ask: Callable[..., Result]) -> None:
    """Also one from standard input."""
    query = "SELECT cell, max(level) AS top FROM levels GROUP BY cell ORDER BY cell"
    for printed in (ask(query), ask(text=f"{query};\n")):
        assert printed.exit_code == 0, printed.output
        assert [line.split() for line in printed.output.splitlines()[4:6]] == [
            ["│", "354e18bc", "│", "2", "│"],
            ["│", "354e18c4", "│", "3", "│"],
        ]


def test_csv_and_json_have_all_values(ask: Callable[..., Result]) -> None:
    """Times with their offset, lists, sums as numbers; no formulas in CSV."""
    query = (
        "SELECT cell, time, reasons, sum(level) OVER () AS s, r60_mm FROM levels "
        "WHERE cell = '354e18c4' AND time > TIMESTAMPTZ '2026-07-01 09:05+09:00' "
        "ORDER BY time"
    )
    (first, _) = csv.DictReader(io.StringIO(ask("--format", "csv", query).output))
    found = json.loads(ask("--format", "json", query).output)

    assert first == {
        "cell": "354e18c4",
        "time": "2026-07-01T00:10:00+00:00",
        "reasons": "'=rain; tilt",
        "s": "6",
        "r60_mm": "",
    }
    assert [row["time"] for row in found] == [
        "2026-07-01T00:10:00Z",
        "2026-07-01T00:20:00Z",
    ]
    assert found[0]["reasons"] == ["=rain", "tilt"]
    assert (found[0]["s"], found[0]["r60_mm"]) == (6, None)
    nothing = ask("--format", "json", "SELECT * FROM levels WHERE cell = 'x'")
    assert json.loads(nothing.output) == []


def test_columns_of_one_name_keep_their_values(ask: Callable[..., Result]) -> None:
    """In CSV by position; an object of JSON cannot have both."""
    query = (
        "SELECT a.time, a.level, b.time, b.level FROM levels a JOIN levels b "
        "ON a.cell < b.cell AND a.time = b.time ORDER BY a.time LIMIT 1"
    )
    heading, row = csv.reader(io.StringIO(ask("--format", "csv", query).output))
    refused = ask("--format", "json", query)

    at = T0.isoformat()
    assert heading == ["time", "level", "time", "level"]
    assert row == [at, "1", at, "3"]
    assert refused.exit_code == 2
    assert "two columns are named time" in refused.output
    assert "AS" in refused.output


def test_intervals_are_written_as_in_a_table(ask: Callable[..., Result]) -> None:
    """With both signs, also in lists; decimals in lists are numbers."""
    intervals = [
        "14 months 33 days 38 seconds",
        "-14 months",
        "1 day -90 minutes -1500 milliseconds",
        "1 year 1 month -1 day 100 hours 1 microsecond",
        "0 days",
    ]
    columns = ", ".join(
        f"INTERVAL '{each}' AS i{number}, i{number}::VARCHAR AS t{number}"
        for number, each in enumerate(intervals)
    )
    query = f"SELECT {columns}, [i0] AS l, [1.5, NULL] AS d, {{'x': 2.5}} AS s"
    (line,) = csv.DictReader(io.StringIO(ask("--format", "csv", query).output))
    (found,) = json.loads(ask("--format", "json", query).output)

    for row in (line, found):
        for number in range(len(intervals)):
            assert row[f"i{number}"].lstrip("'") == row[f"t{number}"].lstrip("'")
    assert found["i0"] == "1 year 2 months 33 days 00:00:38"
    assert (found["l"], found["d"]) == ([found["i0"]], [1.5, None])
    assert found["s"] == {"x": 2.5}
    assert (line["l"], line["d"]) == (found["i0"], "1.5; None")


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ("SELECT at FROM levels", "the time of a row is the column time"),
        ("SELECT * FROM gold", "the tables are bronze, silver"),
        ("SELECT cell::INT FROM levels", "ends at that row"),
        ("SELECT depth FROM levels", "DESCRIBE levels"),
        ("COPY levels TO '{data}/x.csv'", "--format csv > FILE"),
        ("COPY levels TO '{data}/tables/levels/x.parquet'", "--format csv > FILE"),
        ("EXPLAIN ANALYZE COPY levels TO '{data}/x.csv'", "--format csv > FILE"),
        ("SELECT * FROM read_text('/etc/hostname')", "only read the tables"),
        ("ATTACH '{data}/x.db'", "only read the tables"),
        ("INSTALL spatial", "only read the tables"),
        ("SET enable_external_access = true", "only read the tables"),
        ("RESET lock_configuration", "only read the tables"),
    ],
)
def test_wrong_query_is_refused_with_a_remedy(
    ask: Callable[..., Result], data: Path, query: str, remedy: str
) -> None:
    """It neither reads nor writes another file."""
    before = sorted(data.rglob("*"))
    refused = ask(query.format(data=data))

    assert refused.exit_code == 2
    assert remedy in refused.output
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize("query", ["DELETE FROM levels", "DROP VIEW levels"])
def test_statement_cannot_change_the_tables(data: Path, query: str) -> None:
    """What it changes is gone with the next query."""
    tables = open_sql(data)
    with suppress(SqlError):
        tables.query(query)
    counted = tables.query("SELECT count(*) FROM levels")

    assert counted is not None
    assert counted.fetchall() == [(6,)]


def test_each_query_reads_the_newest_rows(data: Path) -> None:
    """Names in any case; the newest levels also where their table is behind."""
    tables = open_sql(data)
    query = 'SELECT max(level) FROM "NEWEST" JOIN Levels USING (cell, time, level)'
    for level in (4, 5):
        append_rows(
            data / "tables" / "levels", levels("new", range(level, level + 1), level)
        )
        found = tables.query(query)
        assert found is not None
        assert found.fetchall() == [(level,)]


def test_tables_are_listed(ask: Callable[..., Result]) -> None:
    """Although none was named before."""
    names = [
        row["name"] for row in json.loads(ask("--format=json", "SHOW TABLES").output)
    ]

    assert names == sorted([*TABLES, "newest"])


def test_level_of_a_silent_cell_is_not_current(
    data: Path, ask: Callable[..., Result]
) -> None:
    """It is held, and unknown when the hold has ended; its row is in another view."""
    now = datetime.now(UTC)
    rows = [
        {"cell": cell, "at": now - age, "level": 4, "notice_level": 3}
        | {"state": "judged"}
        for cell, age in (
            ("fresh", timedelta(0)),
            ("held", timedelta(days=2)),
            ("over", timedelta(days=12)),
        )
    ]
    table = pa.Table.from_pylist(rows, LEVELS)
    append_rows(data / "tables" / "levels", table)
    query = (
        "SELECT cell, level, notice_level, state, known_until = time AS is_last, "
        "level_since = time AS is_since FROM {} WHERE cell[1] IN ('f', 'h', 'o') "
        "ORDER BY cell"
    )
    current = json.loads(ask("--format=json", query.format("current")).output)
    newest = json.loads(ask("--format=json", query.format("newest")).output)
    (data / "backend.toml").write_text(
        f'[backend]\ndata = "{data}"\n[score]\nhold_s = 86400\n'
    )
    shorter = json.loads(ask("--format=json", query.format("current")).output)

    fresh = {"cell": "fresh", "level": 4, "notice_level": 3, "state": "judged"}
    fresh |= {"is_last": None, "is_since": True}
    held = fresh | {"cell": "held", "state": "held", "is_last": True}
    over = held | {"cell": "over", "level": None, "state": "unknown"}
    over |= {"notice_level": None, "is_since": None}
    assert current == [fresh, held, over]
    assert shorter == [fresh, over | {"cell": "held"}, over]
    assert newest == [fresh | {"cell": cell} for cell in ("fresh", "held", "over")]
    found = open_sql(data, hold_s=86_400.0).query(
        "SELECT count(*) FROM current WHERE cell = 'held' AND level IS NULL"
    )
    assert found is not None
    assert found.fetchall() == [(1,)]


def test_folder_without_tables_is_named(tmp_path: Path) -> None:
    """It is a wrong setting, or nothing was scored."""
    with pytest.raises(SqlError, match=r"no tables in .*\n.*backend\.data"):
        open_sql(tmp_path / "nowhere")


def test_terminal_answers_one_query_after_the_other(
    ask: Callable[..., Result], tmp_path: Path
) -> None:
    """Over several lines; an error does not end it, .quit does."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "backend_spark", "sql", "--format", "csv"]
    program = subprocess.Popen(
        [*command, "--config", str(tmp_path / "backend.toml")],
        stdin=inner,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(inner)
    os.write(
        outer, b"SELECT count(*)\n  AS rows FROM levels;\nSELEC;\nSELECT 7;\n.quit\n"
    )
    printed, _ = program.communicate(timeout=60)
    os.close(outer)

    assert program.returncode == 0, printed
    lines = printed.splitlines()
    assert any(line.endswith("rows") for line in lines)
    assert "6" in lines
    assert "syntax error" in printed
    assert "7" in lines
