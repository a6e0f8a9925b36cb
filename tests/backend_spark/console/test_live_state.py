"""Live state of cells and nodes: levels, history, panels and pushed changes."""

import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from console_tables import STEP_S, Slope, storm, write_tables
from console_workspace import (
    HOSTILE,
    NOW_S,
    SLOPES,
    Clock,
    Workspace,
    log_in,
    make_test_services,
)
from deltalake import DeltaTable, write_deltalake

from backend_spark.console.events import EventFilter
from backend_spark.console.level_grid import (
    HELD_OFFSET,
    MISSING,
    NO_JUDGEMENT,
    STEPS,
    LevelRuns,
)
from backend_spark.console.live_state import LiveState
from backend_spark.console.routes.levels import changes
from backend_spark.tables.delta_writer import merge_rows
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY, LEVELS


@pytest.fixture
def live_state(workspace: Workspace, clock: Clock) -> LiveState:
    """Live state that has read the tables once."""
    live_state = LiveState(workspace.data / "tables", clock)
    live_state.refresh()
    return live_state


def level_of(live_state: LiveState, slope: Slope) -> int:
    """Current level of a slope's cell."""
    return int(
        live_state.snapshot()["levels"][live_state.grid.row_of[slope.cell.token]]
    )


def test_current_levels_equal_gold(live_state: LiveState, workspace: Workspace) -> None:
    """The console does not recompute levels."""
    rows = DeltaTables(workspace.data / "tables").levels().to_pylist()
    newest = {r["cell"]: r["level"] for r in sorted(rows, key=lambda r: r["at"])}

    for slope in (SLOPES[0], SLOPES[1], SLOPES[2], SLOPES[4]):
        assert level_of(live_state, slope) == newest[slope.cell.token]
    assert level_of(live_state, SLOPES[0]) > level_of(live_state, SLOPES[1]) >= 1


def last_levels(workspace: Workspace) -> dict[str, int | None]:
    """Level of the newest row of each cell."""
    rows = DeltaTables(workspace.data / "tables").levels().to_pylist()
    return {r["cell"]: r["level"] for r in sorted(rows, key=lambda r: r["at"])}


def held_or_missing(level: int | None) -> int:
    """What a silent cell shows: a criterion that was reached, but no level 1."""
    return HELD_OFFSET + level if (level or 0) >= 2 else MISSING


def test_cell_without_recent_rows_is_held_or_missing(
    live_state: LiveState, workspace: Workspace
) -> None:
    """After half an hour without a row no level is shown as judged."""
    level = last_levels(workspace)[SLOPES[3].cell.token]

    assert level_of(live_state, SLOPES[3]) == held_or_missing(level)


@pytest.mark.parametrize("hours", [1, 23, 25, 100])
def test_no_cell_is_judged_when_data_stop(
    live_state: LiveState, workspace: Workspace, clock: Clock, hours: int
) -> None:
    """Level 2 is held for a day, a higher one longer; the page has the time."""
    clock.now_s = NOW_S + hours * 3600.0
    live_state.refresh()
    now = live_state.snapshot()
    expected = {
        cell: held_or_missing(level if level != 2 or hours < 24 else None)
        for cell, level in last_levels(workspace).items()
    }
    tokens = live_state.grid.tokens

    assert dict(zip(tokens, now["levels"], strict=True)) == expected
    assert max(expected.values()) > HELD_OFFSET
    assert max(now["known_s"]) == NOW_S


def test_held_row_is_shown_as_held(
    live_state: LiveState, workspace: Workspace, clock: Clock
) -> None:
    """A cell that reports without rain; in the list, the panel and the history."""
    token, known_s = SLOPES[1].cell.token, NOW_S - 7200
    row = DeltaTables(workspace.data / "tables").levels().to_pylist()[-1] | {
        "cell": token, "at": datetime.fromtimestamp(NOW_S, UTC), "level": 4,
        "state": "held", "known_until": datetime.fromtimestamp(known_s, UTC),
    }  # fmt: skip
    rows = pa.Table.from_pylist([row], schema=LEVELS)
    merge_rows(workspace.data / "tables" / "levels", rows, LEVEL_KEY)
    live_state.refresh()
    now, place = live_state.snapshot(), live_state.grid.row_of[token]

    assert now["levels"][place] == HELD_OFFSET + 4
    assert now["known_s"][place] == known_s
    latest = live_state.grid.latest[place]
    assert (latest.level, latest.state, latest.known_until_s) == (4, "held", known_s)


