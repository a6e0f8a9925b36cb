"""Numbers, dates and texts beyond their bounds: a status 4xx that names the field."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import free_port
from console_workspace import (
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
    serve,
)

from backend_spark.tables.bounded_answers import MAX_AT_ONCE

CELL = SLOPES[0].cell.token
NUMBERS = ("-1", str(2**63), "9" * 23, "9" * 400, "9" * 5000, "1e999", "nan", "")
DATES = ("0001-01-01", "9999-12-31", "2026-02-30", "9" * 400, "\x00", "")
TEXTS = ("\x00" * 5000, "x" * 60_000)
SPAN = {"from_s": "1793000000", "to_s": "1793000400"}
EVENTS = {
    "since": "0",
    "until": "1793000400",
    "level": "3",
    "offset": "0",
    "limit": "9",
}
SEASON = {"first": "2026-10-01", "last": "2026-10-31"}
QUERIES = (
    ("/api/download/levels.geojson", {"at": "1793000400"}, NUMBERS),
    ("/api/download/draft.xml", {"at": "1793000400"}, NUMBERS),
    ("/api/replay/levels", SPAN, NUMBERS),
    (f"/api/replay/cell/{CELL}", SPAN, NUMBERS),
    (f"/api/replay/cell/{CELL}/frame", SPAN, NUMBERS),
    ("/api/skill", SEASON, DATES),
    ("/api/events", EVENTS, NUMBERS),
    ("/api/reviews", {"hours": "72"}, NUMBERS),
)
VERSION = {"advisory_mm": 100, "warning_mm": 130, "special_mm": 200, "why": "x"}
DRAFT = {"cell": CELL, "version": VERSION}
REVIEW = {
    "node": SLOPES[0].node,
    "name": "rain",
    "from_s": NOW_S - 3600,
    "to_s": NOW_S,
    "verdict": "bad",
    "why": "x",
}
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/api/login", {"name": "a-chief", "password": "x", "code": "1"}),
    ("/api/notes", {"text": "x"}),
    ("/api/thresholds", DRAFT),
    ("/api/thresholds/preview", DRAFT),
    ("/api/reviews", REVIEW),
    ("/api/reviews/preview", {n: REVIEW[n] for n in REVIEW if n != "why"}),
    ("/api/reviews/revert", {"review": 1, "why": "x"}),
    ("/api/what-if", {"mm_per_h": 30, "hours": 3}),
    ("/api/landslides", {"time": "2026-07-01T13:00", "count": 1, "text": "x"}),
    ("/api/events/state", {"events": [1], "state": "closed", "text": "x"}),
)


@pytest.fixture(scope="module")
def chief(
    tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client that is logged in as chief, and may do everything."""
    workspace = Workspace(tmp_path_factory.mktemp("bounds"), free_port())
    shutil.copytree(tables, workspace.data)  # the console writes beside the tables
    with ExitStack() as stack:
        parts = make_test_services(workspace, Clock(), workspace.with_accounts())
        parts.refresh()
        client = stack.enter_context(serve(parts, workspace.port))
        client.headers.update(log_in(client, "a-chief"))
        yield client


def assert_names(answer: httpx.Response, field: str) -> None:
    """Check that an answer refuses a field by its name, in at most one line."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    if answer.headers["content-type"] == "application/json":
        assert field in answer.json()["detail"], answer.text
        assert len(answer.text) < 500


@pytest.mark.parametrize("number", ["0", "-1", str(2**63), "9" * 23, "9" * 5000, "x"])
@pytest.mark.attack(
    "console: number of 23 digits in a path",
    "status 500",
)
def test_number_of_an_event_is_bounded(chief: httpx.Client, number: str) -> None:
    """SQLite's largest row number is 2^63 - 1."""
    assert_names(chief.get(f"/api/events/{number}"), "number")


@pytest.mark.parametrize(("path", "query", "values"), QUERIES)
def test_queries_are_bounded(
    chief: httpx.Client, path: str, query: dict[str, str], values: tuple[str, ...]
) -> None:
    """Each parameter of each route, while the others are valid."""
    assert chief.get(path, params=query).status_code in {200, 404, 409}
    for name in query:
        for value in values:
            assert_names(chief.get(path, params={**query, name: value}), name)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_fields_of_bodies_are_bounded(
    chief: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """Numbers, dates and texts, while the other fields are valid."""
    for name, value in body.items():
        hostile: tuple[object, ...] = (-1, 2**63, 10**400, 1e308, None, [], *TEXTS)
        if isinstance(value, str):
            hostile = (*DATES, *hostile) if name == "time" else hostile
        for each in hostile:
            assert_names(chief.post(path, json={**body, name: each}), name)


@pytest.mark.parametrize("path", ["/api/cell/{}", "/api/node/{}"])
def test_unknown_names_in_paths_are_shortened(chief: httpx.Client, path: str) -> None:
    """The error does not repeat a name of thousands of characters."""
    answer = chief.get(path.format("a" * 5000))

    assert answer.status_code == 404
    assert len(answer.text) < 500


def test_replay_of_an_unknown_cell_is_empty(chief: httpx.Client) -> None:
    """However long its name is."""
    for name in ("x" * 5000, "%00", "%F0%9F%92%A7"):
        for path in (f"/api/replay/cell/{name}", f"/api/replay/cell/{name}/frame"):
            assert chief.get(path, params=SPAN).status_code < 500


def test_answers_at_once_are_limited(workspace: Workspace) -> None:
    """Of what reads much: a third one gets status 503 and when to retry."""
    paths = [
        f"/api/download/levels.geojson?at={NOW_S}",
        f"/api/download/draft.xml?at={NOW_S}",
        f"/api/replay/levels?from_s={NOW_S}&to_s={NOW_S}",
        f"/api/replay/cell/{CELL}?from_s={NOW_S}&to_s={NOW_S}",
        f"/api/replay/cell/{CELL}/frame?from_s={NOW_S}&to_s={NOW_S}",
        "/ogc/collections/levels/items",
        "/sta/v1.1/Observations",
    ]
    with ExitStack() as stack:
        parts = make_test_services(workspace, Clock())
        parts.refresh()
        client = stack.enter_context(serve(parts, workspace.port))
        client.timeout = httpx.Timeout(60)
        with ExitStack() as others:
            for _ in range(MAX_AT_ONCE):
                others.enter_context(parts.replays.turn())
            assert client.get(paths[1]).is_success  # a draft waits for no replay
            for _ in range(MAX_AT_ONCE):
                others.enter_context(parts.standards.limits.turn())
            with ThreadPoolExecutor(len(paths)) as pool:
                busy = list(pool.map(client.get, paths))
        free = [client.get(path) for path in paths]

    for answer in busy:
        assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "2")
        assert "sent again later" in answer.text
    assert {answer.status_code for answer in free} == {200}
