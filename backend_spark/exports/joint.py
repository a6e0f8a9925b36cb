"""Joint view of several backends: the newest level of each cell, from all of them.

No backend is left out: one that is stale, has no levels or cannot be read has its line
in the view ``backends`` and its state there, and is named on standard error.
"""

import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic  # noqa: TID251 - how long a store is waited for
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backend_spark.config import parse_tables_url
from backend_spark.exports.sql import SqlTables, answer_sql
from backend_spark.scoring.holds import HELD, JUDGED, UNKNOWN, HoldLimits
from backend_spark.scoring.observation import STEP_S
from backend_spark.tables.current import present_rows
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import CURRENT, UTC_TIME
from backend_spark.tables.store import parse_folder
from service_runtime.errors import FieldError
from service_runtime.settings import (
    KeyRule,
    build_settings,
    key,
    read_settings_table,
)

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
