"""What the pages are told of cells and nodes."""

from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pyarrow as pa
import pytest
from console_house import HOSTILE, NOW_S, SLOPES, Clock, House
from console_tables import STEP_S, Slope, storm, write_tables
from deltalake import DeltaTable

from backend_spark.console.app import CONSOLE_FOLDER, JOURNAL_FILE
from backend_spark.console.audit_log import Journal
from backend_spark.console.level_grid import MISSING, NO_JUDGEMENT, STEPS
from backend_spark.console.live_state import LiveState
from backend_spark.console.routes.levels import changes
from backend_spark.tables.delta_writer import merge_rows
from backend_spark.tables.reader import DeltaTables
from backend_spark.tables.schemas import LEVEL_KEY, LEVELS


@pytest.fixture
def board(house: House, clock: Clock) -> LiveState:
    """The slopes, read."""
    board = LiveState(house.data / "tables", clock)
    board.refresh()
    return board


def level_of(board: LiveState, slope: Slope) -> int:
    """Present level of a slope's cell."""
    return int(board.snapshot()["levels"][board.grid.row_of[slope.cell.token]])


def test_present_levels_are_those_of_gold(board: LiveState, house: House) -> None:
    """Nothing is judged anew on the way to the map."""
    rows = DeltaTables(house.data / "tables").levels().to_pylist()
    newest = {r["cell"]: r["level"] for r in sorted(rows, key=lambda r: r["at"])}

    for slope in (SLOPES[0], SLOPES[1], SLOPES[2], SLOPES[4]):
        assert level_of(board, slope) == newest[slope.cell.token]
    assert level_of(board, SLOPES[0]) > level_of(board, SLOPES[1]) >= 1


def test_a_cell_that_fell_silent_is_missing_and_not_quiet(board: LiveState) -> None:
    """After half an hour without a row no level is shown."""
    assert level_of(board, SLOPES[3]) == MISSING


def test_all_cells_go_missing_when_data_stop(board: LiveState, clock: Clock) -> None:
    """The clock goes on, and old levels do not stand for the present."""
    clock.now_s = NOW_S + 3600.0
    board.refresh()

    assert set(board.snapshot()["levels"]) == {MISSING}


def test_an_exercise_takes_the_newest_data_as_the_present(
    house: House, clock: Clock
) -> None:
    """A storm of last year is judged as if it were now."""
    clock.now_s = NOW_S + 365 * 86_400.0
    board = LiveState(house.data / "tables", clock, exercise=True)
    board.refresh()

    assert board.now_s() == NOW_S
    assert level_of(board, SLOPES[0]) > 1


def test_new_rows_are_taken_and_the_grid_moves_on(
    board: LiveState, house: House, clock: Clock
) -> None:
    """A later commit shows at the next look, at its own step."""
    before = board.snapshot()
    later = Slope("otani-9", 33.7, 133.6, storm(40, 12))
    write_tables(house.data, [later], NOW_S + STEP_S)
    clock.now_s += STEP_S
    board.refresh()
    now = board.snapshot()

    assert now["begin_s"] == before["begin_s"] + STEP_S
    assert now["geometry"] == before["geometry"] + 1
    assert level_of(board, later) > 1
    assert len(now["levels"]) == len(before["levels"]) + 1


def test_rows_that_a_merge_writes_anew_are_taken(
    board: LiveState, house: House
) -> None:
    """The job merges, and delta-rs then writes other types of text than before."""
    path = str(house.data / "tables" / "levels")
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
    board.refresh()

    assert level_of(board, SLOPES[2]) == 5


def test_a_table_that_is_not_there_yet_is_an_empty_board(
    tmp_path: object, clock: Clock
) -> None:
    """The console may start before the first batch."""
    board = LiveState(House(tmp_path, 0).data / "tables", clock)  # type: ignore[arg-type]
    board.refresh()

    assert board.snapshot()["levels"] == []
    assert board.snapshot()["newest_s"] is None


