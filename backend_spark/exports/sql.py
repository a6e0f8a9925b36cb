"""SQL on the tables by DuckDB, read only: views with standard names, and the shell.

The column ``at`` is ``time`` in the views, because AT is a keyword of SQL: DuckDB 2
refuses ``SELECT at``. Other names are the same.

The view ``current`` has the level of each cell at the time of the query, ``newest`` the
newest row of each cell as it was computed.

The shell answers one query, those of a file, or one after the other in a terminal.

A joint view has the newest levels of several backends. No backend is left out: one that
is stale, has no levels or cannot be read has its line in the view ``backends`` and its
state there, and is named on standard error.
"""

import csv
import math
import multiprocessing
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import (
    monotonic,  # noqa: TID251 - how long a store is waited for
    time,  # noqa: TID251 - of queries: an old level is not current
)
from typing import Any, Final

import click
import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from duckdb import DuckDBPyRelation

from backend_spark.config import BackendSection, parse_tables_url
from backend_spark.errors import SqlError
from backend_spark.exports.formats import csv_value
from backend_spark.scoring.holds import HELD, HOLD_S, JUDGED, UNKNOWN, HoldLimits
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.current import present_rows
from backend_spark.tables.reader import DeltaTables, open_tables
from backend_spark.tables.schemas import CURRENT, TABLES, UTC_TIME
from backend_spark.tables.store import is_table, parse_folder
from service_runtime.errors import FieldError
from service_runtime.settings import (
    KeyRule,
    build_settings,
    key,
    read_settings_table,
)

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

LIVE: Final = "current"
STALE: Final = "stale"
AHEAD: Final = "ahead"
EMPTY: Final = "empty"
UNREACHABLE: Final = "unreachable"
"""States of a backend."""

MOST_AHEAD_S: Final = 600 + STEP_S
"""A reading may be ahead by the default of score.max_ahead_s, a row by a step more."""

CELLS: Final = pa.schema([pa.field("backend", pa.string()), *CURRENT])
BACKENDS: Final = pa.schema([
    pa.field("backend", pa.string()),
    pa.field("state", pa.string()),
    pa.field("newest", UTC_TIME),
    pa.field("cells", pa.int64()),
    pa.field("highest", pa.int32()),
    *(pa.field(state, pa.int64()) for state in (JUDGED, HELD, UNKNOWN)),
    pa.field("problem", pa.string()),
])


@dataclass(frozen=True)
class JointSection:
    """``[joint]``: limits of a joint view."""

    max_age_s: float = key(
        KeyRule("Age of its newest level from which a backend is stale.", "s", 600),
        3600.0,
    )
    timeout_s: float = key(
        KeyRule("Time after which a backend is unreachable.", "s", 1, 600), 30.0
    )
    hold_s: float = key(
        KeyRule("As `score.hold_s` of the backends.", "s", 3600, 90 * 86_400),
        7 * 86_400.0,
    )


@dataclass(frozen=True)
class JointBackend:
    """``[[backend]]``: one of the backends of a joint view."""

    name: str = key(KeyRule("Name of the backend, such as that of a prefecture."))
    tables: str = key(
        KeyRule(
            "Place of its tables, as `backend.tables`: a folder or a URL.",
            check=parse_tables_url,
        )
    )


@dataclass(frozen=True)
class JointSettings:
    """Settings of a joint view."""

    joint: JointSection
    backend: tuple[JointBackend, ...] = key(
        KeyRule("Backends of the view."),
        (),
    )

    def __post_init__(self) -> None:
        """Refuse a view of nothing, and two backends of one name."""
        names = [each.name for each in self.backend]
        if not names:
            raise FieldError("backend", "given once or more", "none")
        for name in names:
            if names.count(name) > 1:
                raise FieldError("backend.name", "a name of its own", name)


def read_joint_settings(path: Path) -> JointSettings:
    """Read and check the settings of a joint view.

    Raises:
        SettingsError: The file is missing, is not TOML, or breaks a rule.
    """
    return build_settings(JointSettings, read_settings_table(path))


@dataclass(frozen=True)
class BackendLevels:
    """What a backend has at the moment of reading.

    Attributes:
        name: Name of the backend.
        state: One of `LIVE`, `STALE`, `AHEAD`, `EMPTY` and `UNREACHABLE`.
        rows: Newest row of each cell (`CELLS`); level, state and known_until are those
            of the moment.
        problem: Why it is not `LIVE`; empty if it is.
    """

    name: str
    state: str
    rows: pa.Table
    problem: str = ""

    @property
    def summary(self) -> dict[str, Any]:
        """Row of the view ``backends``."""
        states = self.rows["state"].to_pylist()
        return {
            "backend": self.name,
            "state": self.state,
            "newest": pc.max(self.rows["at"]).as_py(),
            "cells": self.rows.num_rows,
            "highest": pc.max(self.rows["level"]).as_py(),
            **{state: states.count(state) for state in (JUDGED, HELD, UNKNOWN)},
            "problem": self.problem,
        }