def test_exercise_uses_the_newest_data_as_current_time(
    workspace: Workspace, clock: Clock
) -> None:
    """A storm of last year is shown as if it happened now."""
    clock.now_s = NOW_S + 365 * 86_400.0
    live_state = LiveState(workspace.data / "tables", clock, exercise=True)
    live_state.refresh()

    assert live_state.now_s() == NOW_S
    assert level_of(live_state, SLOPES[0]) > 1


def test_new_rows_are_read_and_the_grid_advances(
    live_state: LiveState, workspace: Workspace, clock: Clock
) -> None:
    """A later commit appears at the next refresh, in its own time step."""
    before = live_state.snapshot()
    later = Slope("otani-9", 33.7, 133.6, storm(40, 12))
    write_tables(workspace.data, [later], NOW_S + STEP_S)
    clock.now_s += STEP_S
    live_state.refresh()
    now = live_state.snapshot()

    assert now["begin_s"] == before["begin_s"] + STEP_S
    assert now["geometry"] != before["geometry"]
    assert level_of(live_state, later) > 1
    assert len(now["levels"]) == len(before["levels"]) + 1


@pytest.mark.parametrize("jump_s", [30 * 86_400.0, 5 * 3600.0, -365 * 86_400.0])
def test_levels_and_events_after_the_clock_was_wrong(
    workspace: Workspace, clock: Clock, jump_s: float
) -> None:
    """A new level is shown and gives an event; the others are as before."""
    parts = make_test_services(workspace, clock)
    parts.refresh()
    state, events = parts.live_state, parts.events.select(EventFilter())
    shown, history = state.snapshot()["levels"], dict(history_of(state))
    clock.now_s += jump_s
    parts.refresh()
    clock.now_s -= jump_s
    parts.refresh()
    later = Slope("otani-9", 33.7, 133.6, storm(40, 12))
    write_tables(workspace.data, [later], NOW_S + STEP_S)
    clock.now_s += STEP_S
    parts.refresh()

    assert level_of(state, later) >= 3
    assert state.snapshot()["levels"][: len(shown)] == shown
    assert history.items() <= dict(history_of(state)).items()
    (new,) = parts.events.select(EventFilter(text=later.cell.token))
    known = {event.number for event in [*events, new]}
    assert {event.number for event in parts.events.select(EventFilter())} == known


def history_of(state: LiveState) -> Iterator[tuple[tuple[str, int], int]]:
    """Cell, time and level of each step of three days that has one."""
    begin_s, raw = state.level_history()
    for at in (at for at, level in enumerate(raw) if level):
        row, step = divmod(at, STEPS)
        time_s = begin_s + step * STEP_S
        if time_s >= NOW_S - 60 * 3600:
            yield (state.grid.tokens[row], time_s), raw[at]


def test_rows_rewritten_by_a_merge_are_read(
    live_state: LiveState, workspace: Workspace
) -> None:
    """After a merge delta-rs writes other string types than before."""
    path = str(workspace.data / "tables" / "levels")
    table = DeltaTable(path)
    rows = table.to_pyarrow_table()
    worse = rows.set_column(
        rows.schema.get_field_index("level"),
        rows.schema.field("level"),
        pa.array([5] * rows.num_rows, pa.int32()),
    )
    table.merge(
        worse,
        predicate="target.cell = source.cell AND target.at = source.at",
        source_alias="source",
        target_alias="target",
        streamed_exec=False,
    ).when_matched_update_all().execute()
    live_state.refresh()

    assert level_of(live_state, SLOPES[2]) == 5