def test_history_holds_every_level_of_three_days(
    board: LiveState, house: House
) -> None:
    """One byte a cell and step; a step without a row is MISSING."""
    begin_s, raw = board.level_history()
    rows = DeltaTables(house.data / "tables").levels().to_pylist()
    expected = bytearray(len(board.grid.tokens) * STEPS)
    for row in rows:
        step = (round(row["at"].timestamp()) - begin_s) // STEP_S
        level = NO_JUDGEMENT if row["level"] is None else row["level"]
        expected[board.grid.row_of[row["cell"]] * STEPS + step] = level

    assert raw == bytes(expected)


def test_only_what_changed_is_pushed(board: LiveState, clock: Clock) -> None:
    """The first event tells all, the next ones the cells that moved."""
    first = board.snapshot()
    assert changes(None, first)["kind"] == "all"
    same = changes(first, board.snapshot())
    assert (same["kind"], same["moved"]) == ("some", [])

    moved = {**first, "levels": [5, *first["levels"][1:]]}
    assert changes(first, moved)["moved"] == [[0, 5]]


def test_panel_of_a_cell_tells_reasons_lines_and_futures(
    open_app: Callable[..., httpx.Client],
) -> None:
    """Everything the snake line needs, in both languages."""
    told = open_app().get(f"/api/cell/{SLOPES[0].cell.token}").json()

    assert told["reasons"][0]["en"].startswith("soil water index")
    assert "土壌雨量指数" in told["reasons"][0]["ja"]
    assert [future["name"] for future in told["futures"]] == ["none", "same"]
    dry, wet = told["futures"]
    assert dry["swi_mm"][-1] < wet["swi_mm"][-1]
    assert told["lines"]["assumed"]
    assert [node["id"] for node in told["nodes"]] == ["otani-1"]


def test_futures_are_those_of_gold_until_somebody_changes_the_criteria(
    house: House, open_app: Callable[..., httpx.Client]
) -> None:
    """What the table says is shown, its forecast too; else the console computes."""
    token = SLOPES[0].cell.token
    tables = DeltaTables(house.data / "tables")
    at = datetime.fromtimestamp(NOW_S, UTC)
    (row,) = tables.of("levels", "cell", token, at, at).to_pylist()
    forecast = {"forecast_mm": [9.0] * 12, "level_forecast": 5, "level_dry": 2}
    said = pa.Table.from_pylist([row | forecast | {"margin_forecast_mm": -7.5}], LEVELS)
    merge_rows(tables.path("levels"), said, LEVEL_KEY)
    client = open_app()
    dry, same, given = client.get(f"/api/cell/{token}").json()["futures"]

    assert (dry["level"], given["level"], given["margin_mm"]) == (2, 5, -7.5)
    assert (same["name"], same["level"]) == ("same", row["level_same"])
    assert same["margin_mm"] == row["margin_same_mm"]
    assert given["swi_mm"][-1] > dry["swi_mm"][-1]

    journal = Journal(house.data / CONSOLE_FOLDER / JOURNAL_FILE)
    body = {"advisory_mm": 100.0, "warning_mm": 900.0, "special_mm": 1400.0}
    journal.write(NOW_S, "threshold", token, "chief", body)
    computed = client.get(f"/api/cell/{token}").json()["futures"]

    assert [each["name"] for each in computed] == ["none", "same"]
    assert computed[0]["margin_mm"] > 500


def test_node_tells_its_readings_and_state(
    open_app: Callable[..., httpx.Client],
) -> None:
    """Names with every sign in them are asked for as they are."""
    client = open_app()
    told = client.get("/api/node/otani-1").json()
    assert told["state"] == "well"
    assert set(told["series"]) == {"rain", "tilt/x", "tilt/y"}
    assert len(told["series"]["tilt/x"]["value"]) == 288

    listed = client.get("/api/nodes").json()
    state = dict(zip(listed["id"], listed["state"], strict=True))
    assert state["nishi-2"] == "silent"
    assert HOSTILE in state


def test_what_is_not_there_is_named(open_app: Callable[..., httpx.Client]) -> None:
    """404 with the name that was asked for."""
    answer = open_app().get("/api/cell/ffff")

    assert answer.status_code == 404
    assert "'ffff'" in answer.json()["detail"]