def read_backends(settings: JointSettings, now_s: float) -> list[BackendLevels]:
    """Read all backends at once, each in a process of its own.

    delta-rs holds Python's lock while it waits for a store, so that a store that hangs
    would stop all threads; a process can be ended. The caller must not have read a
    table itself before: delta-rs refuses to work in a fork of such a process.

    Args:
        settings: The backends and limits.
        now_s: The present, Unix time.

    Returns:
        One for each backend, in the order of the settings.
    """
    fork = multiprocessing.get_context("fork")  # without the imports of a new process
    readers = {}
    for backend in settings.backend:
        answer, end = fork.Pipe(duplex=False)
        arguments = (end, backend, settings.joint, now_s)
        process = fork.Process(target=_answer_read, args=arguments, daemon=True)
        process.start()
        end.close()
        readers[backend.name] = process, answer
    deadline_s = monotonic() + settings.joint.timeout_s
    found = []
    for name, (process, answer) in readers.items():
        problem = f"no answer within {settings.joint.timeout_s:g} s"
        try:
            has_answered = answer.poll(max(0.0, deadline_s - monotonic()))
            levels = answer.recv() if has_answered else _unreachable(name, problem)
        except EOFError:
            levels = _unreachable(name, "its reader ended without an answer")
        found.append(levels)
        process.kill()
        process.join()
    return found


def _answer_read(
    end: Connection, backend: JointBackend, limits: JointSection, now_s: float
) -> None:
    """Send what a backend has; runs in a process of its own."""
    try:
        levels = _read_backend(backend, limits, now_s)
    except Exception as error:  # noqa: BLE001 - one backend must not hide the others
        levels = _unreachable(backend.name, _first_line(error))
    end.send(levels)


def _unreachable(name: str, problem: str) -> BackendLevels:
    return BackendLevels(name, UNREACHABLE, CELLS.empty_table(), problem)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _read_backend(
    backend: JointBackend, limits: JointSection, now_s: float
) -> BackendLevels:
    folder = parse_folder(backend.tables)
    if isinstance(folder, Path) and not folder.is_dir():
        # An unmounted file system, too.
        return _unreachable(backend.name, f"{folder} is no folder")
    newest = DeltaTables(folder).newest()
    rows = present_rows(newest, now_s, HoldLimits(limits.hold_s))
    rows = rows.add_column(0, CELLS.field(0), pa.repeat(backend.name, rows.num_rows))
    state, problem = _judge_age(pc.max(rows["at"]).as_py(), limits.max_age_s, now_s)
    return BackendLevels(backend.name, state, rows, problem)


def _judge_age(
    newest: datetime | None, max_age_s: float, now_s: float
) -> tuple[str, str]:
    """State of a backend that was read, and its problem."""
    if newest is None:
        return EMPTY, "it has no levels"
    age_s = now_s - newest.timestamp()
    if age_s > max_age_s:
        return STALE, f"its newest level is of {newest.isoformat()}"
    if -age_s > MOST_AHEAD_S:
        return AHEAD, f"a level is of {newest.isoformat()}; check the clocks"
    return LIVE, ""


def joint_sql(backends: Sequence[BackendLevels]) -> SqlTables:
    """SQL on the views ``cells`` and ``backends`` of what was read."""
    cells = pa.concat_tables([CELLS.empty_table(), *(each.rows for each in backends)])
    summaries = pa.Table.from_pylist([each.summary for each in backends], BACKENDS)
    return SqlTables({"cells": lambda: cells, "backends": lambda: summaries})


def run_joint(
    settings: JointSettings, query: str | None, form: str, now_s: float
) -> bool:
    """Answer a query on all backends, and name those that are not current.

    Args:
        settings: The backends and limits.
        query: The query; None shows the view ``backends``.
        form: table, csv or json.
        now_s: The present, Unix time.

    Returns:
        Whether all backends are current.

    Raises:
        SqlError: The query cannot be answered.
    """
    backends = read_backends(settings, now_s)
    # First, so that an answer that is wrong or long does not hide them.
    late = list(_warnings(backends))
    sys.stderr.writelines(late)
    answer_sql(joint_sql(backends), query or "SELECT * FROM backends", form)
    return not late


def _warnings(backends: Iterable[BackendLevels]) -> Iterable[str]:
    return (
        f"{each.name}: {each.state}: {each.problem}\n"
        for each in backends
        if each.state != LIVE
    )