def test_readings_are_the_newest_however_many_are_read_at_a_time(
    live_state: LiveState,
    workspace: Workspace,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first reading covers hours; it keeps the newest of each sensor meanwhile."""
    monkeypatch.setattr("backend_spark.console.live_state.SILVER_ROWS", 7)
    again = LiveState(workspace.data / "tables", clock)
    again.refresh()

    assert again.nodes.by_id == live_state.nodes.by_id
    assert {"rain", "tilt/x"} <= set(again.nodes.by_id["otani-1"].readings)


class CountedTables(DeltaTables):
    """Tables that count how often the newest levels are read."""

    reads = 0

    def newest(self) -> pa.Table:
        """Newest levels."""
        type(self).reads += 1
        return super().newest()


def test_tables_are_read_only_for_levels_whose_begin_is_unknown(
    live_state: LiveState, workspace: Workspace
) -> None:
    """A refresh each second reads no table when nothing has changed."""
    runs = LevelRuns(CountedTables(workspace.data / "tables"))
    levels = live_state.grid.levels_at(live_state.grid.end_s - 2 * STEP_S)
    runs.update(live_state.grid, levels)
    for _ in range(3):
        runs.read_older(live_state.grid.end_s)

    assert CountedTables.reads <= 1


def test_console_does_without_pandas() -> None:
    """It takes a second of CPU time and 40 MB, and pyarrow imports it by itself."""
    code = (
        "import sys\n"
        "from backend_spark.cli.console import WithoutPandas\n"
        "sys.meta_path.insert(0, WithoutPandas())\n"
        "from backend_spark.console import app\n"
        "import pyarrow as pa\n"
        "pa.array([1])\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_table_gives_an_empty_state(tmp_path: object, clock: Clock) -> None:
    """The console may start before the first batch."""
    live_state = LiveState(Workspace(tmp_path, 0).data / "tables", clock)  # type: ignore[arg-type]
    live_state.refresh()

    assert live_state.snapshot()["levels"] == []
    assert live_state.snapshot()["newest_s"] is None


def test_level_history_covers_three_days(
    live_state: LiveState, workspace: Workspace
) -> None:
    """One byte per cell and step; a step without a row is MISSING."""
    begin_s, raw = live_state.level_history()
    rows = DeltaTables(workspace.data / "tables").levels().to_pylist()
    expected = bytearray(len(live_state.grid.tokens) * STEPS)
    for row in rows:
        step = (round(row["at"].timestamp()) - begin_s) // STEP_S
        level = NO_JUDGEMENT if row["level"] is None else row["level"]
        expected[live_state.grid.row_of[row["cell"]] * STEPS + step] = level

    assert raw == bytes(expected)


def test_only_changes_are_pushed(live_state: LiveState, clock: Clock) -> None:
    """The first event holds all cells, later ones only cells whose level changed."""
    first = live_state.snapshot()
    assert changes(None, first)["kind"] == "all"
    same = changes(first, live_state.snapshot())
    assert (same["kind"], same["moved"]) == ("some", [])

    moved = {**first, "levels": [5, *first["levels"][1:]]}
    others = [first[name][0] for name in ("known_s", "since_s", "causes", "margin_mm")]
    assert changes(first, moved)["moved"] == [[0, 5, *others]]


def test_stream_is_compressed_event_by_event(
    open_app: Callable[..., httpx.Client],
) -> None:
    """Each event can be read when it arrives, by a browser that accepts gzip."""
    client, unpack = open_app(), zlib.decompressobj(16 + zlib.MAX_WBITS)
    with client.stream("GET", "/api/live") as answer:
        assert answer.headers["content-encoding"] == "gzip"
        parts = answer.iter_raw()
        packed = list(islice(parts, 2))
    first, second = map(unpack.decompress, packed)
    with client.stream("GET", "/api/live", headers={"Accept-Encoding": ""}) as answer:
        assert "content-encoding" not in answer.headers
        plain = next(answer.iter_raw())

    whole, moved = (
        json.loads(event.removeprefix(b"event: now\ndata: "))
        for event in (first, second)
    )
    assert (whole["kind"], moved["kind"]) == ("all", "some")
    assert first.endswith(b"\n\n")
    assert len(plain) == pytest.approx(len(first), abs=20)
    assert len(packed[0]) < 0.7 * len(first)
    assert len(packed[1]) < len(second) / 2


def test_cell_panel_has_reasons_lines_and_futures(
    open_app: Callable[..., httpx.Client],
) -> None:
    """Everything that the snake line needs; reasons in both languages."""
    panel = open_app().get(f"/api/cell/{SLOPES[0].cell.token}").json()

    assert panel["reasons"][0]["en"].startswith("soil water index")
    assert "土壌雨量指数" in panel["reasons"][0]["ja"]
    assert [future["name"] for future in panel["futures"]] == ["none", "same"]
    dry, wet = panel["futures"]
    assert dry["swi_mm"][-1] < wet["swi_mm"][-1]
    assert panel["lines"]["assumed"]
    assert [node["id"] for node in panel["nodes"]] == ["otani-1"]


def test_futures_equal_gold_until_criteria_change(
    workspace: Workspace, open_app: Callable[..., httpx.Client]
) -> None:
    """Futures and forecast come from gold; after a change the console computes them."""
    token = SLOPES[0].cell.token
    at = datetime.fromtimestamp(NOW_S, UTC)
    tables = DeltaTables(workspace.data / "tables")
    (row,) = tables.of("levels", "cell", token, at, at).to_pylist()
    forecast = {"forecast_mm": [9.0] * 12, "level_forecast": 5, "level_dry": 2}
    rows = [row | forecast | {"margin_forecast_mm": -7.5}]
    merge_rows(tables.path("levels"), pa.Table.from_pylist(rows, LEVELS), LEVEL_KEY)
    client = open_app(workspace.with_accounts())
    proof = log_in(client, "a-chief")
    dry, same, given = client.get(f"/api/cell/{token}").json()["futures"]

    assert (dry["level"], given["level"], given["margin_mm"]) == (2, 5, -7.5)
    assert (same["name"], same["level"]) == ("same", row["level_same"])
    assert same["margin_mm"] == row["margin_same_mm"]
    assert given["swi_mm"][-1] > dry["swi_mm"][-1]

    limits = {"advisory_mm": 100.0, "warning_mm": 900.0, "special_mm": 990.0}
    body = {"cell": token, "version": limits | {"why": "the slope of 2024"}}
    client.post("/api/thresholds", headers=proof, json=body).raise_for_status()
    dry, same = client.get(f"/api/cell/{token}").json()["futures"]

    assert (dry["name"], same["name"]) == ("none", "same")
    assert dry["margin_mm"] > 500


def test_node_panel_has_readings_and_state(
    open_app: Callable[..., httpx.Client],
) -> None:
    """Node names may contain any character, including HTML."""
    client = open_app()
    panel = client.get("/api/node/otani-1").json()
    assert panel["state"] == "well"
    assert set(panel["series"]) == {"rain", "tilt/x", "tilt/y"}
    assert len(panel["series"]["tilt/x"]["value"]) == 288

    listed = client.get("/api/nodes").json()
    state = dict(zip(listed["id"], listed["state"], strict=True))
    assert state["nishi-2"] == "silent"
    assert HOSTILE in state


def test_cells_are_those_of_the_snapshot_while_a_refresh_goes_on(
    live_state: LiveState, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a page would show the levels without the new cell."""
    new = Slope("yama-5", 33.68, 133.58, storm(60))
    write_tables(workspace.data, [new], NOW_S)
    known: list[tuple[int, int]] = []

    def update(*_: object) -> None:
        cells = json.loads(live_state.cells_json().content)
        known.append((cells["geometry"], len(cells["tokens"])))

    before = live_state.geometry
    live_state.cells_json()
    monkeypatch.setattr(LevelRuns, "update", update)
    live_state.refresh()

    assert known == [(live_state.geometry, len(SLOPES) + 1)]
    assert live_state.geometry != before


def test_unknown_cell_returns_404(open_app: Callable[..., httpx.Client]) -> None:
    """The error names the requested cell."""
    answer = open_app().get("/api/cell/ffff")

    assert answer.status_code == 404
    assert "'ffff'" in answer.json()["detail"]


QUERY = """
import sys
from pathlib import Path
from backend_spark.cli.console import limit_memory
limit_memory()
import pyarrow as pa
from deltalake import QueryBuilder, DeltaTable

def own_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(each for each in lines if each.startswith("RssAnon")).split()[1])

table = DeltaTable(sys.argv[1])
before = own_kib()
for _ in range(3):
    query = QueryBuilder().register("t", table)
    pa.table(query.execute("SELECT * FROM t WHERE node = 'n7' ORDER BY at").read_all())
print(own_kib() - before)
"""


def test_queries_return_their_memory(tmp_path: Path) -> None:
    """After queries of a large table the console is about as large as before."""
    count, step = 400_000, pa.int64()
    rows = pa.table({
        "node": [f"n{at % 20_000}" for at in range(count)],
        "at": pa.array(range(count), step),
        "text": [f"{at * 7_919 % 999_983:x}" * 6 for at in range(count)],
    })
    for _ in range(4):
        write_deltalake(str(tmp_path), rows, mode="append")
    ran = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(ran.stdout) < 30_000, "KiB kept"
