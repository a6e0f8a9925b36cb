"""SQL on the tables by DuckDB, read only: views with standard names, and the shell.

The column ``at`` is ``time`` in the views, because AT is a keyword of SQL: DuckDB 2
refuses ``SELECT at``. Other names are the same.

The view ``current`` has the level of each cell at the time of the query, ``newest`` the
newest row of each cell as it was computed.

The shell answers one query, those of a file, or one after the other in a terminal.
"""

import csv
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from time import time  # noqa: TID251 - of queries: an old level is not current
from typing import Any, Final

import click
import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from duckdb import DuckDBPyRelation

from backend_spark.config import BackendSection
from backend_spark.errors import SqlError
from backend_spark.exports.formats import csv_value
from backend_spark.scoring.holds import HOLD_S, HoldLimits
from backend_spark.tables.current import present_rows
from backend_spark.tables.reader import open_tables
from backend_spark.tables.schemas import TABLES
from backend_spark.tables.store import is_table

STANDARD_NAMES: Final = {"at": "time"}
"""Columns with another name in the views."""

_CATALOG: Final = re.compile(r"\b(show|information_schema|duckdb_\w+)\b", re.IGNORECASE)
_OPTIONS: Final = {
    # No file but through the views, no extension from the network, no Python variable.
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "TimeZone": "UTC",
}

SHOWN_ROWS: Final = 1000
"""Rows of a printed table above which the middle is left out."""

PROMPT: Final = "sql> "
CONTINUED: Final = "...> "
HELP: Final = (
    "SQL ends with a semicolon; the time of a row is the column time.\n"
    "SHOW TABLES; lists the tables, DESCRIBE levels; the columns of one, .quit ends."
)


class SqlTables:
    """Answers queries on the tables; each reads the newest version.

    A query can neither change the tables nor read or write other files.

    Args:
        views: What reads the rows of each view, by its name.
    """

    def __init__(
        self, views: Mapping[str, Callable[[], pa.Table | ds.Dataset]]
    ) -> None:
        self._views = views
        self._connection = duckdb.connect(":memory:")
        for name, value in _OPTIONS.items():
            self._connection.execute(f"SET {name} = '{value}'")
        self._connection.execute("SET lock_configuration = true")

    def query(self, text: str) -> duckdb.DuckDBPyRelation | None:
        """Run statements of SQL; returns the result of the last, None without one.

        Raises:
            SqlError: A statement is wrong, or not allowed.
        """
        is_listed = _CATALOG.search(text) is not None
        words = {word.lower() for word in re.findall(r"\w+", text)}
        for name in self._views:
            if is_listed or name in words:
                self._create_view(name)
        try:
            return self._connection.sql(text)
        except duckdb.Error as error:
            raise SqlError(
                text, str(error), _remedy(error, words, self._views)
            ) from error

    def _create_view(self, name: str) -> None:
        rows = self._views[name]()
        columns = (
            f'"{column}" AS "{STANDARD_NAMES.get(column, column)}"'
            for column in TABLES.get(name, rows.schema).names
        )
        relation = self._connection.from_arrow(rows)
        relation.project(", ".join(columns)).create_view(name, replace=True)


def open_sql(data: str | Path | BackendSection, hold_s: float = HOLD_S) -> SqlTables:
    """Open the tables of a backend for SQL, as `open_tables` does.

    Args:
        data: As of `open_tables`.
        hold_s: As `score.hold_s` of the backend, for the view ``current``.

    Raises:
        SqlError: There are no tables.
    """
    tables = open_tables(data)
    if not any(is_table(tables.path(name)) for name in TABLES):
        problem = f"no tables in {tables.folder}"
        raise SqlError(
            "",
            problem,
            "check backend.data and backend.tables; backend-spark score makes them",
        )
    views = {name: partial(tables.dataset, name) for name in TABLES}
    limits = HoldLimits(hold_s)
    of_cells = {
        "current": lambda: present_rows(tables.newest(), time(), limits),
        "newest": tables.newest,
    }
    return SqlTables(views | of_cells)


