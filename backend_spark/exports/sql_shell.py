"""Shell for SQL: one query, those of a file, or one after the other in a terminal."""

import csv
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import click
import duckdb
import msgspec
from duckdb import DuckDBPyRelation

from backend_spark.config import BackendSection
from backend_spark.errors import SqlError
from backend_spark.exports.formats import csv_value
from backend_spark.tables.sql import SqlTables, open_sql

SHOWN_ROWS: Final = 1000
"""Rows of a printed table above which the middle is left out."""

PROMPT: Final = "sql> "
CONTINUED: Final = "...> "
HELP: Final = (
    "SQL ends with a semicolon; the time of a row is the column time.\n"
    "SHOW TABLES; lists the tables, DESCRIBE levels; the columns of one, .quit ends."
)


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
        writer.writerow([csv_value(value) for value in row.values()])


def _write_json(result: DuckDBPyRelation) -> None:
    separator = "["
    for row in _rows(result):
        sys.stdout.write(f"{separator}\n{msgspec.json.encode(row).decode()}")
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def _rows(result: DuckDBPyRelation) -> Iterator[dict[str, Any]]:
    for batch in result.to_arrow_reader():
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any column
    """A value; a decimal number, such as the sum of integers, as a number."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


_WRITERS: Final[dict[str, Callable[[DuckDBPyRelation], None]]] = {
    "table": _write_table,
    "csv": _write_csv,
    "json": _write_json,
}