def _remedy(error: duckdb.Error, words: set[str], views: Iterable[str]) -> str:
    """What to do about an error of DuckDB."""
    if "at" in words and isinstance(error, duckdb.ParserException):
        return "the time of a row is the column time"
    if isinstance(error, duckdb.PermissionException):
        return "queries only read the tables; save a result by --format csv > FILE"
    if isinstance(error, duckdb.CatalogException):
        return f"the tables are {', '.join(views)}"
    if "configuration" in str(error):
        return "the settings of DuckDB are fixed, so that queries only read the tables"
    return "the columns are those of DESCRIBE levels, or of another table"


def run_sql(
    section: BackendSection, hold_s: float, query: str | None, form: str
) -> None:
    """Answer a query.

    Args:
        section: Place of the tables.
        hold_s: As `score.hold_s`.
        query: The query; None reads it from standard input.
        form: table, csv or json.

    Raises:
        SqlError: There are no tables, or the query cannot be answered.
    """
    tables = open_sql(section, hold_s)
    if query is None and sys.stdin.isatty():
        _converse(tables, form)
    else:
        answer_sql(tables, sys.stdin.read() if query is None else query, form)


def answer_sql(tables: SqlTables, query: str, form: str) -> None:
    """Print the answer to a query.

    Args:
        tables: What is asked.
        query: The query.
        form: table, csv or json.

    Raises:
        SqlError: The query cannot be answered.
    """
    result = tables.query(query)
    names = [] if result is None else result.columns
    twice = next((name for name in names if names.count(name) > 1), None)
    if form == "json" and twice is not None:
        remedy = "give each its own name with AS"
        raise SqlError(query, f"two columns are named {twice}", remedy)
    try:
        if result is not None:
            _WRITERS[form](result)
    except duckdb.Error as error:  # found in a row
        raise SqlError(query, str(error), "the query ends at that row") from error


def _converse(tables: SqlTables, form: str) -> None:
    with suppress(ImportError):  # editing of lines, where Python has it
        import readline  # noqa: F401, PLC0415
    click.echo(HELP)
    for query in _read_queries():
        try:
            answer_sql(tables, query, form)
        except SqlError as error:
            click.echo(f"Error: {error}", err=True)


def _read_queries() -> Iterator[str]:
    lines: list[str] = []
    while True:
        try:
            line = input(CONTINUED if lines else PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            lines = []
            continue
        if not lines and line.strip().lower() in {".quit", ".exit", "quit", "exit"}:
            return
        lines += [line] if line.strip() else []
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []


def _write_table(result: DuckDBPyRelation) -> None:
    width = shutil.get_terminal_size((200, 0)).columns
    result.show(max_rows=SHOWN_ROWS, max_width=width)


def _write_csv(result: DuckDBPyRelation) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(result.columns)
    for row in _rows(result):
        writer.writerow(map(csv_value, row))


def _write_json(result: DuckDBPyRelation) -> None:
    names = result.columns
    separator = "["
    for row in _rows(result):
        line = msgspec.json.encode(dict(zip(names, row, strict=True))).decode()
        sys.stdout.write(f"{separator}\n{line}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def _rows(result: DuckDBPyRelation) -> Iterator[list[Any]]:
    """Values by position: several columns can have one name."""
    for batch in result.to_arrow_reader():
        columns = (column.to_pylist() for column in batch.columns)
        for row in zip(*columns, strict=True):
            yield _plain(row)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any column
    """A value; a decimal, such as a sum of integers, as a number, an interval as text.

    Also in lists and structs.
    """
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, pa.MonthDayNano):
        return _interval_text(*value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    """An interval as DuckDB writes it, each part with its sign."""
    years, months = (int(part) for part in (months / 12, math.fmod(months, 12)))
    counts = {"year": years, "month": months, "day": days}
    parts = [
        f"{count} {unit}" + "s" * (abs(count) != 1)
        for unit, count in counts.items()
        if count
    ]
    if nanoseconds or not parts:
        seconds, microseconds = divmod(abs(nanoseconds) // 1000, 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        fraction = f".{microseconds:06}".rstrip("0").rstrip(".")
        sign = "-" if nanoseconds < 0 else ""
        parts.append(f"{sign}{hour:02}:{minute:02}:{second:02}{fraction}")
    return " ".join(parts)


_WRITERS: Final[dict[str, Callable[[DuckDBPyRelation], None]]] = {
    "table": _write_table,
    "csv": _write_csv,
    "json": _write_json,
}
